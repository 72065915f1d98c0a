"""Bodies that take their time to end: nobody else gets in before their last line, and nothing frees their row early."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import anyio
import asyncpg
import pytest

from asyncpg_lease import lease
from asyncpg_lease.events import Lost
from tests.conftest import MakePool
from tests.faults.means import hold, rival
from tests.support.bodies import Bodies
from tests.support.leasing import Recorder, until, warm
from tests.support.observe import Observer
from tests.support.processes import Spawn, emit
from tests.support.proxy import Proxy
from tests.support.statements import RENEW
from tests.support.typing import Pool

KEY = "left"
LAST_LINE = "A, to its last line"


async def unwind(pool: Pool, bodies: Bodies, ttl: float, seconds: float, observer: Recorder) -> None:
    """Hold the key, and need so many seconds of awaits to end once cancelled, whatever else is asked meanwhile."""
    # Beats that come early leave a machine that stalls the time for some more of them.
    async with lease(pool, KEY, ttl=ttl, heartbeat=0.2, observer=observer):
        with bodies.running("A") as body:
            try:
                await asyncio.sleep(30)
            finally:
                last = time.monotonic() + seconds
                with anyio.CancelScope(shield=True):
                    while time.monotonic() < last:
                        with suppress(asyncio.CancelledError):
                            await asyncio.sleep(last - time.monotonic())
                body.who = LAST_LINE


Work = Callable[[], Coroutine[None, None, None]]
Stop = Callable[[], object]
Way = Callable[[Work], AbstractAsyncContextManager[Stop]]


@asynccontextmanager
async def cancelled(work: Work) -> AsyncIterator[Stop]:
    """Run the work in a task, for its user to cancel."""
    task = asyncio.create_task(work())
    yield task.cancel
    with suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def cancelled_again_and_again(work: Work) -> AsyncIterator[Stop]:
    """Run it for an impatient user, who cancels it four times a second."""

    def insist() -> None:
        for times in range(6):
            asyncio.get_running_loop().call_later(0.25 * times, stop)

    async with cancelled(work) as stop:
        yield insist


@asynccontextmanager
async def timed_out(work: Work) -> AsyncIterator[Stop]:
    """Run it inside asyncio.timeout."""

    async def inside() -> None:
        with suppress(TimeoutError):
            async with timeout:
                await work()

    timeout = asyncio.timeout(None)
    async with cancelled(inside):
        yield lambda: timeout.reschedule(0)


@asynccontextmanager
async def beside_a_failing_task(work: Work) -> AsyncIterator[Stop]:
    """Run it in a TaskGroup, another task of which fails."""
    failing = asyncio.Event()

    async def fail() -> None:
        await failing.wait()
        message = "sibling"
        raise ValueError(message)

    async def inside() -> None:
        with suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await work()

    async with cancelled(inside):
        yield failing.set


@asynccontextmanager
async def in_a_scope(work: Work) -> AsyncIterator[Stop]:
    """Run it inside an anyio scope, which cancels it for as long as it has not left."""

    async def inside() -> None:
        with scope:
            await work()

    scope = anyio.CancelScope()
    async with cancelled(inside):
        yield scope.cancel


async def no_trouble(_proxy: Proxy, _observe: Observer) -> None:
    """Leave the network and the server alone."""


async def cut_twice(proxy: Proxy, _observe: Observer) -> None:
    """Reset the links two times, with time for a renewal in between."""
    for _ in range(2):
        proxy.reset_links()
        await asyncio.sleep(0.5)


async def silent_for_a_while(proxy: Proxy, _observe: Observer) -> None:
    """Deliver nothing for a third of the ttl, and then all of it."""
    proxy.freeze()
    await asyncio.sleep(1)
    proxy.thaw()


async def end_sessions(_proxy: Proxy, observe: Observer) -> None:
    """End all sessions in the server."""
    await observe.terminate_backends()


async def unheard_renewal(proxy: Proxy, _observe: Observer) -> None:
    """Lose the reply of a renewal that the server has made."""
    await proxy.drop_reply(RENEW).happened.wait()


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("way", "trouble", "ttl", "seconds"),
    [
        (cancelled, no_trouble, 1, 4),
        (cancelled_again_and_again, no_trouble, 2, 3),
        (timed_out, no_trouble, 2, 3),
        (beside_a_failing_task, no_trouble, 2, 3),
        (in_a_scope, no_trouble, 2, 3),
        (cancelled, cut_twice, 3, 4),
        (timed_out, silent_for_a_while, 3, 4),
        (cancelled, end_sessions, 3, 4),
        (in_a_scope, unheard_renewal, 3, 4),
    ],
)
async def test_body_that_is_cancelled_keeps_the_key_until_its_last_line(
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    bodies: Bodies,
    way: Way,
    trouble: Callable[[Proxy, Observer], Awaitable[None]],
    ttl: float,
    seconds: float,
) -> None:
    """Whoever cancels a body, it is renewed for as long as it takes to end, and the next one enters after that."""
    mine, told = await make_pool(proxy.dsn), Recorder()
    await warm(mine)
    async with way(lambda: unwind(mine, bodies, ttl, seconds, told)) as stop:
        await until(lambda: bodies.all)
        async with rival(observe.dsn, KEY, bodies) as task:
            await asyncio.sleep(0.1)
            stop()
            await asyncio.sleep(0.05)
            await trouble(proxy, observe)
            await task
    assert [body.who for body in bodies.all] == [LAST_LINE, "rival"]
    assert not bodies.overlapping()
    assert bodies.all[0].ended - bodies.all[0].started > seconds
    assert not told.of(Lost)


async def unwind_at_the_end(dsn: str, way: str, seconds: float) -> None:
    """Have a body in this process that asyncio.run cancels, in its main task or after it has ended."""
    entered = asyncio.Event()

    async def job() -> None:
        async with lease(pool, KEY, ttl=2, heartbeat=0.2):
            entered.set()
            emit(entered=True)
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(seconds)
                emit(ended=True)

    # Not closed here: what asyncio.run cancels at its end, tasks of the library's included, has to do.
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
    if way == "interrupted in the main task":
        await job()
    background = asyncio.create_task(job())
    await entered.wait()
    if way == "interrupted beside it":
        await background
    if way == "exit":
        sys.exit(3)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("way", ["interrupted in the main task", "interrupted beside it", "returned", "exit"])
async def test_body_at_the_end_of_its_program_keeps_the_key_until_its_last_line(
    spawn: Spawn, observe: Observer, bodies: Bodies, way: str
) -> None:
    """The end of asyncio.run cancels the body and every task of the library's: it is renewed all the same."""
    child = await spawn(unwind_at_the_end, observe.dsn, way, 3.0)
    await child.event()
    async with rival(observe.dsn, KEY, bodies) as task:
        await asyncio.sleep(0.1)
        if way.startswith("interrupted"):
            child.signal(signal.SIGINT)
        ended = float(str((await child.event())["at"]))
        assert ended < await task < ended + 2
    await child.wait()


async def end_at_once(dsn: str) -> None:
    """Be gone in the middle of a body, without a line more."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool, lease(pool, KEY, ttl=2):
        emit(entered=True)
        os._exit(0)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("end", [None, "SIGTERM", "SIGKILL", "SIGHUP"])
async def test_process_that_is_gone_in_its_body_frees_nothing_early(
    spawn: Spawn, observe: Observer, end: str | None
) -> None:
    """No hook of an exit or a signal releases for a body that was not left: the row runs out by itself."""
    child = await spawn(end_at_once, observe.dsn) if end is None else await spawn(hold, observe.dsn, KEY, 2, 30)
    await child.event()
    if end is not None:
        child.signal(getattr(signal, end))
    await child.wait()
    row = await observe.row(KEY)
    assert row is not None
    assert row["released_at"] is None
    assert not await observe.is_free(KEY)
    assert await observe.until_free(KEY, within=3) > 0
