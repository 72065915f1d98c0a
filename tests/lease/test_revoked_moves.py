"""A revocation moves a job: whoever was asked to give the key up lets others go first."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from contextlib import suppress

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, LeaseTimeoutError, acquire, lease, try_acquire
from asyncpg_lease.events import Acquired, Waiting
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "steered"


class Replica:
    """The loop that a service has: whenever the key is to be had, the job runs."""

    def __init__(self, pool: Pool, ttl: float, poll: float) -> None:
        self.table = LeaseTable(pool, poll=poll)
        self.fences: list[int] = []
        self._ttl = ttl

    async def run(self) -> None:
        """Run the job for ever, in one tenure after the other."""
        while True:
            with suppress(LeaseLostError):
                async with lease(self.table, KEY, ttl=self._ttl, wait=math.inf) as held:
                    self.fences.append(held.fence)
                    await asyncio.sleep(3600)


async def again(target: LeaseTable | Pool, travel: Travel, key: str = KEY) -> float:
    """Acquire and release a key that is waited for, and return how many seconds that took."""
    task = asyncio.create_task(acquire(target, key, wait=60))
    passed = await travel.until(task.done, within=70)
    await (await task).release()
    return passed


async def test_revocation_moves_the_job_of_a_service_to_another_replica(
    table: LeaseTable, make_pool: MakePool, travel: Travel
) -> None:
    """Time after time the other one has it, though the one that was asked stands for election again at once."""
    replicas = [Replica(await make_pool(), ttl=12, poll=3) for _ in range(2)]
    tasks = [asyncio.create_task(replica.run()) for replica in replicas]
    holders: list[int] = []
    for turn in range(1, 5):
        await travel.until(lambda turn=turn: any(turn in replica.fences for replica in replicas), within=20)
        holders += [number for number, replica in enumerate(replicas) if turn in replica.fences]
        await table.revoke(KEY, fence=turn)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert holders in ([0, 1, 0, 1], [1, 0, 1, 0])


@pytest.mark.parametrize("short", [False, True])
async def test_replica_that_was_asked_stands_back_for_two_polls(pool: Pool, travel: Travel, *, short: bool) -> None:
    """Alone it has the key again after that, also where its body ended before it heard of the request."""
    told = Recorder()
    table = LeaseTable(pool, poll=5, observer=told)
    await table.create()
    held = await acquire(table, KEY, ttl=60)
    await table.revoke(KEY)
    if not short:
        await held.renew()
    await held.release()
    assert 8 < await again(table, travel) < 14
    assert [type(event) for event in told.events if type(event) in (Acquired, Waiting)] == [Acquired, Waiting, Acquired]
    assert await again(table, travel) < 4


async def test_replica_that_was_asked_stands_back_until_its_min_hold_is_over(
    pool: Pool, observe: Observer, travel: Travel
) -> None:
    """Others cannot have the key before."""
    table = LeaseTable(pool, poll=5)
    await table.create()
    held = await acquire(table, KEY, ttl=60, min_hold=20)
    await table.revoke(KEY)
    await held.release()
    assert 27 < await again(table, travel) < 34
    assert await observe.fence(KEY) == 2


@pytest.mark.parametrize("force", [True, False])
async def test_replica_whose_tenure_was_ended_by_force_or_given_up_stands_back(
    pool: Pool, travel: Travel, *, force: bool
) -> None:
    """Both are revocations: others go first."""
    table = LeaseTable(pool, poll=5)
    await table.create()
    with pytest.raises(LeaseLostError):
        async with lease(table, KEY, ttl=15, drain=2):
            await table.revoke(KEY, force=force)
            try:
                await travel(10)
            finally:
                if not force:
                    with suppress(asyncio.CancelledError):
                        await travel(5)
    assert await again(table, travel) > 8


async def test_replica_that_was_asked_stands_back_in_no_other_way(pool: Pool, travel: Travel) -> None:
    """One try is one try, other keys are not touched, and a wait is no longer than it was to be."""
    table = LeaseTable(pool, poll=20)
    await table.create()
    for _ in range(2):
        held = await acquire(table, KEY)
        await table.revoke(KEY)
        await held.release()
        moved = travel.moved
        assert await again(table, travel, "other") < 5
        told = Recorder()
        taken = await try_acquire(table, KEY, observer=told)
        assert taken is not None
        assert told.of(Waiting) == []
        with pytest.raises(LeaseTimeoutError):
            await travel.through(acquire(table, KEY, wait=6), within=20)
        assert travel.moved - moved < 8
        await taken.release()
        held = await travel.through(acquire(table, KEY, wait=6), within=8)
        await held.release()


async def test_default_table_of_a_pool_remembers_that_it_was_asked(
    table: LeaseTable, pool: Pool, travel: Travel
) -> None:
    """Though nothing of it lives while nobody holds or waits."""
    held = await acquire(pool, KEY)
    await table.revoke(KEY)
    await held.release()
    released = time.monotonic()
    del held
    await until(lambda: not library_tasks())
    gc.collect()
    await again(pool, travel)
    # Two polls are two seconds.
    assert time.monotonic() - released > 1.5
