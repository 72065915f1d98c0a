"""When renewals are sent, and what an answer does."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, ReleaseFailed, Renewed, RenewFailed
from tests.conftest import MakePool
from tests.support.inside import parts_of
from tests.support.leasing import Recorder, until, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RENEW
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "beating"


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(("ttl", "heartbeat", "due"), [(30, None, 10), (60, 6, 6)])
async def test_first_beat_is_due_a_heartbeat_after_the_claim_was_sent(
    *, make_pool: MakePool, proxy: Proxy, travel: Travel, ttl: float, heartbeat: float | None, due: float
) -> None:
    """The first renewal is due ttl/3, or `heartbeat`, after the claim was sent, later ones a tenth sooner."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    proxy.forget()
    async with lease(pool, KEY, ttl=ttl, heartbeat=heartbeat):
        await travel.until(lambda: proxy.count(RENEW) >= 3, within=6 * due)
    claim, *renewals = [each.at for each in proxy.statements if CLAIM in each.sql or RENEW in each.sql]
    # A tick is a second, and the machine may take another one.
    assert due - 0.5 < renewals[0] - claim < due + 2
    assert 0.9 * due - 0.5 < renewals[1] - renewals[0] < due + 2


async def test_beat_of_a_lease_entered_late_counts_from_the_claim(table: LeaseTable, travel: Travel) -> None:
    """Entering does not begin the ttl anew: what is due already is sent at once."""
    told = Recorder()
    held = await acquire(table, KEY, ttl=60, observer=told)
    await travel(25)
    async with held:
        assert await travel.until(lambda: told.of(Renewed), within=19) < 2


async def test_lease_entered_shortly_before_its_deadline_is_renewed_in_time(table: LeaseTable, travel: Travel) -> None:
    """A lease that has less time left than from one look at it to the next is renewed at once, and kept."""
    told = Recorder()
    held = await acquire(table, KEY, ttl=80, heartbeat=12, grace=55, observer=told)
    # The next look would be in 1 s.
    await travel(held.remaining - 55 - 0.9)
    async with held:
        assert await travel.until(lambda: told.of(Renewed), within=5) < 0.9
        await held.confirm()


@pytest.mark.slow("takes half a second or so")
async def test_beats_go_on_while_a_cancelled_body_unwinds(
    table: LeaseTable, pool: Pool, observe: Observer, travel: Travel
) -> None:
    """The heartbeat runs until the body has been left, its finally included; nobody gets in before that."""
    told = Recorder()
    ended = 0.0

    async def job() -> None:
        nonlocal ended
        async with lease(table, KEY, ttl=30, observer=told):
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(40)
                ended = time.monotonic()

    task = asyncio.create_task(job())
    await until(lambda: told.events)
    rival = asyncio.create_task(acquire(LeaseTable(pool, poll=4), KEY, wait=300))
    await travel(3)
    task.cancel()
    await travel.until(rival.done, within=60)
    held = await rival
    entered = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 < ended <= entered
    assert held.fence == 2
    assert len(told.of(Renewed)) >= 3
    assert not told.of(Lost)
    await held.release()
    assert await observe.is_free(KEY)


async def test_beat_whose_key_share_is_held_by_a_guard_goes_through(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """A fenced transaction's lock does not hold up the renewals of the lease that it checks."""
    told = Recorder()
    async with lease(table, KEY, ttl=30, heartbeat=4, observer=told), observe.locked(KEY, "KEY SHARE"):
        await travel.until(lambda: len(told.of(Renewed)) >= 3, within=20)
    assert not told.of(RenewFailed)


@pytest.mark.slow("takes half a second or so")
async def test_renewals_answered_out_of_order_keep_the_newest_trust(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """An answer that was overtaken by that of a later renewal does not lower the trust."""
    pool = await make_pool(proxy.dsn, min_size=2, max_size=2)
    await LeaseTable(pool).create()
    # A link that is silent for a tenth of the ttl would be given up.
    held = await acquire(pool, KEY, ttl=150)
    await asyncio.gather(held.renew(), held.renew())
    await until(lambda: pool.get_idle_size() == 2)
    proxy.delay_replies = 12
    slow = asyncio.create_task(held.renew())
    # The latency is that of bytes that arrive from now on: the first answer arrives, and is on its way.
    await travel(6)
    proxy.delay_replies = 0
    await held.renew()
    newest = held.remaining
    started = time.monotonic()
    assert not slow.done()
    await travel.until(slow.done, within=15)
    await slow
    assert held.remaining == pytest.approx(newest - (time.monotonic() - started), abs=2)
    await held.release()


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_trust_counts_from_before_the_request_was_sent(make_pool: MakePool, proxy: Proxy, travel: Travel) -> None:
    """However long an answer takes, its ttl is counted from before the claim, or the renewal, was sent."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    # A pool that is not answered for five seconds would close the connection.
    proxy.delay_replies = 2.5
    held = await travel.through(acquire(pool, KEY, ttl=100), within=20)
    assert held.remaining <= 97.5
    proxy.delay_replies = 0
    await travel.through(held.renew(), within=20)
    assert held.remaining > 97.5
    proxy.delay_replies = 2.5
    await travel.through(held.renew(), within=20)
    assert held.remaining <= 97.5
    proxy.delay_replies = 0
    await travel.through(held.release(), within=20)


async def test_loss_learned_after_the_body_has_ended_is_a_warning(
    table: LeaseTable, observe: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    """A release that finds the tenure over raises nothing: the work was done before anybody could know."""
    told = Recorder()
    async with lease(table, KEY, ttl=30, observer=told):
        await observe.hand_over(KEY)
    assert [event.error for event in told.of(ReleaseFailed)] == ["the tenure was over before its release"]
    assert not told.of(Lost)
    assert [record.levelname for record in caplog.records if record.levelno > 20] == ["WARNING"]
    record = await observe.row(KEY)
    assert record is not None
    assert record["holder"] == "other"


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_renewal_under_way_when_the_body_ends_is_ignored(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """An answer that comes after the body has ended is neither a loss nor a warning of one."""
    pool = await make_pool(proxy.dsn, max_size=2)
    await warm(pool)
    told = Recorder()
    async with lease(pool, KEY, ttl=60, heartbeat=5, observer=told):
        # The first one is prepared as well, which takes an answer more.
        await travel.until(lambda: proxy.count(RENEW), within=8)
        await observe.hand_over(KEY, fence=1)
        proxy.delay_replies = 4
        await travel.until(lambda: proxy.count(RENEW) == 2, within=8)
        proxy.delay_replies = 0
    assert not told.of(Lost)
    await travel(8)
    assert not told.of(Lost)


async def test_parts_of_a_lease_say_what_they_are(table: LeaseTable) -> None:
    """Whatever lives has a repr that names its key or its table."""
    async with lease(table, KEY) as held:
        heartbeat, keeper, *others = map(repr, parts_of(held))
    assert KEY in heartbeat
    assert "1 leases" in keeper
    assert [text for text in others if '"lease"' not in text] == []
