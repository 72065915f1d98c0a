"""What a revocation does to the lease that it asks for: its body ends first, and nobody starts before."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from asyncpg_lease import (
    LeaseLostError,
    LeaseTable,
    LeaseUnavailableError,
    acquire,
    lease,
    try_acquire,
)
from asyncpg_lease.events import Acquired, Lost, Released, ReleaseFailed, RenewFailed, Revoked
from tests.support.bodies import Bodies
from tests.support.leasing import Recorder, here
from tests.support.observe import Observer
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "steered"


async def test_revocation_cancels_the_body_and_releases(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """Within a heartbeat the body is cancelled, the loss says why, and the row is released, in order."""
    told = Recorder()
    with pytest.raises(LeaseLostError, match=r"is revoked: an operator wants the key") as caught:
        async with lease(table, KEY, ttl=30, observer=told) as held:
            await table.revoke(KEY)
            # A heartbeat and a tick.
            await travel(12)
    assert (caught.value.reason, caught.value.fence, caught.value.taken_by) == ("revoked", 1, None)
    assert caught.value.__cause__ is None
    assert here().cancelling() == 0
    assert [type(event) for event in told.events if type(event) in (Acquired, Revoked, Lost, Released)] == [
        Acquired,
        Revoked,
        Released,
    ]
    assert (told.of(Revoked)[0].fence, told.of(Revoked)[0].drain) == (1, 30)
    record = await observe.row(KEY)
    assert record is not None
    assert record["released_at"] is not None
    assert await observe.is_free(KEY)
    assert (held.stop_reason, held.lost, held.is_held, held.remaining) == ("revoked", None, False, 0.0)


@pytest.mark.slow("takes half a second or so")
async def test_revoked_lease_is_held_until_its_body_has_ended(
    table: LeaseTable, observe: Observer, pool: Pool, bodies: Bodies, travel: Travel
) -> None:
    """A clean-up longer than the ttl is renewed through, may write guarded, and nobody starts before its end."""
    told = Recorder()
    cleaned_up = []

    async def successor() -> None:
        async with lease(LeaseTable(pool, poll=3), KEY, ttl=10, wait=300) as held:
            with bodies.running("successor"):
                assert held.fence == 2

    with pytest.raises(LeaseLostError):
        async with lease(table, KEY, ttl=15, drain=60, observer=told) as held:
            task = asyncio.create_task(successor())
            await table.revoke(KEY)
            with bodies.running("holder"):
                try:
                    await travel(10)
                finally:
                    await travel(25)
                    assert held.is_held
                    assert held.remaining > 0
                    await held.confirm()
                    await held.renew()
                    async with pool.acquire() as connection, held.transaction(connection):
                        await held.guard(connection)
                    with pytest.raises(LeaseLostError):
                        held.raise_if_stopping()
                    cleaned_up.append(KEY)
    await travel.through(task, within=4)
    assert cleaned_up == [KEY]
    assert bodies.overlapping() == []
    assert [body.who for body in bodies.all] == ["holder", "successor"]
    assert told.of(Lost) == told.of(ReleaseFailed) == []
    assert len(told.of(Revoked)) == 1
    assert await observe.fence(KEY) == 2


async def test_body_that_does_not_end_in_its_drain_is_given_up(
    table: LeaseTable, observe: Observer, travel: Travel, caplog: pytest.LogCaptureFixture
) -> None:
    """Past the drain it is an ERROR: cancelled once more, not held, not renewed, not released; the row runs out."""
    told = Recorder()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30, drain=6, observer=told) as held:
            await table.revoke(KEY)
            try:
                await travel(20)
            finally:
                moved = travel.moved
                with pytest.raises(asyncio.CancelledError):
                    await travel(20)
                assert 4 < travel.moved - moved <= 6
                assert not held.is_held
                assert held.lost is not None
                assert await held.wait_lost() is held.lost
                with pytest.raises(LeaseLostError):
                    await held.renew()
                assert not await observe.is_free(KEY)
                await travel.until(lambda: observe.is_free(KEY), within=32)
    assert here().cancelling() == 0
    assert caught.value.reason == "revoked"
    assert "had not ended within its drain of 6 s" in str(caught.value.__cause__)
    assert [type(event) for event in told.events if type(event) in (Revoked, Lost, Released, ReleaseFailed)] == [
        Revoked,
        Lost,
    ]
    (lost,) = told.of(Lost)
    assert lost.reason == "revoked"
    assert "drain" in str(lost.error)
    loud = [record for record in caplog.records if record.module == "events" and record.levelno >= logging.WARNING]
    assert [record.levelname for record in loud] == ["WARNING", "ERROR"]
    record = await observe.row(KEY)
    assert record is not None
    assert record["released_at"] is None


@pytest.mark.slow("takes half a second or so")
async def test_flagged_body_is_told_and_ends_when_it_likes(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """on_lost="flag": nothing is cancelled or raised; wait_stopping() wakes, and the block's end releases."""
    async with lease(table, KEY, ttl=30, on_lost="flag", drain=60) as held:
        waiter = asyncio.create_task(held.wait_stopping())
        await table.revoke(KEY)
        assert await travel.through(waiter, within=12) == held.stop_reason == "revoked"
        assert held.lost is None
        await travel(35)
        assert held.is_held
        assert here().cancelling() == 0
        with pytest.raises(LeaseLostError):
            held.raise_if_stopping()
    record = await observe.row(KEY)
    assert record is not None
    assert record["released_at"] is not None


