"""A cancellation at every turn of the loop, from the call to the end, in every way that there is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext

import anyio
import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from tests.support.leasing import here, spin, warm
from tests.support.leftovers import expect_no_tasks
from tests.support.observe import Observer

KEY = "swept"
Use = Callable[[LeaseTable], Awaitable[None]]


class Trial:
    """One use of a lease that is cancelled in one way, and what came out of it."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.outcome = "none"
        self.cancelling = 0
        self.requests = 0
        self._timeout: asyncio.Timeout | None = None
        self._scope: anyio.CancelScope | None = None

    async def run(self, use: Use, table: LeaseTable) -> None:
        """Use the table inside whatever this way of cancelling needs round it."""
        self._timeout = asyncio.timeout(None) if self.way == "timeout" else None
        self._scope = anyio.CancelScope() if self.way == "scope" else None
        try:
            with self._scope or nullcontext():
                async with self._timeout or nullcontext():
                    await use(table)
                    await spin(2)
            caught = self._scope is not None and self._scope.cancelled_caught
            self.outcome = "scope" if caught else "done"
        except TimeoutError:
            self.outcome = "timeout"
        except asyncio.CancelledError:
            self.outcome = "cancelled"
        self.cancelling = here().cancelling()
        # A cancellation that was left over would come out of one of these.
        await spin(3)

    async def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel it in its way."""
        if self._timeout is not None:
            self._timeout.reschedule(0)
        elif self._scope is not None:
            self._scope.cancel()
        else:
            self.requests += task.cancel()
            if self.way == "twice":
                await asyncio.sleep(0)
                if self.outcome == "none":
                    self.requests += task.cancel()


async def enter_and_leave(table: LeaseTable) -> None:
    """Run an empty block."""
    async with lease(table, KEY, ttl=30):
        await asyncio.sleep(0)


async def acquire_and_release(table: LeaseTable) -> None:
    """Acquire, and release what was returned, as a careful caller does."""
    held = await acquire(table, KEY, ttl=30)
    try:
        await asyncio.sleep(0)
    finally:
        await held.release()


@pytest.mark.parametrize("way", ["cancel", "twice", "timeout", "scope"])
@pytest.mark.parametrize("use", [enter_and_leave, acquire_and_release])
async def test_lease_cancelled_at_any_turn_leaves_nothing_claimed(
    table: LeaseTable, observe: Observer, use: Use, way: str
) -> None:
    """Wherever a cancellation comes, it comes out as itself, and no live row and no task is left."""
    await warm(table)
    hits = 0
    for turns in [*range(50)] * 2:
        trial = Trial(way)
        task = asyncio.create_task(trial.run(use, table))
        # The first turn only begins the task.
        await spin(turns + 1)
        if trial.outcome == "none":
            hits += 1
            await trial.cancel(task)
            async with asyncio.timeout(5):
                await asyncio.wait([task])
            assert not task.cancelled(), f"a cancellation was left over at turn {turns}"
            # A timeout or a scope that was left in the very turn has nothing to say any more.
            quiet = {"done"} if way in {"timeout", "scope"} else set()
            assert trial.outcome in {"cancelled" if trial.requests else way} | quiet, turns
            assert trial.cancelling == trial.requests, turns
        await task
        await observe.until_free(KEY, within=1)
        await expect_no_tasks(within=1)
    assert hits > 20
