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
from tests.faults.outages import Stage
from tests.faults.rivals import waiting_rival
from tests.support.bodies import Bodies
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer
from tests.support.processes import Spawn, emit
from tests.support.proxy import Proxy
from tests.support.statements import RENEW
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "left"
LAST_LINE = "A, to its last line"
TTL = 20.0
LONG = 25.0
"""Seconds of a body's clean-up: it ends after the row would have run out."""


async def unwind(pool: Pool, bodies: Bodies, observer: Recorder) -> None:
    """Hold the key, and need many seconds of awaits to end once cancelled, whatever else is asked meanwhile."""
    async with lease(pool, KEY, ttl=TTL, observer=observer):
        with bodies.running("A") as body:
            try:
                await asyncio.sleep(1000)
            finally:
                last = time.monotonic() + LONG
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
    """Run it for an impatient user, who cancels it six times in twenty seconds."""

    def insist() -> None:
        for times in range(6):
            asyncio.get_running_loop().call_later(4 * times, stop)

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


async def no_trouble(_stage: Stage, _travel: Travel) -> None:
    """Leave the network and the server alone."""


async def cut_twice(stage: Stage, travel: Travel) -> None:
    """Reset the links two times, with time for a renewal in between."""
    for _ in range(2):
        stage.proxy.reset_links()
        await travel(TTL / 3 + 2)


async def silent_for_a_while(stage: Stage, travel: Travel) -> None:
    """Deliver nothing for a third of the ttl, and then all of it."""
    stage.proxy.freeze()
    await travel(TTL / 3)
    stage.proxy.thaw()


async def end_sessions(stage: Stage, _travel: Travel) -> None:
    """End all of the holder's sessions in the server."""
    await stage.end_sessions()


async def unheard_renewal(stage: Stage, travel: Travel) -> None:
    """Lose the reply of a renewal that the server has made."""
    await travel.until(stage.proxy.drop_reply(RENEW).happened.is_set, within=TTL / 2)


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("way", "trouble"),
    [
        (cancelled, no_trouble),
        (cancelled_again_and_again, no_trouble),
        (timed_out, no_trouble),
        (beside_a_failing_task, no_trouble),
        (in_a_scope, no_trouble),
        (cancelled, cut_twice),
        (timed_out, silent_for_a_while),
        (cancelled, end_sessions),
        (in_a_scope, unheard_renewal),
    ],
)
async def test_body_that_is_cancelled_keeps_the_key_until_its_last_line(
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    bodies: Bodies,
    way: Way,
    trouble: Callable[[Stage, Travel], Awaitable[None]],
) -> None:
    """Whoever cancels a body, it is renewed for as long as it takes to end, and the next one enters after that."""
    stage, told = await Stage.make(make_pool, proxy, observe), Recorder()
    async with way(lambda: unwind(stage.pool, bodies, told)) as stop:
        await until(lambda: bodies.all)
        async with waiting_rival(observe.dsn, KEY, bodies) as rival:
            await travel(1)
            stop()
            await travel(1)
            await trouble(stage, travel)
            await travel.through(rival, within=LONG + 2 * TTL)
    assert [body.who for body in bodies.all] == [LAST_LINE, "rival"]
    assert not bodies.overlapping()
    assert bodies.all[0].ended - bodies.all[0].started > LONG
    assert not told.of(Lost)


async def unwind_at_the_end(dsn: str, way: str, seconds: float) -> None:
    """Have a body in this process that asyncio.run cancels, in its main task or after it has ended."""
    entered = asyncio.Event()

    async def job() -> None:
        # Beats that come early leave a machine that stalls the time for some more of them.
        async with lease(pool, KEY, ttl=3, heartbeat=0.3):
            entered.set()
            emit(entered=True)
            try:
                await asyncio.sleep(1000)
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


@pytest.mark.slow("a program of its own is ended, and works on for longer than a ttl")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("way", ["interrupted in the main task", "interrupted beside it", "returned", "exit"])
async def test_body_at_the_end_of_its_program_keeps_the_key_until_its_last_line(
    spawn: Spawn, observe: Observer, bodies: Bodies, way: str
) -> None:
    """The end of asyncio.run cancels the body and every task of the library's: it is renewed all the same."""
    child = await spawn(unwind_at_the_end, observe.dsn, way, 4.0)
    await child.event()
    async with rival(observe.dsn, KEY, bodies) as task:
        if way.startswith("interrupted"):
            child.signal(signal.SIGINT)
        ended = float(str((await child.event())["at"]))
        assert ended < await task < ended + 15
    await child.wait()


async def end_at_once(dsn: str) -> None:
    """Be gone in the middle of a body, without a line more."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool, lease(pool, KEY, ttl=60):
        emit(entered=True)
        os._exit(0)


@pytest.mark.slow("starts and ends a program of its own")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("end", [None, "SIGTERM", "SIGKILL", "SIGHUP"])
async def test_process_that_is_gone_in_its_body_frees_nothing_early(
    spawn: Spawn, observe: Observer, travel: Travel, end: str | None
) -> None:
    """No hook of an exit or a signal releases for a body that was not left: the row runs out by itself."""
    child = await spawn(end_at_once, observe.dsn) if end is None else await spawn(hold, observe.dsn, KEY, 60, 1000)
    await child.event()
    if end is not None:
        child.signal(getattr(signal, end))
    await child.wait()
    row = await observe.row(KEY)
    assert row is not None
    assert row["released_at"] is None
    assert not await observe.is_free(KEY)
    await travel(60)
    assert await observe.is_free(KEY)
