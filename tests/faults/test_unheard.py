"""The server did it and nobody heard: an answer that is lost or late costs no lease, and keeps no key shut."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

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
from tests.support.travel import Travel
from tests.support.wire import Drop

KEY = "unheard"
pytestmark = pytest.mark.usefixtures("table")


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("lost", [(2,), (1,), (2, 3, 6), (1, 2, 3, 4)], ids=str)
async def test_renewal_whose_reply_was_lost_is_made_again(
    *, make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, lost: tuple[int, ...]
) -> None:
    """A renewal that the server made and the client did not hear of is made again, and the lease is kept."""
    stage = await Stage.make(make_pool, proxy, observe)
    told = Recorder()
    drops = [proxy.drop_reply(RENEW, nth=nth) for nth in lost]
    async with lease(stage.pool, KEY, ttl=15, observer=told) as held:

        async def is_ahead(drop: Drop) -> bool:
            """Tell whether the row lasts for longer than the holder knows, once a reply was lost."""
            await drop.happened.wait()
            heard = held.expires_at
            # Before it is sent again.
            proxy.freeze()
            row = await observe.row(KEY)
            proxy.thaw()
            return row is not None and row["expires_at"] > heard

        ahead = asyncio.gather(*map(is_ahead, drops))
        # The rows stay where they are: what changes them is a renewal.
        assert await travel.through(ahead, within=60, rows=False) == [True] * len(drops)
        renewed = len(told.of(Renewed))
        await travel.until(lambda: len(told.of(Renewed)) > renewed + 2, within=40)
        assert held.is_held
        assert await observe.fence(KEY) == held.fence == 1
    assert len(told.of(RenewFailed)) >= len(lost)
    assert not told.of(Lost)
    assert told.of(Released)


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("late", ["requests", "replies", "frozen"])
async def test_renewal_that_is_answered_after_the_next_was_sent_is_harmless(
    *, make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, late: str
) -> None:
    """An answer that nobody waits for any more, and one that is overtaken, end nothing."""
    stage = await Stage.make(make_pool, proxy, observe, connections=3)
    told = Recorder()
    # A renewal is given up after 2.9 s: before its connection would be, for its silence.
    async with lease(stage.pool, KEY, ttl=9, heartbeat=2, observer=told) as held:
        # So that the next one is a single statement, and has a connection to go out on.
        await held.renew()
        await until(stage.pool.get_idle_size)
        sent = proxy.count(RENEW)
        if late == "frozen":
            proxy.freeze()
        else:
            setattr(proxy, f"delay_{late}", 4)
        await travel.until(lambda: proxy.count(RENEW) > sent, within=5)
        # Of this renewal alone; the next one is quick.
        proxy.delay_requests = proxy.delay_replies = 0
        await travel.until(lambda: told.of(RenewFailed), within=5)
        proxy.thaw()
        renewed = len(told.of(Renewed))
        await travel(5)
        assert len(told.of(Renewed)) > renewed
        assert held.is_held
        assert await observe.fence(KEY) == 1
    assert "no answer to the renewal" in told.of(RenewFailed)[0].error
    assert not told.of(Lost)


async def make_stage_at_rest(make_pool: MakePool, proxy: Proxy, observe: Observer) -> Stage:
    """Make a stage of one connection, which has come back to its pool."""
    stage = await Stage.make(make_pool, proxy, observe, connections=1)
    await until(lambda: stage.pool.get_idle_size() == 1)
    return stage


async def _nothing(_stage: Stage, _travel: Travel) -> None:
    """Let the reply come late."""


async def _reset(stage: Stage, _travel: Travel) -> None:
    stage.proxy.reset_links()


async def _cut_for_a_moment(stage: Stage, travel: Travel) -> None:
    stage.proxy.refuse()
    stage.proxy.reset_links()
    await travel(0.5)
    await stage.proxy.accept()


async def _freeze_for_a_moment(stage: Stage, travel: Travel) -> None:
    stage.proxy.freeze()
    await travel(0.9)
    stage.proxy.thaw()


async def _end_sessions(stage: Stage, _travel: Travel) -> None:
    await stage.end_sessions()


@pytest.mark.slow("takes half a second or so")
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
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    fate: Callable[[Stage, Travel], Awaitable[None]],
    after: float,
) -> None:
    """The caller has its CancelledError within about a second, and others the key soon after the network is well."""
    stage = await make_stage_at_rest(make_pool, proxy, observe)
    proxy.delay_replies = 2.5
    claims = proxy.count(CLAIM)
    task = asyncio.create_task(acquire(stage.pool, KEY, ttl=60))
    await proxy.wait_for(CLAIM, count=claims + 1)
    await travel(after)
    assert not await observe.is_free(KEY)
    assert not task.done()
    cancelled = travel.moved
    task.cancel()
    await fate(stage, travel)
    with pytest.raises(asyncio.CancelledError):
        await travel.through(task, within=3)
    assert travel.moved - cancelled < 1.5
    proxy.delay_replies = 0
    async with await travel.through(acquire(LeaseTable(await make_pool()), KEY, wait=10), within=12) as held:
        assert held.fence == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
async def test_cancelled_claim_of_a_server_process_that_stands_still_is_given_back(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """A claim that is granted long after its caller has gone is given back as soon as it is."""
    stage = await make_stage_at_rest(make_pool, proxy, observe)
    with stopped(*await stage.backends()):
        with pytest.raises(TimeoutError):
            await travel.through(_acquire_within(0.2, stage), within=2)
        assert await observe.row(KEY) is None

    async def given_back() -> bool:
        row = await observe.row(KEY)
        return row is not None and row["released_at"] is not None

    await travel.until(given_back, within=5)
    assert await observe.fence(KEY) == 1


async def _acquire_within(seconds: float, stage: Stage) -> None:
    async with asyncio.timeout(seconds):
        await acquire(stage.pool, KEY, ttl=30)


@pytest.mark.slow("takes half a second or so")
async def test_claim_that_arrives_after_its_give_back_is_given_back_again(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """A claim that comes late to a server whose answer was not waited for any more keeps nobody out."""
    stage = await Stage.make(make_pool, proxy, observe)
    claims, releases = proxy.count(CLAIM), proxy.count(RELEASE)
    # Of this request alone: what was sent stays on its way, and what comes after it on another link is quick.
    proxy.delay_requests = 6
    # Given up after 3 s.
    claiming = asyncio.create_task(acquire(stage.pool, KEY, ttl=30))
    await proxy.wait_for(CLAIM, count=claims + 1)
    proxy.delay_requests = 0
    with pytest.raises(TimeoutError, match="the statement was given up"):
        await travel.through(claiming, within=5)
    await proxy.wait_for(RELEASE, count=releases + 1)

    async def arrived() -> bool:
        return await observe.row(KEY) is not None

    await travel.until(arrived, within=10)
    await travel.until(lambda: observe.is_free(KEY), within=10)
    assert await observe.fence(KEY) == 1


async def test_cancelled_claim_without_an_answer_keeps_its_connection_no_longer_for_a_long_ttl(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """With a long ttl a claim may go unanswered for 15 s; one that nobody waits for has the 3 s of any other."""
    stage = await make_stage_at_rest(make_pool, proxy, observe)
    claims = proxy.count(CLAIM)
    proxy.delay_requests = NEVER
    claiming = asyncio.create_task(acquire(stage.pool, KEY, ttl=600))
    await proxy.wait_for(CLAIM, count=claims + 1)
    proxy.delay_requests = 0
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await travel.through(claiming, within=3)
    assert await travel.through(stage.pool.fetchval("SELECT 1"), within=4) == 1


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("lost", [1, 3])
@pytest.mark.parametrize("successor", [None, "fresh", "app"])
async def test_release_whose_reply_was_lost_is_no_failure_and_spares_the_successor(
    *, make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, lost: int, successor: str | None
) -> None:
    """What is sent again finds the tenure over, which it ended itself; whoever came in meanwhile is left alone."""
    stage = await Stage.make(make_pool, proxy, observe)
    told = Recorder()
    drops = [proxy.drop_reply(RELEASE, nth=nth) for nth in range(1, lost + 1)]
    others = LeaseTable(await make_pool())
    holder = "app" if successor == "app" else None
    if successor is None:
        held = await acquire(stage.pool, KEY, ttl=300, observer=told)
        await travel.through(held.release(), within=30)
        assert await observe.is_free(KEY)
    else:
        held = await acquire(stage.pool, KEY, ttl=300, holder=holder, observer=told)
        leaving = asyncio.create_task(held.release())
        await travel.until(drops[0].happened.is_set, within=30)
        async with await acquire(others, KEY, ttl=300, holder=holder) as next_one:
            await travel.through(leaving, within=30)
            assert next_one.fence == 2
            assert not next_one.joined
            await next_one.confirm()
    await travel.until(lambda: told.of(Released), within=30)
    assert not told.of(ReleaseFailed)
    assert [drop.happened.is_set() for drop in drops] == [True] * lost
