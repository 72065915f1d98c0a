"""Leases with fencing tokens on PostgreSQL, for asyncpg pools.

``async with lease(pool, "nightly-report") as held:`` runs its body in one replica at a time, holds no
connection meanwhile, and stops the body when the lease is gone.
"""

from __future__ import annotations

from asyncpg_lease._acquire import LeaseContext, LeaseOptions, acquire, lease, try_acquire
from asyncpg_lease._floor import Pruned
from asyncpg_lease._lease import Lease, current_lease
from asyncpg_lease._options import Duration, LeaseState, OnLost
from asyncpg_lease._revocation import Revocation, RevocationOutcome
from asyncpg_lease._rows import LeaseInfo
from asyncpg_lease._transaction import IdleTimeout, Isolation
from asyncpg_lease.errors import (
    LeaseError,
    LeaseLostError,
    LeaseSnapshotError,
    LeaseTableError,
    LeaseTimeoutError,
    LeaseUnavailableError,
    LossReason,
)
from asyncpg_lease.events import Event, Observer
from asyncpg_lease.table import LeaseTable

__all__ = [
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
