"""The same calls on a real server, through the library's own API; their answers are the model's words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
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

WRITE = "INSERT INTO page VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET last_fence = EXCLUDED.last_fence"

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

    def __init__(self, table: LeaseTable, observe: Observer, writer: Connection) -> None:
        self.table = table
        self._observe = observe
        self._writer = writer

    async def clear(self) -> None:
        """Begin anew, with no key and nothing written."""
        await self._observe.connection.execute("DELETE FROM lease; DELETE FROM page")

    async def look(self) -> dict[str, Seen]:
        """Return every row, by key."""
        return {row[0]: Seen(*row[1:]) for row in await self._observe.connection.fetch(LOOK)}

    async def written(self) -> dict[str, int]:
        """Return the last fence that was written for each key."""
        return {row[0]: row[1] for row in await self._observe.connection.fetch("SELECT key, last_fence FROM page")}

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

    async def verify(self, held: Lease) -> Answer:
        """Ask the server."""
        return await _said(held.verify(), "live")

    async def release(self, held: Lease) -> Answer:
        """Release."""
        return await _said(held.release(), "released")

    def facts(self, held: Lease) -> Facts:
        """Return what the lease says without asking."""
        return Facts(held.is_held, held.revoked, None if held.lost is None else held.lost.reason)

    async def run_out(self, key: str) -> Answer:
        """Move the row's own timestamps."""
        await self._observe.expire(key)
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
            async with held.transaction(self._writer):
                await self._writer.execute(WRITE, held.key, held.fence)
                if meanwhile is not None:
                    await meanwhile()

        return await _said(transaction(), "written")

    async def write_by_hand(self, held: Lease) -> Answer:
        """Write as one who has not looked at the lease at all."""
        try:
            await self._writer.execute(WRITE, held.key, held.fence)
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
async def world(dsn: str) -> AsyncIterator[World]:
    """Open one on an empty database; nothing of the library's may be left of it."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(expect_no_tasks)
        pool: Pool = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
        stack.push_async_callback(close_pool, pool)
        table = LeaseTable(pool)
        await table.create()
        stack.push_async_callback(table.aclose)
        observe = await stack.enter_async_context(observing(dsn))
        await observe.connection.execute(JOB)
        writer = await asyncpg.connect(dsn)
        stack.push_async_callback(writer.close)
        yield World(table, observe, writer)
