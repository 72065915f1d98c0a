"""The end of asyncio.run: every task is cancelled, once, the library's own included; what is owed is still done."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Released, ReleaseFailed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until, warm
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE

KEY = "closing"


def cancel_everything(*tasks: asyncio.Task[object]) -> None:
    """Cancel these tasks and all of the library's, as asyncio.run does at its end."""
    for task in (*tasks, *library_tasks()):
        task.cancel()


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("caller_too", [True, False])
async def test_claim_under_way_when_the_loop_closes_is_given_back(
    make_pool: MakePool, proxy: Proxy, observe: Observer, caller_too: bool
) -> None:
    """A claim that was sent is taken back within the little time that is left.

    Its caller is cancelled only where somebody cancelled it: of a worker's cancellation it hears as an error.
    """
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    proxy.delay_replies = 0.2
    task: asyncio.Task[object] = asyncio.create_task(acquire(pool, KEY, ttl=30))
    await proxy.wait_for(CLAIM, count=3)
    await asyncio.sleep(0.05)
    cancel_everything(*([task] if caller_too else []))
    with pytest.raises(asyncio.CancelledError if caller_too else ConnectionError):
        await task
    assert task.cancelled() is caller_too
    await observe.until_free(KEY, within=2)
    proxy.delay_replies = 0
    await until(lambda: not library_tasks(), within=3)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("within", [True, False])
async def test_release_without_a_connection_when_the_loop_closes_waits_two_seconds(
    make_pool: MakePool, observe: Observer, within: bool
) -> None:
    """A release that waits for a connection is not given up by the cancellation, and not waited for without end."""
    pool = await make_pool(max_size=1)
    told = Recorder()
    held = await acquire(pool, KEY, ttl=30, observer=told)
    await until(lambda: pool.get_idle_size() == 1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(pool.acquire())
        leaving = asyncio.create_task(held.release())
        await asyncio.sleep(0.02)
        started = time.monotonic()
        cancel_everything()
        await asyncio.sleep(0.2)
        assert not leaving.done()
        if within:
            await stack.aclose()
        await leaving
        assert time.monotonic() - started < 3
    assert await observe.is_free(KEY) is within
    assert bool(told.of(Released)) is within
    assert bool(told.of(ReleaseFailed)) is not within
    await until(lambda: not library_tasks(), within=3)


async def test_release_that_waits_for_a_lock_when_the_loop_closes_is_sent_again(
    table: LeaseTable, observe: Observer
) -> None:
    """A release that was cut off by the cancellation goes out once more, and is no failure."""
    told = Recorder()
    held = await acquire(table, KEY, ttl=30, observer=told)
    async with observe.locked(KEY):
        leaving = asyncio.create_task(held.release())
        await asyncio.sleep(0.1)
        cancel_everything()
        await asyncio.sleep(0.1)
    await leaving
    assert await observe.is_free(KEY)
    assert told.of(Released)
    assert not told.of(ReleaseFailed)


async def test_release_that_waits_for_a_lock_too_long_when_the_loop_closes_is_given_up(
    table: LeaseTable, observe: Observer
) -> None:
    """The second try has two seconds; then the connection is terminated, and the ttl is the backstop."""
    told = Recorder()
    held = await acquire(table, KEY, ttl=30, observer=told)
    async with observe.locked(KEY):
        leaving = asyncio.create_task(held.release())
        await asyncio.sleep(0.1)
        cancel_everything()
        started = time.monotonic()
        await leaving
        assert 1.8 < time.monotonic() - started < 3
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


@pytest.mark.usefixtures("table")
async def test_acquire_cancelled_while_its_failed_claim_is_given_back_comes_out_cancelled(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """An error that waits for its give-back is overtaken by its caller's cancellation; the row is freed."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    drop = proxy.drop_reply(CLAIM)
    task = asyncio.create_task(acquire(pool, KEY, ttl=30))
    await drop.happened.wait()
    proxy.delay_requests = 0.15
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proxy.delay_requests = 0
    await observe.until_free(KEY, within=2)
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
