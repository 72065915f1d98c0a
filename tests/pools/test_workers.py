"""Workers that are cancelled, dismissed, or in short supply."""

from __future__ import annotations

import asyncio

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.support.leasing import spin, until, warm
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RENEW
from tests.support.travel import Travel

pytestmark = pytest.mark.usefixtures("table")


def _workers() -> set[asyncio.Task[object]]:
    return {task for task in library_tasks() if task.get_name().endswith(":worker")}


async def test_worker_cancelled_before_its_first_step_is_replaced(make_pool: MakePool) -> None:
    """Workers that are cancelled before they run a line leave their places to others, which do the claims."""
    pool = await make_pool(max_size=2)
    await warm(pool)
    for number in range(4):
        claiming = asyncio.create_task(acquire(pool, f"k{number}", ttl=5))
        if not _workers():
            # An eager task has made its worker by now, and a turn would be the worker's first step.
            await asyncio.sleep(0)
        assert _workers()
        for worker in _workers():
            worker.cancel()
        held = await asyncio.wait_for(claiming, 3)
        await asyncio.wait_for(held.release(), 3)


async def test_worker_of_an_acquire_closed_by_hand_does_not_stay_counted(make_pool: MakePool) -> None:
    """After two coroutines were closed in their first wait a pool of 2 still has its two workers."""
    pool = await make_pool(min_size=2, max_size=2)
    await warm(pool)
    for _ in range(2):
        claiming = acquire(pool, "closed", ttl=2)
        claiming.send(None)
        claiming.close()
        for worker in _workers():
            worker.cancel()
        await spin(5)
    async with asyncio.timeout(3), lease(pool, "closed", ttl=5) as held:
        assert held.is_held


async def test_workers_after_a_storm_of_users_are_all_there(make_pool: MakePool, observe: Observer) -> None:
    """Many users of a small pool leave it whole: with two claims stuck the third connection serves at once."""
    pool = await make_pool(min_size=3, max_size=3)

    async def use(number: int) -> None:
        for _ in range(4):
            async with lease(pool, f"user-{number}", ttl=20):
                await asyncio.sleep(0)

    await asyncio.gather(*(use(number) for number in range(9)))
    async with observe.inserting("stuck"):
        # Each may hold its connection for a tenth of its ttl, 15 s at most.
        stuck = [asyncio.create_task(acquire(pool, "stuck", ttl=150)) for _ in range(2)]
        await observe.until_waiting(2)
        async with asyncio.timeout(10), lease(pool, "free", ttl=30) as held:
            assert held.is_held
        assert not any(claiming.done() for claiming in stuck)
        for claiming in stuck:
            claiming.cancel()
    await asyncio.wait(stuck)


async def test_worker_cancelled_alone_gives_its_caller_an_error(table: LeaseTable, observe: Observer) -> None:
    """Whoever cancels a worker alone makes its claim fail, and cancels nobody who waits for it."""
    await warm(table)
    async with observe.inserting("key"):
        claiming = asyncio.create_task(acquire(table, "key", ttl=30))
        await observe.until_waiting()
        for worker in _workers():
            worker.cancel()
        await asyncio.wait([claiming], timeout=5)
        assert claiming.done()
        assert not claiming.cancelled()
        assert isinstance(claiming.exception(), ConnectionError)


async def test_worker_cancelled_alone_fails_a_renewal_by_hand_with_an_error(make_pool: MakePool, proxy: Proxy) -> None:
    """A renewal whose worker is cancelled ends with an error, and the next one works."""
    pool = await make_pool(proxy.dsn)
    async with lease(pool, "key", ttl=60) as held:
        await held.renew()
        await until(lambda: not _workers())
        proxy.delay_replies = 0.2
        renewing = asyncio.create_task(held.renew())
        await proxy.wait_for(RENEW, count=2)
        for worker in _workers():
            worker.cancel()
        await asyncio.wait([renewing], timeout=5)
        assert isinstance(renewing.exception(), ConnectionError)
        proxy.delay_replies = 0.0
        await asyncio.wait_for(held.renew(), 5)
    assert proxy.count(CLAIM) == 1


async def test_workers_that_nobody_needs_any_more_are_dismissed(make_pool: MakePool, travel: Travel) -> None:
    """Claims that were cancelled leave no worker in the pool's queue, though the pool stays exhausted."""
    pool = await make_pool(min_size=2, max_size=2)
    await warm(pool)
    taken = [await pool.acquire() for _ in range(2)]
    claims = [asyncio.create_task(acquire(pool, f"k{number}", ttl=20)) for number in range(2)]
    await until(lambda: len(_workers()) == 2)
    for claiming in claims:
        claiming.cancel()
    await asyncio.wait(claims)
    await travel.until(lambda: not _workers(), within=3)
    assert pool.get_idle_size() == 0
    for connection in taken:
        await pool.release(connection)


async def test_workers_that_are_needed_keep_their_place(make_pool: MakePool, travel: Travel) -> None:
    """With more claims than workers nobody is dismissed: who asked first has the first place in the pool's queue."""
    pool = await make_pool(min_size=3, max_size=3)
    await warm(pool)
    taken = [await pool.acquire() for _ in range(3)]
    claims = [asyncio.create_task(acquire(pool, f"first-{number}", ttl=20)) for number in range(3)]
    await until(lambda: len(_workers()) == 3)
    before = _workers()
    claims.pop().cancel()
    await spin(5)
    claims += [asyncio.create_task(acquire(pool, f"then-{number}", ttl=20)) for number in range(3)]
    await travel(3)
    after = _workers()
    for connection in taken:
        await pool.release(connection)
    for held in await asyncio.wait_for(asyncio.gather(*claims), 5):
        await held.release()
    # The third may have been dismissed for the moment in which there were two claims.
    assert len(before & after) >= 2
    assert len(after) == 3
