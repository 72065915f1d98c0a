"""Cancellation while a block is being left: the release goes through, and the cancellation comes out after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Released, ReleaseFailed
from tests.cancellation.ends import come_to_an_end
from tests.conftest import MakePool
from tests.support.leasing import Recorder, here, warm
from tests.support.loops import EARLY
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RELEASE
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "left"


class CountingTask(asyncio.Task[None]):
    """A task that counts how often it is cancelled."""

    cancels = 0

    def cancel(self, msg: object = None) -> bool:
        """Count, then cancel."""
        self.cancels += 1
        return super().cancel(msg)


async def slow_pool(make_pool: MakePool, proxy: Proxy) -> Pool:
    """Return a pool of one connection through the proxy, with its statements prepared."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    return pool


# Half a second after its first cancellation an exit waits no longer.
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("delay", "cancels"), [(2.0, (1.8,)), (2.0, (1.8, 1.85, 1.9)), (0.2, (0.0, 0.01, 0.1))], ids=["one", "late", "soon"]
)
@pytest.mark.parametrize("way", ["delay_replies", "delay_requests"])
async def test_exit_cancelled_during_the_release_finishes_it_first(
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    delay: float,
    cancels: tuple[float, ...],
    way: str,
) -> None:
    """However often an exit is cancelled, the row is free when CancelledError comes out, and is asked for once."""
    pool = await slow_pool(make_pool, proxy)
    loop = asyncio.get_running_loop()
    seen: list[object] = []
    started = took = 0.0
    proxy.forget()

    async def job() -> None:
        nonlocal started, took
        try:
            async with lease(pool, KEY, ttl=30):
                setattr(proxy, way, delay)
                started = loop.time()
                for at in cancels:
                    loop.call_later(at, task.cancel)
        except BaseException as error:
            took = loop.time() - started
            seen.extend([type(error), here().cancelling(), await observe.is_free(KEY)])
            raise

    task = asyncio.create_task(job())
    await travel.until(task.done, within=delay + 2)
    assert task.cancelled()
    assert took > delay - EARLY
    assert seen == [asyncio.CancelledError, len(cancels), True]
    assert proxy.count(RELEASE) == 1
    await come_to_an_end(pool, proxy, travel)


@asynccontextmanager
async def moved_on(seconds: float) -> AsyncIterator[anyio.CancelScope]:
    """Cancel by anyio.move_on_after()."""
    with anyio.move_on_after(seconds) as scope:
        yield scope


@asynccontextmanager
async def group_cancelled(seconds: float) -> AsyncIterator[anyio.CancelScope]:
    """Cancel by a task group's scope."""
    async with anyio.create_task_group() as group:
        asyncio.get_running_loop().call_later(seconds, group.cancel_scope.cancel)
        yield group.cancel_scope


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("cancelled", [moved_on, group_cancelled])
@pytest.mark.parametrize("body", [100.0, 2.8])
@pytest.mark.parametrize("way", ["delay_replies", "delay_requests"])
async def test_exit_in_a_cancelled_anyio_scope_releases_without_a_busy_loop(
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    cancelled: Callable[[float], AbstractAsyncContextManager[anyio.CancelScope]],
    body: float,
    way: str,
) -> None:
    """Level cancellation keeps off the release, whether it came in the body or in the exit."""
    pool = await slow_pool(make_pool, proxy)

    async def job() -> None:
        async with cancelled(3) as scope:
            async with lease(pool, KEY, ttl=30):
                setattr(proxy, way, 0.4)
                await asyncio.sleep(body)
            assert await observe.is_free(KEY)
        assert scope.cancel_called

    task = CountingTask(job())
    await travel.through(task, within=6)
    assert await observe.is_free(KEY)
    assert task.cancels < 20
    await come_to_an_end(pool, proxy, travel)


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_exit_on_a_frozen_link_is_bounded_and_says_that_the_row_stays(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """A release that is not answered holds the exit up until the row has run out by itself, and is a warning."""
    pool = await slow_pool(make_pool, proxy)
    told = Recorder()

    async def leave() -> None:
        async with lease(pool, KEY, ttl=3, observer=told):
            proxy.freeze()

    await travel.through(leave(), within=8)
    assert travel.moved < 3.1
    await travel.until(lambda: told.of(ReleaseFailed), within=3)
    assert not told.of(Released)
    proxy.thaw()
    await come_to_an_end(pool, proxy, travel)


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_exit_waits_for_a_silent_server_five_seconds_at_most(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """A long ttl does not make the exit long."""
    pool = await slow_pool(make_pool, proxy)

    async def leave() -> None:
        async with lease(pool, KEY, ttl=600):
            proxy.freeze()

    leaving = asyncio.create_task(leave())
    assert await travel.until(leaving.done, within=8) > 4.5
    assert travel.moved < 5.1
    await leaving
    proxy.thaw()
    await come_to_an_end(pool, proxy, travel)


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_release_cancelled_during_the_statement_finishes_it_first(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """release() by hand is shielded as the block's end is, and raises the cancellation afterwards."""
    pool = await slow_pool(make_pool, proxy)
    held = await acquire(pool, KEY, ttl=30)
    proxy.delay_requests = 1
    task = asyncio.create_task(held.release())
    asyncio.get_running_loop().call_later(0.8, task.cancel)
    await travel.until(task.done, within=3)
    assert task.cancelled()
    assert await observe.is_free(KEY)
    await come_to_an_end(pool, proxy, travel)


async def test_exit_cancelled_by_the_body_itself_comes_out_cancelled(table: LeaseTable, observe: Observer) -> None:
    """A body that cancels its own task at its last line gets the cancellation out of the exit."""

    async def job() -> None:
        async with lease(table, KEY):
            here().cancel()

    task = asyncio.create_task(job())
    await asyncio.wait([task])
    assert task.cancelled()
    assert await observe.is_free(KEY)
