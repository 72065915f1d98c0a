"""A holder that cannot renew is stopped before its row can run out, whatever keeps it from renewing and wherever."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, OnLost, lease
from asyncpg_lease.events import Late, Renewed
from asyncpg_lease.testing import EmbeddedServer
from tests.conftest import MakePool
from tests.faults import outages
from tests.faults.means import rival
from tests.faults.outages import Outage, Stage
from tests.support.bodies import Bodies
from tests.support.leasing import Recorder, until
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RENEW

KEY = "deadline"
needs_sigstop = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")


async def before_renewals(_stage: Stage, _told: Recorder) -> None:
    """Come before the first renewal is due."""
    await asyncio.sleep(0.3)


async def between_renewals(_stage: Stage, told: Recorder) -> None:
    """Come when the lease was renewed twice."""
    await until(lambda: len(told.of(Renewed)) >= 2)


async def during_a_renewal(stage: Stage, _told: Recorder) -> None:
    """Come when a renewal has been sent and its answer is on the way."""
    stage.proxy.delay_replies = 0.2
    await stage.proxy.wait_for(RENEW, count=stage.proxy.count(RENEW) + 1)


Moment = Callable[[Stage, Recorder], Awaitable[None]]


def time_stalled(told: Recorder) -> float:
    """Return the seconds for which the event loop stood still, on a machine that has much to do."""
    return sum(event.blocked for event in told.of(Late))


class Case(NamedTuple):
    """What happens, when, and to which lease."""

    outage: Outage
    moment: Moment = before_renewals
    ttl: float = 2
    on_lost: OnLost = "cancel"
    holder: str | None = None

    def __str__(self) -> str:
        return f"{self.outage.__name__} {self.moment.__name__} {self.on_lost}"


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "case",
    [
        Case(outages.cut),
        Case(outages.cut, during_a_renewal, holder="app"),
        Case(outages.frozen, between_renewals, ttl=1.5),
        Case(outages.frozen, during_a_renewal, on_lost="flag"),
        Case(outages.late_requests, between_renewals, ttl=1.5),
        Case(outages.late_replies, during_a_renewal, on_lost="flag"),
        Case(outages.ended_again_and_again, during_a_renewal),
        Case(outages.read_only, between_renewals, ttl=1.5),
        Case(outages.exhausted_pool, ttl=1.5, on_lost="flag"),
    ],
    ids=str,
)
async def test_holder_that_cannot_renew_has_stopped_before_others_get_in(
    make_pool: MakePool, proxy: Proxy, observe: Observer, bodies: Bodies, case: Case
) -> None:
    """The body has ended before the row can run out, and nobody waits for longer than that, whatever the error."""
    stage = await Stage.make(make_pool, proxy, observe)
    told = Recorder()
    outage = AsyncExitStack()
    held = lease(
        stage.pool, KEY, ttl=case.ttl, grace=case.ttl / 4, on_lost=case.on_lost, holder=case.holder, observer=told
    )

    async def body() -> None:
        async with held as it:
            with bodies.running("holder"):
                entered.set()
                await case.moment(stage, told)
                await outage.enter_async_context(case.outage(stage))
                away.set()
                await (it.wait_lost() if case.on_lost == "flag" else asyncio.sleep(10))
        it.raise_if_lost()

    entered, away = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(body())
    await entered.wait()
    async with rival(observe.dsn, KEY, bodies) as successor, outage:
        await away.wait()
        started = time.monotonic()
        # What the server hears of it renews, until the deadline.
        assert await successor - started < 2 * case.ttl + 2
        with pytest.raises(LeaseLostError) as caught:
            await task
    assert [body.who for body in bodies.all] == ["holder", "rival"]
    assert not bodies.overlapping()
    assert caught.value.reason == "unreachable" or time_stalled(told)


class Hang(NamedTuple):
    """What lets a renewal wait, for which ttl, on a pool of how many connections."""

    outage: Outage
    ttl: float = 1.5
    connections: int = 2

    def __str__(self) -> str:
        return f"{self.outage.__name__} {self.ttl:g} of {self.connections}"


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "hang",
    [
        Hang(outages.locked_row),
        Hang(outages.locked_table),
        Hang(outages.hanging_update),
        Hang(outages.hanging_commit, ttl=2.5),
        Hang(outages.late_replies),
        Hang(outages.late_requests, ttl=1),
        Hang(outages.frozen, ttl=2.5, connections=1),
        Hang(outages.exhausted_pool, connections=3),
        pytest.param(Hang(outages.stopped_backends, connections=1), marks=needs_sigstop),
    ],
    ids=str,
)
async def test_deadline_is_kept_while_a_renewal_hangs(
    make_pool: MakePool, proxy: Proxy, observe: Observer, hang: Hang
) -> None:
    """The body is stopped at its deadline wherever the renewal waits; neither the exit nor a task waits with it."""
    stage = await Stage.make(make_pool, proxy, observe, connections=hang.connections)
    told, ttl, ended = Recorder(), hang.ttl, 0.0
    async with AsyncExitStack() as until_the_end:
        started = time.monotonic()
        with pytest.raises(LeaseLostError) as caught:
            async with lease(stage.pool, KEY, ttl=ttl, observer=told):
                await asyncio.sleep(ttl / 5)
                await until_the_end.enter_async_context(hang.outage(stage))
                try:
                    await asyncio.sleep(10)
                finally:
                    ended = time.monotonic()
        left = time.monotonic()
        stalled = time_stalled(told)
        # A tenth of the ttl before its end, and not sooner.
        assert 0.85 * ttl < ended - started <= ttl + 0.3 + stalled
        assert left - started <= ttl + 1.5 + stalled
        await until(lambda: not library_tasks())
    assert caught.value.reason == "unreachable" or stalled
    assert await observe.fence(KEY) == 1


async def test_deadline_is_kept_when_the_server_is_shut_down(make_pool: MakePool, own_server: EmbeddedServer) -> None:
    """The exit waits for no server to come back, and the loss says what became of the last renewal."""
    table = LeaseTable(await make_pool(own_server.dsn))
    await table.create()
    started = time.monotonic()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=2):
            await asyncio.to_thread(own_server.stop)
            await asyncio.sleep(10)
    assert time.monotonic() - started < 4
    assert caught.value.reason == "unreachable"
    assert isinstance(caught.value.__cause__, OSError)