async def test_flagged_body_past_its_drain_is_not_held(table: LeaseTable, travel: Travel) -> None:
    """A flagged body that goes on past the drain is told by is_held, and by an event."""
    told = Recorder()
    async with lease(table, KEY, ttl=30, on_lost="flag", drain=5, observer=told) as held:
        await table.revoke(KEY)
        await travel.until(lambda: told.of(Lost), within=18)
        assert not held.is_held


async def test_body_that_swallows_the_cancellation_still_gets_the_loss(table: LeaseTable, travel: Travel) -> None:
    """LeaseLostError comes out of the block all the same, and the task is not left marked as cancelled."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30):
            await table.revoke(KEY)
            with suppress(asyncio.CancelledError):
                await travel(15)
    assert caught.value.reason == "revoked"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1)


async def test_cancellation_by_the_user_while_draining_comes_out(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """A user's cancel of the revoked body is not taken for the revocation's, and the row is released."""

    async def body() -> None:
        async with lease(table, KEY, ttl=30, drain=60):
            await table.revoke(KEY)
            try:
                await asyncio.sleep(60)
            finally:
                draining.set()
                await asyncio.sleep(60)

    draining = asyncio.Event()
    task = asyncio.create_task(body())
    await travel.until(draining.is_set, within=15)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    await observe.until_free(KEY, within=5)


async def test_revoked_lease_that_is_not_entered_yet_is_released_by_entering(
    table: LeaseTable, observe: Observer
) -> None:
    """A renewal by hand tells it; entering raises, and the row is free, since no block will ever be left."""
    held = await acquire(table, KEY, ttl=30)
    await table.revoke(KEY)
    await held.renew()
    assert held.is_held
    assert await held.wait_stopping() == held.stop_reason == "revoked"
    with pytest.raises(LeaseLostError):
        async with held:
            pytest.fail("entered")
    await observe.until_free(KEY, within=5)
    await held.release()


async def test_every_handle_of_a_revoked_tenure_is_told(table: LeaseTable, travel: Travel) -> None:
    """Handles of one explicit holder share the tenure, and so its revocation."""
    first = await acquire(table, KEY, ttl=30, holder="app", on_lost="flag")
    second = await acquire(table, KEY, ttl=30, holder="app", on_lost="flag")
    async with first, second:
        await table.revoke(KEY)
        await travel.until(lambda: first.stop_reason and second.stop_reason, within=12)
        assert first.is_held
        assert second.is_held


async def test_holder_that_is_restarted_does_not_keep_a_revoked_key(table: LeaseTable, observe: Observer) -> None:
    """Nobody joins a revoked tenure: an explicit holder that crashes and comes back again and again lets it run out."""
    held = await acquire(table, KEY, ttl=30, holder="worker-1")
    await table.revoke(KEY)
    row = await observe.row(KEY)
    with pytest.raises(LeaseUnavailableError) as caught:
        await acquire(table, KEY, ttl=60, holder="worker-1")
    assert caught.value.holder == "worker-1"
    assert await observe.row(KEY) == row
    await observe.expire(KEY)
    again = await acquire(table, KEY, ttl=60, holder="worker-1")
    assert (again.joined, again.fence) == (False, 2)
    await again.release()
    await held.release()


async def test_revocation_reaches_a_holder_whose_row_is_locked(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """A row that another session has locked cannot be renewed, but says that it is revoked."""
    told = Recorder()
    async with lease(table, KEY, ttl=30, on_lost="flag", observer=told) as held:
        await table.revoke(KEY)
        async with observe.locked(KEY):
            await travel.until(lambda: held.stop_reason, within=12, rows=False)
            assert held.is_held
            assert told.of(RenewFailed)


async def test_revoked_lease_keeps_its_min_hold(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """A release for a revocation is a release: the key stays shut as long as its min_hold says."""
    with pytest.raises(LeaseLostError):
        async with lease(table, KEY, ttl=30, min_hold=60):
            await table.revoke(KEY)
            await travel(15)
    info = await table.get(KEY)
    assert info is not None
    assert info.state == "resting"
    assert await try_acquire(table, KEY) is None
    assert not await observe.is_free(KEY)


async def test_revocation_of_an_ended_body_changes_nothing(table: LeaseTable) -> None:
    """A request that comes after the last renewal is not heard of: the block ends as it would have."""
    async with lease(table, KEY, ttl=60) as held:
        await table.revoke(KEY)
    assert held.stop_reason is None
    assert held.lost is None
