"""What the package offers: the names are a promise, and so is that there are no others."""

import asyncpg_lease
from asyncpg_lease import errors, events

PUBLIC = [
    "Duration",
    "Event",
    "IdleTimeout",
    "Isolation",
    "Lease",
    "LeaseContext",
    "LeaseError",
    "LeaseInfo",
    "LeaseLostError",
    "LeaseSnapshotError",
    "LeaseTable",
    "LeaseTableError",
    "LeaseTimeoutError",
    "LeaseUnavailableError",
    "LossReason",
    "Observer",
    "OnLost",
    "Pruned",
    "Revocation",
    "RevocationOutcome",
    "acquire",
    "current_lease",
    "lease",
    "try_acquire",
]

LEASE = [
    "acquired_at",
    "expires_at",
    "fence",
    "guard",
    "holder",
    "is_held",
    "joined",
    "key",
    "lost",
    "raise_if_lost",
    "release",
    "remaining",
    "renew",
    "revoked",
    "transaction",
    "verify",
    "wait_lost",
    "wait_over",
]

TABLE = ["aclose", "advance_fences", "create", "get", "leases", "name", "prune", "revoke", "verify"]


def _names(kind: type) -> list[str]:
    return sorted(name for name in vars(kind) if not name.startswith("_"))


def test_package_exports_exactly_the_public_names() -> None:
    """The package's names are these, sorted, and each is there."""
    assert asyncpg_lease.__all__ == PUBLIC == sorted(PUBLIC)
    assert all(hasattr(asyncpg_lease, name) for name in PUBLIC)


def test_lease_and_table_have_exactly_the_public_attributes() -> None:
    """A handle and a table offer these attributes and no others."""
    assert _names(asyncpg_lease.Lease) == LEASE
    assert _names(asyncpg_lease.LeaseTable) == TABLE


def test_every_public_name_has_a_docstring_of_its_own() -> None:
    """Whoever asks for help on a public name gets it."""
    classes = [value for value in vars(asyncpg_lease).values() if isinstance(value, type)]
    for kind in [*classes, *(getattr(module, name) for module in (errors, events) for name in module.__all__)]:
        if isinstance(kind, type):
            assert kind.__doc__, kind
    for kind, names in ((asyncpg_lease.Lease, LEASE), (asyncpg_lease.LeaseTable, TABLE)):
        assert all(getattr(kind, name).__doc__ for name in names)
