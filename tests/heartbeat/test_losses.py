"""Each reason for a loss, and that the body is stopped in time for each."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Lost
from tests.conftest import MakePool
from tests.support.harms import Harm, harms
from tests.support.inside import upkeep_that_fails
from tests.support.leasing import Recorder, here, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RENEW
from tests.support.travel import Travel

KEY = "lost"
HARMS: dict[str, tuple[Harm, str, str | None]] = {
    **harms(KEY),
    "truncated": (lambda observe: observe.connection.execute("TRUNCATE lease"), "deleted", None),
}


@pytest.mark.parametrize("harm", HARMS)
async def test_loss_that_a_beat_finds_has_its_reason(
    table: LeaseTable, observe: Observer, travel: Travel, harm: str
) -> None:
    """The next renewal finds the row changed and cancels the body, with the reason and whoever has the key now."""
    act, reason, taken_by = HARMS[harm]
    told = Recorder()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30, observer=told) as held:
            await act(observe)
            # The next renewal is due after 10 s, and the deadline comes after 27.
            await travel(20)
    assert (caught.value.reason, caught.value.taken_by) == (reason, taken_by)
    assert (caught.value.key, caught.value.holder, caught.value.fence) == (KEY, held.holder, 1)
    assert caught.value.__cause__ is None
    assert [(event.reason, event.taken_by) for event in told.of(Lost)] == [(reason, taken_by)]
    assert held.lost is caught.value
    assert here().cancelling() == 0


@pytest.mark.parametrize("harm", HARMS)
async def test_loss_that_verify_finds_has_its_reason_and_cancels_nothing(
    table: LeaseTable, observe: Observer, harm: str
) -> None:
    """verify() asks the server and raises in its caller alone."""
    act, reason, taken_by = HARMS[harm]
    held = await acquire(table, KEY, ttl=30)
    await held.confirm()
    await act(observe)
    with pytest.raises(LeaseLostError) as caught:
        await held.confirm()
    assert (caught.value.reason, caught.value.taken_by) == (reason, taken_by)
    assert held.lost is None
    await held.release()


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_exit_after_a_loss_by_the_deadline_needs_no_database(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """On a frozen network the body is stopped and the block left within the ttl and two seconds."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    started = time.monotonic()
    with pytest.raises(LeaseLostError):
        async with lease(pool, KEY, ttl=30):
            proxy.freeze()
            await travel(60)
    assert time.monotonic() - started < 32
    proxy.thaw()


@pytest.mark.slow("takes half a second or so")
async def test_error_of_the_database_is_the_cause_of_the_loss(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """A loss by the deadline has the last error of the renewals as its cause."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30):
            await observe.connection.execute("ALTER TABLE lease RENAME TO elsewhere")
            await travel(40)
    assert caught.value.reason == "unreachable"
    assert type(caught.value.__cause__).__name__ == "LeaseTableError"
    assert caught.value.__suppress_context__


@pytest.mark.usefixtures("table")
async def test_renewal_by_hand_that_is_answered_past_the_deadline_is_too_late(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """A lease that was not entered, and was not held any more for whoever looked, is not held again."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    held = await acquire(pool, KEY, ttl=100, heartbeat=10, grace=65)
    # The first one would be prepared as well, which takes an answer more.
    await held.renew()
    await travel(held.remaining - 65 - 4)
    proxy.delay_replies = 8
    renewal = asyncio.create_task(held.renew())
    await travel.until(lambda: not held.is_held, within=6)
    assert not renewal.done()
    await travel.until(renewal.done, within=15)
    with pytest.raises(LeaseLostError) as caught:
        await renewal
    proxy.delay_replies = 0
    assert caught.value.reason == "expired"
    assert not held.is_held


async def test_is_held_is_false_past_the_deadline_whatever_else_happens(table: LeaseTable, travel: Travel) -> None:
    """The property asks the clock and nobody else: a loop that stood still past the deadline holds nothing."""
    held = await acquire(table, KEY, ttl=30)
    seen = [held.is_held]
    travel.stall(28)
    assert [*seen, held.is_held] == [True, False]
    with pytest.raises(LeaseLostError):
        held.raise_if_stopping()
    await held.release()


@pytest.mark.usefixtures("table")
async def test_renewal_of_one_of_many_leases_that_is_lost_leaves_the_others(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """Leases that are renewed in one statement are lost one by one."""
    pool = await make_pool(proxy.dsn, max_size=1)
    leases = [await acquire(pool, f"{KEY}-{number}", ttl=30, on_lost="flag") for number in range(3)]
    for held in leases:
        await held.__aenter__()
    await observe.hand_over(f"{KEY}-1")
    await travel.until(lambda: leases[1].lost, within=12)
    sent = proxy.count(RENEW)
    await travel.until(lambda: proxy.count(RENEW) > sent, within=12)
    assert [held.is_held for held in leases] == [True, False, True]
    for held in leases:
        await held.__aexit__(None, None, None)


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_lease_that_cannot_be_looked_after_costs_no_other_its_deadline(
    make_pool: MakePool, proxy: Proxy, travel: Travel, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the upkeep of one lease is logged, and the others of its table are renewed and given up in time."""
    pool = await make_pool(proxy.dsn)
    async with lease(pool, "broken", ttl=60) as broken:
        with upkeep_that_fails(broken), pytest.raises(LeaseLostError):
            async with lease(pool, "whole", ttl=15) as whole:
                expires_at = whole.expires_at
                await travel.until(lambda: whole.expires_at > expires_at, within=8)
                proxy.freeze()
                await travel(20)
        proxy.thaw()
    complaints = [record for record in caplog.records if record.getMessage().startswith("lease heartbeat failed")]
    assert complaints[0].exc_info
    assert {getattr(record, "lease_key", None) for record in complaints} == {"broken"}
