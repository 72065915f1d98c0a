"""What type checkers must refuse; checked, never run. An error that is expected and does not come is one itself."""

from __future__ import annotations

import asyncpg

from asyncpg_lease import Event, LeaseInfo, LeaseLostError, LeaseTable, acquire, lease, try_acquire
from asyncpg_lease.events import Released


async def targets(connection: asyncpg.Connection, pool: asyncpg.Pool | None, dsn: str) -> None:
    """Refuse a connection, a pool that may be missing, and a DSN."""
    lease(connection, "key")  # type: ignore[arg-type]
    await acquire(pool, "key")  # type: ignore[arg-type]
    await try_acquire(dsn, "key")  # type: ignore[arg-type]
    LeaseTable(connection)  # type: ignore[arg-type]
    async with asyncpg.create_pool() as other, other.acquire() as pooled:
        lease(pooled, "key")  # type: ignore[arg-type]


async def arguments(pool: asyncpg.Pool) -> None:
    """Refuse what an option does not take, and options that there are not."""
    lease(pool, 5)  # type: ignore[arg-type]
    lease(pool, b"key")  # type: ignore[arg-type]
    lease(pool)  # type: ignore[call-arg]
    lease(pool, "key", 60)  # type: ignore[call-arg]
    lease(pool, "key", ttl="60")  # type: ignore[arg-type]
    lease(pool, "key", ttl=None)  # type: ignore[arg-type]
    lease(pool, "key", on_lost="ignore")  # type: ignore[arg-type]
    lease(pool, "key", holder=5)  # type: ignore[arg-type]
    lease(pool, "key", timeout=5)  # type: ignore[call-arg]
    await acquire(pool, "key", ttl="60")  # type: ignore[arg-type]
    await acquire(pool, "key", timeout=5)  # type: ignore[call-arg]
    await try_acquire(pool, "key", on_lost="ignore")  # type: ignore[arg-type]
    LeaseTable(pool, poll="1")  # type: ignore[arg-type]
    LeaseTable(pool, "lease", "jobs")  # type: ignore[call-arg]


async def observers(pool: asyncpg.Pool) -> None:
    """Refuse observers that take something else, or that would have to be awaited."""

    def of_releases(event: Released) -> None: ...

    def of_nothing() -> None: ...

    async def awaited(event: Event) -> None: ...

    lease(pool, "key", observer=of_releases)  # type: ignore[arg-type]
    lease(pool, "key", observer=of_nothing)  # type: ignore[arg-type]
    lease(pool, "key", observer=awaited)  # type: ignore[arg-type]
    lease(pool, "key", observer=[print, of_releases])  # type: ignore[list-item]
    lease(pool, "key", observer="log")  # type: ignore[arg-type]
    lease(pool, "key", observer=[None])  # type: ignore[list-item]


async def handles(pool: asyncpg.Pool) -> None:
    """Refuse to take a lease for granted, to use it before it is there, and to change it."""
    _ = (await try_acquire(pool, "key")).fence  # type: ignore[union-attr]
    _ = lease(pool, "key").fence  # type: ignore[attr-defined]
    with lease(pool, "key"):  # type: ignore[attr-defined]
        pass
    held = await acquire(pool, "key")
    held.fence = 5  # type: ignore[misc]
    held.is_held()  # type: ignore[operator]


def values(event: Event, read: LeaseInfo, error: LeaseLostError) -> bool:
    """Refuse to change a value, and to compare it with what it cannot be."""
    event.key = "other"  # type: ignore[misc]
    read.fence = 5  # type: ignore[misc]
    error.reason = "bored"  # type: ignore[assignment]
    return read.state == "lost"  # type: ignore[comparison-overlap]
