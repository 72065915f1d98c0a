"""The server did it and nobody heard: an answer that is lost or late costs no lease, and keeps no key shut."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, Released, ReleaseFailed, Renewed, RenewFailed
from tests.conftest import MakePool
from tests.faults.means import stopped
from tests.faults.outages import NEVER, Stage
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE, RENEW

KEY = "unheard"
pytestmark = pytest.mark.usefixtures("table")


@pytest.mark.parametrize(
    ("lost", "ttl", "heartbeat"),
    [((2,), 3, None), ((1,), 9, 0.3), ((2, 3, 6), 9, 0.2), ((1, 2, 3, 4), 9, 0.3)],
)
async def test_renewal_whose_reply_was_lost_is_made_again(
    make_pool: MakePool, proxy: Proxy, observe: Observer, *, lost: tuple[int, ...], ttl: float, heartbeat: float | None
) -> None:
    """A renewal that the server made and the client did not hear of is made again, and the lease is kept."""
    stage = await Stage.make(make_pool, proxy, observe)
    told = Recorder()
    drops = [proxy.drop_reply(RENEW, nth=nth) for nth in lost]
    async with lease(stage.pool, KEY, ttl=ttl, heartbeat=heartbeat, observer=told) as held:
        for drop in drops:
            heard = held.expires_at
            await asyncio.wait_for(drop.happened.wait(), 10)
            row = await observe.row(KEY)
            assert row is not None
            assert row["expires_at"] > heard
        renewed = len(told.of(Renewed))
        await until(lambda: len(told.of(Renewed)) > renewed + 2, within=20)
        assert held.is_held
        assert await observe.fence(KEY) == held.fence == 1
    assert len(told.of(RenewFailed)) >= len(lost)
    assert not told.of(Lost)
    assert told.of(Released)


@pytest.mark.parametrize("late", ["requests", "replies", "frozen"])
async def test_renewal_that_is_answered_after_the_next_was_sent_is_harmless(
    make_pool: MakePool, proxy: Proxy, observe: Observer, late: str
) -> None:
    """An answer that nobody waits for any more, and one that is overtaken, end nothing."""
    stage = await Stage.make(make_pool, proxy, observe, connections=3)
    told = Recorder()
    async with lease(stage.pool, KEY, ttl=4, heartbeat=0.5, observer=told) as held:
        # The claim's connection has come back, so that the renewal has one to go out on.
        await until(stage.pool.get_idle_size)
        if late == "frozen":
            proxy.freeze()
        else:
            setattr(proxy, f"delay_{late}", 2.2)
        await until(lambda: told.of(RenewFailed))
        setattr(proxy, f"delay_{late}", 0)
        proxy.thaw()
        renewed, began = len(told.of(Renewed)), time.monotonic()
        await until(lambda: len(told.of(Renewed)) > renewed and time.monotonic() - began > 1)
        assert held.is_held
        assert await observe.fence(KEY) == 1
    assert "no answer to the renewal" in told.of(RenewFailed)[0].error
    assert not told.of(Lost)


async def _nothing(_stage: Stage) -> None:
    """Let the reply come, 0.6 s late."""


async def _reset(stage: Stage) -> None:
    stage.proxy.reset_links()


async def _cut_for_a_moment(stage: Stage) -> None:
    stage.proxy.refuse()
    stage.proxy.reset_links()
    await asyncio.sleep(0.5)
    await stage.proxy.accept()


async def _freeze_for_a_moment(stage: Stage) -> None:
    stage.proxy.freeze()
    await asyncio.sleep(0.9)
    stage.proxy.thaw()


async def _end_sessions(stage: Stage) -> None:
    await stage.end_sessions()


@pytest.mark.parametrize(
    ("fate", "after"),
    [
        (_nothing, 0.3),
        (_reset, 0.0),
        (_reset, 0.3),
        (_cut_for_a_moment, 0.1),
        (_freeze_for_a_moment, 0.3),
        (_end_sessions, 0.0),
    ],
)
async def test_cancelled_claim_that_was_granted_is_given_back_whatever_becomes_of_its_reply(
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    fate: Callable[[Stage], Awaitable[None]],
    after: float,
) -> None:
    """The caller has its CancelledError within about a second, and others the key soon after the network is well."""
    stage = await Stage.make(make_pool, proxy, observe, connections=1)
    proxy.delay_replies = 0.6
    claims = proxy.count(CLAIM)
    task = asyncio.create_task(acquire(stage.pool, KEY, ttl=30))
    await proxy.wait_for(CLAIM, count=claims + 1)
    while await observe.is_free(KEY):
        await asyncio.sleep(0.005)
    await asyncio.sleep(after)
    cancelled = time.monotonic()
    task.cancel()
    await fate(stage)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - cancelled < 1.5
    proxy.delay_replies = 0
    async with lease(LeaseTable(await make_pool(), poll=0.05), KEY, wait=3) as held:
        assert held.fence == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
async def test_cancelled_claim_of_a_server_process_that_stands_still_is_given_back(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """A claim that is granted long after its caller has gone is given back as soon as it is."""
    stage = await Stage.make(make_pool, proxy, observe, connections=1)
    with stopped(*await stage.backends()):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await acquire(stage.pool, KEY, ttl=30)
        assert await observe.row(KEY) is None
    async with asyncio.timeout(3):
        while (row := await observe.row(KEY)) is None or row["released_at"] is None:
            await asyncio.sleep(0.01)
    assert row["fence"] == 1


async def test_claim_that_arrives_after_its_give_back_is_given_back_again(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """A claim that comes late to a server whose answer was not waited for any more keeps nobody out."""
    stage = await Stage.make(make_pool, proxy, observe)
    claims, releases = proxy.count(CLAIM), proxy.count(RELEASE)
    # Of this request alone: what was sent stays on its way, and what comes after it on another link is quick.
    proxy.delay_requests = 4.5
    # Given up after 3 s.
    claiming = asyncio.create_task(acquire(stage.pool, KEY, ttl=30))
    await proxy.wait_for(CLAIM, count=claims + 1)
    proxy.delay_requests = 0
    with pytest.raises(TimeoutError, match="the statement was given up"):
        await claiming
    await proxy.wait_for(RELEASE, count=releases + 1)
    async with asyncio.timeout(10):
        while await observe.row(KEY) is None:
            await asyncio.sleep(0.01)
    await observe.until_free(KEY, within=10)
    assert await observe.fence(KEY) == 1


async def test_cancelled_claim_without_an_answer_keeps_its_connection_no_longer_for_a_long_ttl(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """With a long ttl a claim may go unanswered for 15 s; one that nobody waits for has the 3 s of any other."""
    stage = await Stage.make(make_pool, proxy, observe, connections=1)
    claims = proxy.count(CLAIM)
    proxy.delay_requests = NEVER
    claiming = asyncio.create_task(acquire(stage.pool, KEY, ttl=600))
    await proxy.wait_for(CLAIM, count=claims + 1)
    proxy.delay_requests = 0
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    async with asyncio.timeout(8):
        assert await stage.pool.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("successor", [None, "fresh", "app"])
async def test_release_whose_reply_was_lost_is_no_failure_and_spares_the_successor(
    make_pool: MakePool, proxy: Proxy, observe: Observer, lost: int, successor: str | None
) -> None:
    """What is sent again finds the tenure over, which it ended itself; whoever came in meanwhile is left alone."""
    stage = await Stage.make(make_pool, proxy, observe)
    told = Recorder()
    drops = [proxy.drop_reply(RELEASE, nth=nth) for nth in range(1, lost + 1)]
    others = LeaseTable(await make_pool(), poll=0.01)
    holder = "app" if successor == "app" else None
    if successor is None:
        async with lease(stage.pool, KEY, ttl=30, observer=told):
            pass
        assert await observe.is_free(KEY)
    else:
        held = await acquire(stage.pool, KEY, ttl=30, holder=holder, observer=told)
        leaving = asyncio.create_task(held.release())
        await asyncio.wait_for(drops[0].happened.wait(), 5)
        async with lease(others, KEY, ttl=30, holder=holder, wait=5) as next_one:
            await leaving
            assert next_one.fence == 2
            assert not next_one.joined
            await next_one.verify()
    with suppress(TimeoutError):
        await until(lambda: told.of(Released) or told.of(ReleaseFailed))
    assert not told.of(ReleaseFailed)
    assert drops[0].happened.is_set()
