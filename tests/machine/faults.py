"""What goes wrong between a lease and its server, to one statement at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeAlias

import asyncpg

from asyncpg_lease import Lease, LeaseTable, LeaseUnavailableError, acquire
from tests.machine.model import Answer, Granted, Unavailable
from tests.machine.world import HOUR, World, world
from tests.support.leasing import spin
from tests.support.leftovers import expect_no_tasks
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE, RENEW

Fault: TypeAlias = Literal["unheard", "reset", "terminated", "refused"]
"""Its answer is lost; its link is reset before it arrives; its session is ended; the server gives it up for a lock."""

LABEL = "lost"
"""Of the holders of claims that come to nothing."""

NAME = "leases"
LOCK_TIMEOUT = 0.02
HESITATION = 0.02
"""Seconds for which a request is on its way that is not to arrive."""


class FaultyWorld(World):
    """A world whose leases' way to the server is not safe.

    Each call here has come to its end when it returns: what was to be given back has been.
    """

    def __init__(self, safe: World, proxy: Proxy) -> None:
        super().__init__(safe.pool, safe.table, safe.observe, safe.writer)
        self._proxy = proxy

    async def claim_in_vain(self, key: str, holder: str | None, fault: Fault) -> Answer:
        """Acquire, and hear of nothing."""
        # A claim that was not heard of is looked for again, ever more rarely, as long as its table is open.
        table = LeaseTable(self.pool, schema="public")
        call = acquire(table, key, ttl=HOUR, holder=holder, label=None if holder else LABEL)
        answer = await self._under(fault, CLAIM, call)
        await table.aclose()
        await expect_no_tasks()
        return answer

    async def claim_cancelled(self, key: str, holder: str | None, turns: int) -> tuple[Answer, Lease | None]:
        """Acquire, and be cancelled after so many turns of the loop, unless there is an answer before that."""
        call = acquire(self.table, key, ttl=HOUR, holder=holder, label=None if holder else LABEL)
        task = asyncio.create_task(call)
        await spin(turns)
        task.cancel()
        await asyncio.wait([task])
        await expect_no_tasks()
        if task.cancelled():
            return "cancelled", None
        error = task.exception()
        if isinstance(error, LeaseUnavailableError):
            return Unavailable(str(error.holder), error.fence or 0, error.resting), None
        held = task.result()
        return Granted(held.fence, held.joined), held

    async def renew_in_vain(self, held: Lease, fault: Fault) -> Answer:
        """Renew, and hear of nothing."""
        return await self._under(fault, RENEW, held.renew())

    async def release_again(self, held: Lease, fault: Fault) -> Answer:
        """Release, which is tried again."""
        return await self._under(fault, RELEASE, self.release(held))

    async def _under(self, fault: Fault, statement: str, call: Coroutine[Any, Any, object]) -> Answer:
        """Make a call, whose first such statement comes to grief."""
        # So that nothing but the statement is on the way: no log-in, and no reset query of an earlier one.
        await expect_no_tasks()
        await self.pool.execute("SELECT 1")
        if fault == "unheard":
            drop = self._proxy.drop_reply(statement)
            answer = await _outcome(call)
            assert drop.happened.is_set(), f"no such statement: {answer}"
            return answer
        if fault == "refused":
            async with self.writer.transaction():
                await self.writer.execute("LOCK TABLE lease IN ACCESS EXCLUSIVE MODE")
                task = asyncio.create_task(_outcome(call))
                # A release does not end before it is done; the other two have failed by then.
                await asyncio.wait([task], timeout=2 * LOCK_TIMEOUT if statement == RELEASE else None)
            return await task
        task = asyncio.create_task(_outcome(call))
        await self._cut_off(statement, fault)
        return await task

    async def _cut_off(self, statement: str, fault: Fault) -> None:
        """Hold a statement up on its way, and see to it that it does not arrive."""
        self._proxy.delay_requests = HESITATION
        await self._proxy.wait_for(statement, count=self._proxy.count(statement) + 1)
        self._proxy.freeze()
        self._proxy.delay_requests = 0
        if fault == "reset":
            self._proxy.reset_links()
        else:
            await self.observe.connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = $1", NAME
            )
        self._proxy.thaw()


async def _outcome(call: Coroutine[Any, Any, object]) -> Answer:
    """Return what came of a call on a bad link: that it failed, or what it said."""
    try:
        return str(await call)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError):
        return "failed"


@asynccontextmanager
async def faulty_world(dsn: str) -> AsyncIterator[FaultyWorld]:
    """Open one on an empty database."""
    settings = {"application_name": NAME, "lock_timeout": f"{LOCK_TIMEOUT * 1000:.0f}"}
    # One connection, so that it is known which one a fault has ended.
    async with Proxy(dsn) as proxy, world(dsn, proxy.dsn, connections=1, settings=settings) as safe:
        yield FaultyWorld(safe, proxy)
