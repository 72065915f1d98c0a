"""The end of asyncio.run: every task is cancelled, once, the library's own included; what is owed is still done."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Released, ReleaseFailed
from tests.cancellation.ends import come_to_an_end
from tests.conftest import MakePool
from tests.support.leasing import Recorder, spin, until, warm
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE
from tests.support.travel import Travel

KEY = "closing"


def cancel_everything(*tasks: asyncio.Task[object]) -> None:
    """Cancel these tasks and all of the library's, as asyncio.run does at its end."""
    for task in (*tasks, *library_tasks()):
        task.cancel()


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("caller_too", [True, False])
async def test_claim_under_way_when_the_loop_closes_is_given_back(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, caller_too: bool
) -> None:
    """A claim that was sent is taken back within the little time that is left.

    Its caller is cancelled only where somebody cancelled it: of a worker's cancellation it hears as an error.
    """
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    before = proxy.count(CLAIM)
    proxy.delay_replies = 0.4
    task: asyncio.Task[object] = asyncio.create_task(acquire(pool, KEY, ttl=30))
    await proxy.wait_for(CLAIM, count=before + 1)
    cancel_everything(*([task] if caller_too else []))
    await travel.until(task.done, within=5)
    with pytest.raises(asyncio.CancelledError if caller_too else ConnectionError):
        await task
    assert task.cancelled() is caller_too
    await travel.until(lambda: observe.is_free(KEY), within=5)
    await come_to_an_end(pool, proxy, travel)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("within", [True, False])
async def test_release_without_a_connection_when_the_loop_closes_waits_two_seconds(
    make_pool: MakePool, observe: Observer, travel: Travel, within: bool
) -> None:
    """A release that waits for a connection is not given up by the cancellation, and not waited for without end."""
    pool = await make_pool(max_size=1)
    told = Recorder()
    held = await acquire(pool, KEY, ttl=30, observer=told)
    await until(lambda: pool.get_idle_size() == 1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(pool.acquire())
        leaving = asyncio.create_task(held.release())
        await spin(10)
        cancel_everything()
        await travel(1)
        assert not leaving.done()
        if within:
            await stack.aclose()
        await travel.through(leaving, within=4)
    assert await observe.is_free(KEY) is within
    assert bool(told.of(Released)) is within
    assert bool(told.of(ReleaseFailed)) is not within
    await travel.until(lambda: not library_tasks(), within=3)


@pytest.mark.usefixtures("table")
async def test_release_that_waits_for_a_lock_when_the_loop_closes_is_sent_again(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """A release that was cut off by the cancellation goes out once more, and is no failure."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    told = Recorder()
    held = await acquire(pool, KEY, ttl=30, observer=told)
    proxy.forget()
    async with observe.locked(KEY):
        leaving = asyncio.create_task(held.release())
        await observe.until_waiting()
        cancel_everything()
        await proxy.wait_for(RELEASE, count=2)
        assert not leaving.done()
    await leaving
    assert await observe.is_free(KEY)
    assert told.of(Released)
    assert not told.of(ReleaseFailed)
    assert proxy.count(RELEASE) == 2


async def test_release_that_waits_for_a_lock_too_long_when_the_loop_closes_is_given_up(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """The second try has two seconds; then the connection is terminated, and the ttl is the backstop."""
    told = Recorder()
    held = await acquire(table, KEY, ttl=30, observer=told)
    async with observe.locked(KEY):
        leaving = asyncio.create_task(held.release())
        await observe.until_waiting()
        cancel_everything()
        assert await travel.until(leaving.done, within=4, rows=False) > 1.8
        await leaving
    assert told.of(ReleaseFailed)


@pytest.mark.usefixtures("table")
async def test_release_between_two_tries_when_the_loop_closes_is_tried_again(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """A release that failed and waits for its next try makes it at once."""
    pool = await make_pool(proxy.dsn, min_size=0, max_size=1)
    await warm(pool)
    told = Recorder()
    held = await acquire(pool, KEY, ttl=30, observer=told)
    await until(lambda: not library_tasks())
    proxy.reset_links()
    proxy.refuse()
    leaving = asyncio.create_task(held.release())
    await until(lambda: any("release:" in task.get_name() for task in library_tasks()))
    await proxy.accept()
    cancel_everything()
    await leaving
    assert await observe.is_free(KEY)
    assert told.of(Released)


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_acquire_cancelled_while_its_failed_claim_is_given_back_comes_out_cancelled(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """An error that waits for its give-back is overtaken by its caller's cancellation; the row is freed."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    drop = proxy.drop_reply(CLAIM)
    task = asyncio.create_task(acquire(pool, KEY, ttl=30))
    await drop.happened.wait()
    proxy.delay_requests = 1
    # The error waits for half a second.
    await travel(0.1)
    assert not task.done()
    task.cancel()
    await travel.until(task.done, within=5)
    assert task.cancelled()
    await come_to_an_end(pool, proxy, travel)
    assert await observe.is_free(KEY)
    assert await observe.fence(KEY) == 1
    assert proxy.count(RELEASE) >= 1


@pytest.mark.usefixtures("table")
async def test_pool_closed_beside_a_failing_release_ends_it(make_pool: MakePool, proxy: Proxy) -> None:
    """A release is not tried again on a pool that is closed."""
    pool = await make_pool(proxy.dsn, min_size=0, max_size=1)
    told = Recorder()
    async with lease(pool, KEY, ttl=30, observer=told):
        await until(lambda: not library_tasks())
        await pool.close()
    assert told.of(ReleaseFailed)
