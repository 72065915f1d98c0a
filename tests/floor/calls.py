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


async def is_settled(observe: Observer) -> bool:
    """Tell whether the floor was laid, and claims that began before it were waited for."""
    row = await observe.row("")
    return row is not None and row["released_at"] is not None


def slow_write(table: str = "lease", seconds: float = 60) -> str:
    """Return a statement that locks the table as a claim does, takes its time, and writes nothing."""
    return (
        f"INSERT INTO {table} (key, holder, acquired_at, expires_at) SELECT slept, slept, now(), now()"
        f" FROM (SELECT pg_sleep({seconds})::text AS slept OFFSET 0) AS sleeping WHERE slept <> ''"
    )


@asynccontextmanager
async def asleep(
    observe: Observer, session: Connection, statement: str = "SELECT pg_sleep(60)"
) -> AsyncIterator[asyncio.Task[object]]:
    """Have a session's statement, which calls pg_sleep(60), under way for as long as the block lasts."""
    query: asyncio.Task[object] = asyncio.create_task(session.fetch(statement))
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
