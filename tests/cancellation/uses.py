"""What is cancelled: where it runs, and each of the uses of a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from asyncpg_lease import Lease, LeaseTable, acquire, lease
from tests.support.leasing import until
from tests.support.leftovers import expect_no_tasks
from tests.support.observe import Observer
from tests.support.typing import Pool

POLL = 0.01
"""Seconds, of a waiting call."""

SOON = 10.0
"""Seconds that a busy machine may take for what takes a second at most: a third of the leases' ttl."""


class Stage:
    """Where a use runs: a key, a table on the pool that it may use, and one on another pool.

    Attributes:
        pool: The use's.
        table: Its table.
        key: Its key.
        others: What somebody else uses.
        shared: Somebody else's lease of the key, by an explicit holder that the use joins.
        begun: Whether the use has come to where cancellations begin.
    """

    def __init__(self, pool: Pool, key: str, others: LeaseTable, shared: Lease | None = None) -> None:
        self.pool = pool
        self.table = LeaseTable(pool, poll=POLL)
        self.key = key
        self.others = others
        self.shared = shared
        self.begun = False

    async def expect_free(self, observe: Observer) -> None:
        """Fail unless soon, and long before it would run out, no row is live, but one that the use has joined."""
        if self.shared is None:
            await observe.until_free(self.key, within=SOON)

    async def expect_nothing_left(self) -> None:
        """Fail unless soon no task and no connection is left, and somebody else gets the key at once."""
        await expect_no_tasks(within=SOON)
        await until(lambda: self.pool.get_idle_size() == self.pool.get_size(), within=SOON)
        if self.shared is None:
            await (await acquire(self.others, self.key, ttl=30)).release()
        else:
            # What was joined is not the use's to release.
            await self.shared.confirm()


Use = Callable[[Stage], Awaitable[None]]


async def enter_and_leave(stage: Stage) -> None:
    """Run an empty block."""
    stage.begun = True
    async with lease(stage.table, stage.key, ttl=30):
        await asyncio.sleep(0)


async def acquire_and_release(stage: Stage) -> None:
    """Acquire, and release what was returned, as a careful caller does."""
    stage.begun = True
    held = await acquire(stage.table, stage.key, ttl=30)
    try:
        await asyncio.sleep(0)
    finally:
        await held.release()


async def leave(stage: Stage) -> None:
    """Leave a block."""
    async with lease(stage.table, stage.key, ttl=30):
        stage.begun = True


async def work(stage: Stage) -> None:
    """Call what there is to be called inside a block."""
    async with lease(stage.table, stage.key, ttl=30) as held:
        stage.begun = True
        await held.renew()
        await held.confirm()
        async with stage.pool.acquire() as connection, held.transaction(connection):
            await connection.execute("SELECT 1")


async def enter_by_name(stage: Stage) -> None:
    """Run an empty block with an explicit holder: it joins its own live tenure, or begins one."""
    stage.begun = True
    async with lease(stage.table, stage.key, ttl=30, holder="app"):
        await asyncio.sleep(0)


async def wait_for_it(stage: Stage) -> None:
    """Wait for the key while somebody else has it, and gives it up before long."""
    incumbent = await acquire(stage.others, stage.key, ttl=30)
    releasing: list[asyncio.Task[None]] = []
    give_up = asyncio.get_running_loop().call_later(
        1.5 * POLL, lambda: releasing.append(asyncio.create_task(incumbent.release()))
    )
    try:
        stage.begun = True
        async with lease(stage.table, stage.key, ttl=30, wait=10):
            await asyncio.sleep(0)
    finally:
        # It is somebody else's, and not cancelled with the use.
        give_up.cancel()
        if not releasing:
            releasing.append(asyncio.create_task(incumbent.release()))
