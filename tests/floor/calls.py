"""What the floor's tests share: tenures in a row, rows by the thousand, a claim that stands still in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from asyncpg_lease import LeaseTable, acquire
from tests.support.observe import Observer
from tests.support.typing import Connection, Pool

ISOLATIONS = ["read committed", "repeatable read", "serializable"]
DAY = 86400.0

# The holder 'slow' stops right before its insert, as a backend does that gets no time from its machine.
PAUSE = """
CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN coalesce(NEW, OLD); END';
CREATE TRIGGER pause_insert BEFORE INSERT ON lease
    FOR EACH ROW WHEN (NEW.holder = 'slow') EXECUTE FUNCTION pause();
CREATE TRIGGER pause_delete BEFORE DELETE ON lease
    FOR EACH ROW WHEN (OLD.holder = 'slow') EXECUTE FUNCTION pause();
"""


async def use(target: Pool | LeaseTable, key: str, times: int = 1) -> int:
    """Acquire and release a key so many times, and return the last fence."""
    fence = 0
    for _ in range(times):
        held = await acquire(target, key)
        fence = held.fence
        await held.release()
    return fence


async def fill(connection: Connection, rows: int, *, fence: int = 1) -> None:
    """Make so many rows that have been free for a day."""
    await connection.execute(
        "INSERT INTO lease SELECT 'key-' || n, 'h', $2, clock_timestamp() - interval '2 days',"
        " clock_timestamp() - interval '1 day' FROM generate_series(1, $1::bigint) AS n",
        rows,
        fence,
    )


@asynccontextmanager
async def asleep(observe: Observer, session: Connection, source: str = "") -> AsyncIterator[asyncio.Task[object]]:
    """Have a session's query under way, for a minute at most, as long as the block lasts; `source` is its FROM."""
    query: asyncio.Task[object] = asyncio.create_task(session.fetch(f"SELECT pg_sleep(60) {source}"))
    pid = session.get_server_pid()
    async with asyncio.timeout(10):
        while not await observe.connection.fetchval(
            "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1", pid
        ):
            await asyncio.sleep(0.01)
    yield query
    assert not query.done()
    query.cancel()
    await asyncio.gather(query, return_exceptions=True)


@asynccontextmanager
async def paused(observe: Observer) -> AsyncIterator[None]:
    """Stop the inserts and deletes of rows of the holder 'slow' for as long as the block lasts."""
    await observe.connection.execute(PAUSE)
    await observe.connection.execute("SELECT pg_advisory_lock(4711)")
    yield
    await observe.connection.execute("SELECT pg_advisory_unlock(4711)")
