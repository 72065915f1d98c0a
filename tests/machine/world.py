"""The same calls on a real server, through the library's own API; their answers are the model's words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import asyncpg

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, LeaseUnavailableError, acquire
from tests.machine.model import Answer, Facts, Granted, Lifted, Lost, Swept, Unavailable
from tests.support.job import JOB, STALE
from tests.support.leftovers import close_pool, expect_no_tasks
from tests.support.observe import Observer, observing
from tests.support.typing import Connection, Pool

HOUR = 3600.0
"""The ttl: nothing runs out by itself, since a step takes milliseconds."""

NOTED = """
CREATE TABLE accepted (number bigint GENERATED ALWAYS AS IDENTITY, key text NOT NULL, fence bigint NOT NULL);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO accepted (key, fence) VALUES (NEW.key, NEW.last_fence); RETURN NULL; END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON page FOR EACH ROW EXECUTE FUNCTION note();
"""
"""Each write of the job's that was accepted is noted, in that order."""

WRITE = "INSERT INTO page VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET last_fence = EXCLUDED.last_fence"

ACCEPTED = "SELECT key, array_agg(fence ORDER BY number) FROM accepted GROUP BY key"

LOOK = """
SELECT key, holder, fence,
    CASE WHEN expires_at <= clock_timestamp() THEN 'free' WHEN released_at IS NOT NULL THEN 'resting' ELSE 'held' END,
    released_at IS NOT NULL, revoked_at IS NOT NULL, lease::text, ctid::text || ' ' || xmin::text
FROM lease
"""


class Seen(NamedTuple):
    """A row as another session sees it: what it says, all of its values as text, and its version."""

    holder: str
    fence: int
    state: str
    released: bool
    revoked: bool
    values: str
    version: str


class World:
    """A lease table, and a table that the job writes."""

    def __init__(self, pool: Pool, table: LeaseTable, observe: Observer, writer: Connection) -> None:
        self.pool = pool
        self.table = table
        self.observe = observe
        self.writer = writer

    async def clear(self) -> None:
        """Begin anew, with no key and nothing written."""
        await self.observe.connection.execute("DELETE FROM lease; DELETE FROM page; DELETE FROM accepted")

    async def look(self) -> dict[str, Seen]:
        """Return every row, by key."""
        return {row[0]: Seen(*row[1:]) for row in await self.observe.connection.fetch(LOOK)}

    async def accepted(self) -> dict[str, list[int]]:
        """Return the fences of all writes of each key that were accepted, the first one first."""
        rows = await self.observe.connection.fetch(ACCEPTED)
        return {row[0]: row[1] for row in rows}

    async def claim(self, key: str, holder: str | None, *, rests: bool) -> tuple[Answer, Lease | None]:
        """Acquire; return the lease as well, where there is one."""
        min_hold = HOUR / 2 if rests else 0
        try:
            held = await acquire(self.table, key, ttl=HOUR, holder=holder, min_hold=min_hold)
        except LeaseUnavailableError as error:
            return Unavailable(str(error.holder), error.fence or 0, error.resting), None
        return Granted(held.fence, held.joined), held

    async def renew(self, held: Lease) -> Answer:
        """Renew."""
        return await _said(held.renew(), "renewed")

    async def renew_together(self, leases: Sequence[Lease]) -> list[Answer]:
        """Renew at once."""
        return await asyncio.gather(*(self.renew(held) for held in leases))

    async def confirm(self, held: Lease) -> Answer:
        """Ask the server."""
        return await _said(held.confirm(), "live")

    async def release(self, held: Lease) -> Answer:
        """Release."""
        return await _said(held.release(), "released")

    def facts(self, held: Lease) -> Facts:
        """Return what the lease says without asking."""
        return Facts(held.is_held, held.stop_reason, None if held.lost is None else held.lost.reason)

    async def run_out(self, key: str) -> Answer:
        """Move the row's own timestamps."""
        await self.observe.expire(key)
        return "run out"

    async def revoke(self, key: str, fence: int | None, *, force: bool) -> Answer:
        """Revoke."""
        return (await self.table.revoke(key, fence=fence, force=force)).outcome

    async def prune(self) -> Answer:
        """Prune whatever is free."""
        pruned = await self.table.prune(0)
        return Swept(pruned.deleted, pruned.kept, pruned.floor)

    async def advance_fences(self, by: int) -> Answer:
        """Advance all fences."""
        return Lifted(await self.table.advance_fences(by))

    async def write(self, held: Lease, meanwhile: Callable[[], Awaitable[None]] | None = None) -> Answer:
        """Write in a guarded transaction, and let something happen before it ends."""

        async def transaction() -> None:
            async with held.transaction(self.writer):
                await self.writer.execute(WRITE, held.key, held.fence)
                if meanwhile is not None:
                    await meanwhile()

        return await _said(transaction(), "written")

    async def write_by_hand(self, held: Lease) -> Answer:
        """Write as one who has not looked at the lease at all."""
        try:
            await self.writer.execute(WRITE, held.key, held.fence)
        except asyncpg.PostgresError as error:
            if error.sqlstate != STALE:
                raise
            return "stale"
        return "written"


async def _said(call: Coroutine[Any, Any, None], otherwise: str) -> Answer:
    """Return what came of a call on a lease, in the model's words."""
    try:
        await call
    except LeaseLostError as error:
        return Lost(error.reason, error.taken_by)
    except RuntimeError as error:
        if "it was left or released" not in str(error):
            raise
        return "left"
    return otherwise


@asynccontextmanager
async def world(
    dsn: str, leases: str | None = None, *, connections: int = 2, settings: Mapping[str, str] | None = None
) -> AsyncIterator[World]:
    """Open one on an empty database; nothing of the library's may be left of it.

    Args:
        dsn: the database.
        leases: another way to it, for the leases alone.
        connections: how many the leases may have.
        settings: of the server, for the leases' sessions alone.
    """
    async with AsyncExitStack() as stack:
        stack.push_async_callback(expect_no_tasks)
        pool: Pool = await asyncpg.create_pool(
            leases or dsn, min_size=1, max_size=connections, server_settings=dict(settings or {})
        )
        stack.push_async_callback(close_pool, pool)
        table = LeaseTable(pool)
        await table.create()
        stack.push_async_callback(table.aclose)
        observe = await stack.enter_async_context(observing(dsn))
        await observe.connection.execute(JOB + NOTED)
        writer = await asyncpg.connect(dsn)
        stack.push_async_callback(writer.close)
        yield World(pool, table, observe, writer)
