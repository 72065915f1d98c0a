"""A revoked lease that is lost after all: to force, to somebody else, to the network; its body is told once more."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress

import pytest

from asyncpg_lease import (
    LeaseLostError,
    LeaseTable,
    acquire,
    lease,
)
from asyncpg_lease.events import Lost, Released, Revoked
from tests.conftest import MakePool
from tests.support.bodies import Bodies
from tests.support.leasing import Recorder, here, spin
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "steered"


@pytest.mark.parametrize("swallowed", [False, True])
async def test_loss_while_draining_cancels_the_clean_up(
    table: LeaseTable, observe: Observer, travel: Travel, *, swallowed: bool
) -> None:
    """Where somebody else has the row while a revoked body unwinds, it is told to stop once more, and at once."""
    told = Recorder()
    went_on = False
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30, drain=60, observer=told) as held:
            await table.revoke(KEY)
            try:
                await travel(15)
            finally:
                await observe.hand_over(KEY)
                with suppress(asyncio.CancelledError) if swallowed else nullcontext():
                    await travel(15)
                    went_on = True
                assert not held.is_held
    assert not went_on
    assert caught.value.reason == "taken_over"
    assert here().cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1)
    assert [type(event) for event in told.events if type(event) in (Revoked, Lost)] == [Revoked, Lost]
    record = await observe.row(KEY)
    assert record is not None
    assert (record["holder"], record["released_at"]) == ("other", None)


async def test_loss_that_the_clean_up_itself_finds_leaves_no_cancellation_behind(
    table: LeaseTable, observe: Observer
) -> None:
    """A renewal by hand that finds the loss cancels its own task, which may never await again inside the block."""
    with pytest.raises(LeaseLostError):
        async with lease(table, KEY, ttl=30, drain=10) as held:
            await table.revoke(KEY)
            await held.renew()
            try:
                await asyncio.sleep(60)
            finally:
                await observe.hand_over(KEY)
                with suppress(LeaseLostError):
                    await held.renew()
    assert here().cancelling() == 0
    await spin(5)


async def test_loss_while_draining_wakes_wait_lost(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """wait_stopping() returns at the revocation, wait_lost() only when the lease is gone."""
    async with lease(table, KEY, ttl=30, drain=60, on_lost="flag") as held:
        await table.revoke(KEY)
        lost = asyncio.create_task(held.wait_lost())
        assert await travel.through(held.wait_stopping(), within=12) == "revoked"
        assert await held.wait_stopping() == "revoked"
        await travel(5)
        assert not lost.done()
        await observe.hand_over(KEY)
        loss = await travel.through(lost, within=12)
        assert loss is not None
        assert loss.reason == held.stop_reason == await held.wait_stopping() == "taken_over"
    async with lease(table, "other") as held:
        waits = [asyncio.create_task(held.wait_lost()), asyncio.create_task(held.wait_stopping())]
        await asyncio.sleep(0)
    assert await asyncio.gather(*waits) == [None, None]


@pytest.mark.slow("takes half a second or so")
async def test_unreachable_server_while_draining_stops_the_clean_up_in_time(
    table: LeaseTable, make_pool: MakePool, proxy: Proxy, bodies: Bodies, travel: Travel
) -> None:
    """A frozen network during the drain: the clean-up is told before anybody else can start."""

    async def succeed() -> None:
        async with lease(near, KEY, wait=300, ttl=10):
            with bodies.running("successor"):
                await asyncio.sleep(0.1)

    far, near = await make_pool(proxy.dsn), LeaseTable(await make_pool(), poll=10)
    with pytest.raises(LeaseLostError) as caught:
        async with lease(far, KEY, ttl=30, drain=120) as held:
            await table.revoke(KEY)
            try:
                await travel(15)
            finally:
                proxy.freeze()
                successor = asyncio.create_task(succeed())
                with bodies.running("holder"):
                    await travel(60)
    assert caught.value.reason == "unreachable"
    assert not held.is_held
    await travel.through(successor, within=15)
    proxy.thaw()
    assert [body.who for body in bodies.all] == ["holder", "successor"]
    assert bodies.overlapping() == []


async def test_forced_revocation_cancels_the_body_and_spares_the_successor(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """The body learns by its next renewal that an operator ended it, and its exit touches nobody's row."""
    told = Recorder()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, "alone", ttl=30, observer=told):
            await table.revoke("alone", force=True)
            await travel(15)
    assert caught.value.reason == "revoked"
    assert [type(event) for event in told.events if type(event) in (Revoked, Lost, Released)] == [Lost]
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30) as held:
            await table.revoke(KEY, force=True)
            with pytest.raises(LeaseLostError, match="revoked"):
                await held.confirm()
            successor = await acquire(table, KEY, ttl=60, holder="successor")
            await travel(15)
    assert (caught.value.reason, caught.value.taken_by) == ("taken_over", "successor")
    await successor.confirm()
    await successor.release()
    assert await observe.fence(KEY) == 2


@pytest.mark.parametrize("isolation", [None, "repeatable_read"])
async def test_forced_revocation_is_told_by_a_guard(table: LeaseTable, pool: Pool, isolation: str | None) -> None:
    """A fenced write after it is refused, with its reason, whatever the transaction's snapshot."""
    held = await acquire(table, KEY, ttl=60)
    await table.revoke(KEY, force=True)
    async with pool.acquire() as connection:
        with pytest.raises(LeaseLostError) as caught:
            async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
                await held.guard(connection)
    assert caught.value.reason == "revoked"
