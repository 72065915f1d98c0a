"""A revocation moves a job: whoever was asked to give the key up lets others go first."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, LeaseTimeoutError, acquire, lease, try_acquire
from asyncpg_lease.events import Acquired, Waiting
from tests.conftest import MakePool
from tests.support.leasing import Recorder
from tests.support.loops import EARLY
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
            try:
                async with lease(self.table, KEY, ttl=self._ttl, wait=math.inf) as held:
                    self.fences.append(held.fence)
                    await asyncio.sleep(3600)
            except LeaseLostError:
                pass


async def test_revocation_moves_the_job_of_a_service_to_another_replica(table: LeaseTable, make_pool: MakePool) -> None:
    """Time after time the other one has it, though the one that was asked stands for election again at once."""
    replicas = [Replica(await make_pool(), ttl=0.9, poll=0.2) for _ in range(2)]
    tasks = [asyncio.create_task(replica.run()) for replica in replicas]
    holders = []
    for turn in range(1, 6):
        async with asyncio.timeout(5):
            while not (holder := [replica for replica in replicas if turn in replica.fences]):
                await asyncio.sleep(0.01)
        holders += [replicas.index(one) for one in holder]
        await table.revoke(KEY, fence=turn)
    assert holders in ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1])
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.parametrize("short", [False, True])
async def test_replica_that_was_asked_stands_back_for_two_polls(pool: Pool, *, short: bool) -> None:
    """Alone it has the key again after that, also where its body ended before it heard of the request."""
    told = Recorder()
    table = LeaseTable(pool, poll=0.3, observer=told)
    await table.create()
    held = await acquire(table, KEY, ttl=60)
    await table.revoke(KEY)
    if not short:
        await held.renew()
    await held.release()
    started = time.monotonic()
    async with lease(table, KEY, wait=60):
        assert 0.6 - EARLY < time.monotonic() - started < 1.2
    assert [type(event) for event in told.events if type(event) in (Acquired, Waiting)] == [Acquired, Waiting, Acquired]
    started = time.monotonic()
    async with lease(table, KEY, wait=60):
        assert time.monotonic() - started < 0.3


async def test_replica_that_was_asked_stands_back_until_its_min_hold_is_over(pool: Pool) -> None:
    """Others cannot have the key before."""
    table = LeaseTable(pool, poll=0.4)
    await table.create()
    held = await acquire(table, KEY, ttl=60, min_hold=0.8)
    await table.revoke(KEY)
    await held.release()
    started = time.monotonic()
    async with lease(table, KEY, wait=60) as held:
        assert time.monotonic() - started > 1.4
    assert held.fence == 2


async def test_replica_whose_tenure_was_ended_by_force_or_given_up_stands_back(pool: Pool) -> None:
    """Both are revocations: others go first."""
    table = LeaseTable(pool, poll=0.3)
    await table.create()
    for force in (True, False):
        with pytest.raises(LeaseLostError):
            async with lease(table, KEY, ttl=0.6, drain=0.1):
                await table.revoke(KEY, force=force)
                try:
                    await asyncio.sleep(60)
                finally:
                    if not force:
                        await asyncio.sleep(0.3)
        started = time.monotonic()
        async with lease(table, KEY, wait=60, ttl=60):
            assert time.monotonic() - started > 0.6 - EARLY


async def test_replica_that_was_asked_stands_back_in_no_other_way(pool: Pool) -> None:
    """One try is one try, other keys are not touched, and a wait is no longer than it was to be."""
    table = LeaseTable(pool, poll=1)
    await table.create()
    for _ in range(2):
        held = await acquire(table, KEY)
        await table.revoke(KEY)
        await held.release()
        started = time.monotonic()
        other = await acquire(table, "other", wait=60)
        await other.release()
        told = Recorder()
        again = await try_acquire(table, KEY, observer=told)
        assert again is not None
        assert told.of(Waiting) == []
        with pytest.raises(LeaseTimeoutError):
            await acquire(table, KEY, wait=0.3)
        assert time.monotonic() - started < 1
        await again.release()
        async with asyncio.timeout(0.9):
            await (await acquire(table, KEY, wait=0.3)).release()


async def test_default_table_of_a_pool_remembers_that_it_was_asked(table: LeaseTable, pool: Pool) -> None:
    """Though nothing of it lives while nobody holds or waits."""
    held = await acquire(pool, KEY)
    await table.revoke(KEY)
    await held.release()
    del held
    await asyncio.sleep(0.1)
    started = time.monotonic()
    await (await acquire(pool, KEY, wait=60)).release()
    assert time.monotonic() - started > 1.5
