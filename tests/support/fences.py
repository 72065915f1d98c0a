"""Two tenures of one key: one whose holder was paused until the other began, and that other one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncpg_lease import Lease, LeaseTable, acquire
from tests.support.typing import Pool


@asynccontextmanager
async def stale_and_fresh(pool: Pool) -> AsyncIterator[tuple[Lease, Lease]]:
    """Yield a lease with fence 1 that is over, which its holder has not heard of, and its successor with fence 2."""
    table = LeaseTable(pool)
    await table.create()
    stale = await acquire(pool, "report")
    await pool.execute(
        "UPDATE lease SET acquired_at = '-infinity', expires_at = clock_timestamp() WHERE key = 'report'"
    )
    fresh = await acquire(pool, "report")
    try:
        yield stale, fresh
    finally:
        await fresh.release()
        await stale.release()
        await table.aclose()
