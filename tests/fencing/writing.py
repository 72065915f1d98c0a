"""What a job writes in these tests, and who else is in the way."""

from __future__ import annotations

import asyncio

from asyncpg_lease import try_acquire
from tests.support.harms import harms
from tests.support.observe import Observer
from tests.support.typing import Connection, Pool, PooledConnection

KEY = "job"
ISOLATIONS = ("read_committed", "repeatable_read", "serializable")
SNAPSHOT_ISOLATIONS = ISOLATIONS[1:]

HARMS = harms(KEY)


async def write(connection: Connection | PooledConnection, who: str) -> None:
    """Write a line of the job's journal."""
    await connection.execute("INSERT INTO journal VALUES ($1)", who)


async def written(observe: Observer) -> list[str]:
    """Return who has written, as everybody sees it."""
    return [record[0] for record in await observe.connection.fetch("SELECT who FROM journal ORDER BY who")]


async def is_shut(pool: Pool) -> bool:
    """Tell whether a claim of KEY is refused, and see that the answer comes at once; a lease is given back."""
    async with asyncio.timeout(2):
        held = await try_acquire(pool, KEY)
    if held is not None:
        await held.release()
    return held is None


async def until_waiting(observe: Observer) -> None:
    """Wait until another session waits for a lock of a row or of whoever has it."""
    async with asyncio.timeout(5):
        while not await observe.connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ):
            await asyncio.sleep(0.01)
