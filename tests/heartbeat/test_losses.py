"""Each reason for a loss, and that the body is stopped in time for each."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Lost
from tests.conftest import MakePool
from tests.support.harms import Harm, harms
from tests.support.leasing import Recorder, here, until, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RENEW

KEY = "lost"
HARMS: dict[str, tuple[Harm, str, str | None]] = {
    **harms(KEY),
    "truncated": (lambda observe: observe.connection.execute("TRUNCATE lease"), "deleted", None),
}


@pytest.mark.parametrize("harm", HARMS)
async def test_loss_that_a_beat_finds_has_its_reason(table: LeaseTable, observe: Observer, harm: str) -> None:
    """The next renewal finds the row changed and cancels the body, with the reason and whoever has the key now."""
    act, reason, taken_by = HARMS[harm]
    told = Recorder()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=0.9, observer=told) as held:
            await act(observe)
            started = time.monotonic()
            await asyncio.sleep(10)
    assert time.monotonic() - started < 0.6
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
    await held.verify()
    await act(observe)
    with pytest.raises(LeaseLostError) as caught:
        await held.verify()
    assert (caught.value.reason, caught.value.taken_by) == (reason, taken_by)
    assert held.lost is None
    await held.release()


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("ttl", [0.3, 1.0])
async def test_exit_after_a_loss_by_the_deadline_needs_no_database(
    make_pool: MakePool, proxy: Proxy, ttl: float
) -> None:
    """On a frozen network the body is stopped and the block left within the ttl and two seconds."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    started = time.monotonic()
    with pytest.raises(LeaseLostError):
        async with lease(pool, KEY, ttl=ttl):
            proxy.freeze()
            await asyncio.sleep(10)
    assert time.monotonic() - started < ttl + 2
    proxy.thaw()


async def test_error_of_the_database_is_the_cause_of_the_loss(table: LeaseTable, observe: Observer) -> None:
    """A loss by the deadline has the last error of the renewals as its cause."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=2):
            await observe.connection.execute("ALTER TABLE lease RENAME TO elsewhere")
            await asyncio.sleep(10)
    assert caught.value.reason == "unreachable"
    assert type(caught.value.__cause__).__name__ == "LeaseTableError"
    assert caught.value.__suppress_context__


@pytest.mark.usefixtures("table")
async def test_renewal_by_hand_that_is_answered_past_the_deadline_is_too_late(
    make_pool: MakePool, proxy: Proxy
) -> None:
    """A lease that was not entered, and was not held any more for whoever looked, is not held again."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    held = await acquire(pool, KEY, ttl=4, grace=1.3)
    await asyncio.sleep(held.remaining - 1.3 - 0.3)
    proxy.delay_replies = 0.6
    renewal = asyncio.create_task(held.renew())
    await until(lambda: not held.is_held)
    with pytest.raises(LeaseLostError) as caught:
        await renewal
    proxy.delay_replies = 0
    assert caught.value.reason == "expired"
    assert not held.is_held


async def test_is_held_is_false_past_the_deadline_whatever_else_happens(table: LeaseTable) -> None:
    """The property asks the clock and nobody else: a loop that stood still past the deadline holds nothing."""

    async def use(held: Lease) -> list[bool]:
        seen = [held.is_held]
        time.sleep(0.3)
        return [*seen, held.is_held]

    held = await acquire(table, KEY, ttl=0.3)
    assert await use(held) == [True, False]
    with pytest.raises(LeaseLostError):
        held.raise_if_lost()
    await held.release()


@pytest.mark.usefixtures("table")
async def test_renewal_of_one_of_many_leases_that_is_lost_leaves_the_others(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """Leases that are renewed in one statement are lost one by one."""
    pool = await make_pool(proxy.dsn, max_size=1)
    leases = [await acquire(pool, f"{KEY}-{number}", ttl=1.2, on_lost="flag") for number in range(3)]
    for held in leases:
        await held.__aenter__()
    await observe.hand_over(f"{KEY}-1")
    await asyncio.wait_for(leases[1].wait_lost(), 2)
    sent = proxy.count(RENEW)
    await proxy.wait_for(RENEW, count=sent + 1)
    assert [held.is_held for held in leases] == [True, False, True]
    for held in leases:
        await held.__aexit__(None, None, None)


async def test_lease_that_cannot_be_looked_after_costs_no_other_its_deadline(
    make_pool: MakePool, table: LeaseTable, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the upkeep of one lease is logged, and the others of its table are renewed and given up in time."""
    assert table.name
    pool = await make_pool(proxy.dsn)

    def fail(now: float) -> bool:
        raise ValueError(now)

    async with lease(pool, "broken", ttl=60) as broken:
        heartbeat = broken._holding._heartbeat
        heartbeat.check_deadline = fail  # type: ignore[method-assign]
        with pytest.raises(LeaseLostError):
            async with lease(pool, "whole", ttl=0.6) as whole:
                expires_at = whole.expires_at
                await until(lambda: whole.expires_at > expires_at)
                proxy.freeze()
                await asyncio.sleep(60)
        proxy.thaw()
        del heartbeat.check_deadline
    complaints = [record for record in caplog.records if record.getMessage().startswith("lease heartbeat failed")]
    assert complaints[0].exc_info
    assert {getattr(record, "lease_key", None) for record in complaints} == {"broken"}
