"""Tenures that an advance ended: their keys stay shut, for the same holder too, and are told apart."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from asyncpg_lease import (
    LeaseLostError,
    LeaseTable,
    LeaseUnavailableError,
    acquire,
    lease,
    try_acquire,
)
from tests.floor.calls import use
from tests.support.observe import Observer

KEY = "k"


@pytest.mark.slow("takes half a second or so")
async def test_advance_ends_live_tenures_and_lets_nobody_start_beside_them(
    table: LeaseTable, observe: Observer
) -> None:
    """The body is stopped at its next renewal, and its key stays shut until the row's own expiry."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=6, heartbeat=0.5):
            expires_at = (await observe.rows())[0]["expires_at"]
            await table.advance_fences(10)
            with pytest.raises(LeaseUnavailableError):
                await acquire(table, KEY)
            await asyncio.sleep(20)
    assert (caught.value.fence, caught.value.reason) == (1, "taken_over")
    with pytest.raises(LeaseUnavailableError) as refused:
        await acquire(table, KEY)
    assert refused.value.fence == 11
    row = await observe.row(KEY)
    assert row is not None
    assert row["expires_at"] >= expires_at
    await observe.expire(KEY)
    assert await use(table, KEY) == 12


async def test_advance_keeps_the_same_holder_out_as_well(table: LeaseTable, observe: Observer) -> None:
    """A claim by an explicit holder joins no tenure that was lifted: the body of its other handle is still at work."""
    async with lease(table, KEY, holder="one", on_lost="flag") as held:
        assert await table.advance_fences(10) == 11
        with pytest.raises(LeaseUnavailableError):
            await acquire(table, KEY, holder="one")
        with pytest.raises(LeaseLostError):
            await held.confirm()
    assert await try_acquire(table, KEY, holder="one") is None
    await observe.expire(KEY)
    again = await acquire(table, KEY, holder="one")
    assert (again.fence, again.joined) == (12, False)
    await again.release()
    assert await observe.is_free(KEY)


async def test_advance_marks_live_tenures_as_revoked_and_nothing_else(table: LeaseTable, observe: Observer) -> None:
    """Whoever looks sees that such a key is held by a tenure that is over; an earlier mark stays."""
    handles = [await acquire(table, key) for key in ("asked", "held", "crashed")]
    asked = await table.revoke("asked")
    await observe.expire("crashed")
    await use(table, "free")
    await (await acquire(table, "resting", min_hold=60)).release()
    await table.advance_fences(10)
    infos = {info.key: info for info in await table.leases()}
    assert {key: info.revoked_at is not None for key, info in infos.items()} == {
        "asked": True,
        "crashed": False,
        "free": False,
        "held": True,
        "resting": False,
    }
    assert asked.info is not None
    assert infos["asked"].revoked_at == asked.info.revoked_at
    assert infos["held"].state == "held"
    await table.advance_fences(10)
    again = await table.get("held")
    assert again is not None
    assert replace(infos["held"], fence=21, expires_in=again.expires_in) == again
    for held in handles:
        await held.release()


async def test_key_of_a_lifted_tenure_is_opened_by_force(table: LeaseTable) -> None:
    """An operator who knows that the old body is gone need not wait; the new fence is a greater one."""
    held = await acquire(table, KEY, ttl=3600)
    fence = await table.advance_fences(10)
    assert (await table.revoke(KEY)).outcome == "already_revoked"
    assert (await table.revoke(KEY, force=True)).outcome == "ended"
    assert await use(table, KEY) == fence + 1
    await held.release()
