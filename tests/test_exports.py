"""What the package offers: the names are a promise, and so is that there are no others."""

from types import FunctionType

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
    "LeaseOptions",
    "LeaseSnapshotError",
    "LeaseState",
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
    "confirm",
    "expires_at",
    "fence",
    "guard",
    "holder",
    "is_held",
    "joined",
    "key",
    "lost",
    "raise_if_stopping",
    "release",
    "remaining",
    "renew",
    "stop_reason",
    "transaction",
    "wait_lost",
    "wait_stopping",
]

TABLE = ["aclose", "advance_fences", "create", "get", "leases", "name", "prune", "revoke", "verify"]


MODULES = (asyncpg_lease, errors, events)


def _names(kind: type) -> list[str]:
    return sorted(name for name in vars(kind) if not name.startswith("_"))


def test_package_exports_exactly_the_public_names() -> None:
    """The package's names are these, sorted, and each is there."""
    assert asyncpg_lease.__all__ == PUBLIC == sorted(PUBLIC)
    assert [name for name in PUBLIC if not hasattr(asyncpg_lease, name)] == []


def test_lease_and_table_have_exactly_the_public_attributes() -> None:
    """A handle and a table offer these attributes and no others."""
    assert _names(asyncpg_lease.Lease) == LEASE
    assert _names(asyncpg_lease.LeaseTable) == TABLE


def test_every_public_name_has_a_docstring_of_its_own() -> None:
    """Whoever asks for help on a public name gets it."""
    public = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
    for kind, names in ((asyncpg_lease.Lease, LEASE), (asyncpg_lease.LeaseTable, TABLE)):
        public |= {f"{kind.__name__}.{name}": getattr(kind, name) for name in names}
    documented = {name: value for name, value in public.items() if isinstance(value, (type, FunctionType, property))}
    assert len(documented) > 60
    assert [name for name, value in documented.items() if not value.__doc__] == []
