"""A holder that cannot renew is stopped before its row can run out, whatever keeps it from renewing and wherever."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, OnLost, lease
from asyncpg_lease.events import Renewed
from asyncpg_lease.testing import EmbeddedServer
from tests.conftest import MakePool
from tests.faults import outages
from tests.faults.modes import SLACK
from tests.faults.outages import Outage, Stage
from tests.faults.rivals import waiting_rival
from tests.support.bodies import Bodies
from tests.support.leasing import Recorder
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RENEW
from tests.support.travel import Travel

KEY = "deadline"
TTL = 20.0
LATE = 2.0
"""Seconds by which answers come late where a renewal is to be under way."""
needs_sigstop = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")


async def before_renewals(_stage: Stage, _told: Recorder) -> None:
    """Come before the first renewal is due."""
    await asyncio.sleep(3)


async def between_renewals(_stage: Stage, told: Recorder) -> None:
    """Come when the lease was renewed a moment ago."""
    while not told.of(Renewed):
        await asyncio.sleep(1)


async def during_a_renewal(stage: Stage, _told: Recorder) -> None:
    """Come when a renewal has been sent and its answer is on the way."""
    stage.proxy.delay_replies = LATE
    await stage.proxy.wait_for(RENEW, count=stage.proxy.count(RENEW) + 1, within=TTL)


Moment = Callable[[Stage, Recorder], Awaitable[None]]


@asynccontextmanager
async def ended_again_and_again(stage: Stage) -> AsyncIterator[None]:
    """The server ends the holder's sessions before an answer can come from them."""
    async with outages.ended_again_and_again(stage, every=LATE / 2):
        yield


class Case(NamedTuple):
    """What happens, when, and to which lease."""

    outage: Outage
    moment: Moment = before_renewals
    on_lost: OnLost = "cancel"
    holder: str | None = None

    def __str__(self) -> str:
        return f"{self.outage.__name__} {self.moment.__name__} {self.on_lost}"


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "case",
    [
        Case(outages.cut),
        Case(outages.cut, during_a_renewal, holder="app"),
        Case(outages.frozen, between_renewals),
        Case(outages.frozen, during_a_renewal, on_lost="flag"),
        Case(outages.late_requests, between_renewals),
        Case(outages.late_replies, during_a_renewal, on_lost="flag"),
        Case(ended_again_and_again, during_a_renewal),
        Case(outages.read_only, between_renewals),
        Case(outages.exhausted_pool, on_lost="flag"),
    ],
    ids=str,
)
async def test_holder_that_cannot_renew_has_stopped_before_others_get_in(
    *, make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, bodies: Bodies, case: Case
) -> None:
    """The body has ended before the row can run out, and nobody waits for longer than that, whatever the error."""
    stage = await Stage.make(make_pool, proxy, observe)
    told = Recorder()
    outage = AsyncExitStack()
    held = lease(stage.pool, KEY, ttl=TTL, grace=TTL / 4, on_lost=case.on_lost, holder=case.holder, observer=told)
    entered, away = asyncio.Event(), asyncio.Event()

    async def body() -> None:
        async with held as it:
            with bodies.running("holder"):
                entered.set()
                await case.moment(stage, told)
                await outage.enter_async_context(case.outage(stage))
                away.set()
                await (it.wait_lost() if case.on_lost == "flag" else asyncio.sleep(1000))
        it.raise_if_stopping()

    task = asyncio.create_task(body())
    await entered.wait()
    async with waiting_rival(observe.dsn, KEY, bodies) as successor, outage:
        await travel.until(away.is_set, within=TTL)
        # What the server hears of it renews, until the deadline.
        await travel.through(successor, within=2 * TTL)
        with pytest.raises(LeaseLostError) as caught:
            await travel.through(task, within=TTL)
    assert [body.who for body in bodies.all] == ["holder", "rival"]
    assert not bodies.overlapping()
    assert caught.value.reason == "unreachable"


@asynccontextmanager
async def only_backend_stopped(stage: Stage) -> AsyncIterator[None]:
    """The server process of the pool's one connection stands still, and no other connection is to be had."""
    stage.proxy.refuse()
    async with outages.stopped_backends(stage):
        yield
    await stage.proxy.accept()


class Hang(NamedTuple):
    """What lets a renewal wait, on a pool of how many connections, and whether it locks the row."""

    outage: Outage
    connections: int = 2
    locks: bool = False

    def __str__(self) -> str:
        return f"{self.outage.__name__} of {self.connections}"


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "hang",
    [
        Hang(outages.locked_row, locks=True),
        Hang(outages.locked_table, locks=True),
        Hang(outages.hanging_update, locks=True),
        Hang(outages.hanging_commit, locks=True),
        Hang(outages.late_replies),
        Hang(outages.late_requests),
        Hang(outages.frozen, connections=1),
        Hang(outages.exhausted_pool, connections=3),
        pytest.param(Hang(only_backend_stopped, connections=1), marks=needs_sigstop),
    ],
    ids=str,
)
async def test_deadline_is_kept_while_a_renewal_hangs(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, hang: Hang
) -> None:
    """The body is stopped at its deadline wherever the renewal waits; neither the exit nor a task waits with it."""
    stage = await Stage.make(make_pool, proxy, observe, connections=hang.connections)
    ended = ended_moved = left_moved = 0.0
    async with AsyncExitStack() as until_the_end:
        started, moved = time.monotonic(), travel.moved

        async def body() -> None:
            nonlocal ended, ended_moved, left_moved
            try:
                async with lease(stage.pool, KEY, ttl=TTL):
                    await asyncio.sleep(TTL / 5)
                    await until_the_end.enter_async_context(hang.outage(stage))
                    try:
                        await asyncio.sleep(1000)
                    finally:
                        ended, ended_moved = time.monotonic(), travel.moved
            finally:
                left_moved = travel.moved

        with pytest.raises(LeaseLostError) as caught:
            await travel.through(body(), within=0.9 * TTL + 2 * SLACK, rows=not hang.locks)
        # A tenth of the ttl before its end, and not sooner.
        assert ended - started >= 0.9 * TTL
        assert ended_moved - moved <= 0.9 * TTL + SLACK
        assert left_moved - ended_moved <= SLACK
        await travel.until(lambda: not library_tasks(), within=6, rows=not hang.locks)
    assert caught.value.reason == "unreachable"
    assert await observe.fence(KEY) == 1


@pytest.mark.slow("a server is started, and stopped for good")
async def test_deadline_is_kept_when_the_server_is_shut_down(make_pool: MakePool, own_server: EmbeddedServer) -> None:
    """The exit waits for no server to come back, and the loss says what became of the last renewal."""
    table = LeaseTable(await make_pool(own_server.dsn))
    await table.create()
    with pytest.raises(LeaseLostError) as caught:
        async with asyncio.timeout(20), lease(table, KEY, ttl=6):
            await asyncio.to_thread(own_server.stop)
            await asyncio.sleep(60)
    assert caught.value.reason == "unreachable"
    assert isinstance(caught.value.__cause__, OSError)
