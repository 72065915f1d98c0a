"""The whole life of a lease on one pool, from the table's creation to a loss."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, LeaseUnavailableError, acquire, lease, try_acquire
from asyncpg_lease.events import Waiting
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer

# A fixed beat makes renewals quick, the long ttl leaves a busy machine its time.
TTL = 30.0
BEAT = 0.05
RENEWALS = 2
PASSED = 20.0


async def expect_a_whole_life(table: LeaseTable, observe: Observer, key: str = "k") -> None:
    """Lead one key through everything that a lease can come to, and compare each step with the row itself."""
    await table.create()
    await table.verify()
    assert await table.get(key) is None
    await hold(table, observe, key)
    await hand_over_to_a_waiter(table, observe, key)
    await join(table, key)
    await rest(table, observe, key)
    await lose(table, observe, key)
    await take_over(table, observe, key)
    await table.aclose()


async def hold(table: LeaseTable, observe: Observer, key: str) -> None:
    """Acquire, be refused beside it, look at it, renew it and release it."""
    held = await acquire(table, key, ttl=TTL, heartbeat=BEAT)
    row = await observe.row(key)
    assert row is not None
    assert (held.key, held.holder, held.fence) == (row["key"], row["holder"], row["fence"]) == (key, held.holder, 1)
    assert (held.acquired_at, held.expires_at) == (row["acquired_at"], row["expires_at"])
    assert held.expires_at.utcoffset() == timedelta()
    with pytest.raises(LeaseUnavailableError) as caught:
        await acquire(table, key)
    refusal = caught.value
    assert (refusal.holder, refusal.fence, refusal.expires_at) == (held.holder, 1, held.expires_at)
    assert refusal.expires_at is not None
    assert refusal.expires_at.utcoffset() == timedelta()
    assert refusal.retry_after is not None
    assert 0 < refusal.retry_after <= TTL
    assert await try_acquire(table, key) is None
    info = await table.get(key)
    assert info is not None
    assert (info.key, info.holder, info.fence, info.state) == (key, held.holder, 1, "held")
    assert (info.acquired_at, info.expires_at) == (held.acquired_at, held.expires_at)
    assert 0 < info.expires_in <= TTL
    assert [one.expires_at for one in await table.leases(key)] == [held.expires_at]
    assert [one.key for one in await table.leases(key, limit=1)] == [key]
    async with held:
        for _ in range(RENEWALS):
            # As if most of the ttl had passed without a renewal; the next beat makes up for it.
            await until_renewed(observe, key, -PASSED)
        await held.confirm()
        await held.renew()
        after = await observe.row(key)
        assert after is not None
        assert (after["holder"], after["fence"]) == (held.holder, 1)
        assert after["expires_at"] > row["expires_at"]
        assert after["expires_at"] - after["acquired_at"] > timedelta(seconds=RENEWALS * PASSED + TTL - 1)
        assert held.is_held
    assert await observe.is_free(key)


async def until_renewed(observe: Observer, key: str, seconds: float) -> None:
    """Shift the row in time, and wait until a renewal has taken it past the expiry that it had before."""
    before = await observe.row(key)
    assert before is not None
    await observe.shift(key, seconds)
    async with asyncio.timeout(8):
        while (now := await observe.row(key)) is None or now["expires_at"] <= before["expires_at"]:
            await asyncio.sleep(0.005)


async def hand_over_to_a_waiter(table: LeaseTable, observe: Observer, key: str) -> None:
    """Have one wait for what another holds; it comes in with the next fence as soon as it may."""
    told = Recorder()
    async with lease(table, key, ttl=TTL) as held:
        waiter = asyncio.create_task(_hold_once(table, key, told))
        await until(lambda: told.of(Waiting))
        assert not waiter.done()
        assert await observe.fence(key) == held.fence
    assert await waiter == held.fence + 1


async def _hold_once(table: LeaseTable, key: str, observer: Recorder) -> int:
    async with lease(table, key, ttl=TTL, wait=60, observer=observer) as held:
        return held.fence


async def join(table: LeaseTable, key: str) -> None:
    """Have two handles of one explicit holder share a tenure, which the first one ends."""
    first = await acquire(table, key, ttl=TTL, holder="worker-1")
    second = await acquire(table, key, ttl=2 * TTL, holder="worker-1")
    assert second.joined
    assert (second.fence, second.acquired_at) == (first.fence, first.acquired_at)
    assert second.expires_at > first.expires_at
    async with second:
        await second.renew()
    await first.confirm()
    await first.release()


async def rest(table: LeaseTable, observe: Observer, key: str) -> None:
    """Release early what is to stay shut for a while."""
    held = await acquire(table, key, ttl=TTL, min_hold=90)
    await held.release()
    info = await table.get(key)
    assert info is not None
    assert (info.state, info.fence) == ("resting", held.fence)
    assert info.expires_at == held.acquired_at + timedelta(seconds=90)
    with pytest.raises(LeaseUnavailableError) as caught:
        await acquire(table, key)
    assert caught.value.retry_after is not None
    assert TTL < caught.value.retry_after <= 90
    await observe.shift(key, -90)
    info = await table.get(key)
    assert info is not None
    assert (info.state, info.fence) == ("free", held.fence)


async def lose(table: LeaseTable, observe: Observer, key: str) -> None:
    """Find the row in other hands while the body works."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, key, ttl=TTL, heartbeat=BEAT) as held:
            await observe.hand_over(key, "somebody")
            with pytest.raises(LeaseLostError):
                await held.confirm()
            await asyncio.sleep(30)
    assert (caught.value.reason, caught.value.taken_by, caught.value.fence) == ("taken_over", "somebody", held.fence)
    assert await observe.fence(key) == held.fence + 1


async def take_over(table: LeaseTable, observe: Observer, key: str) -> None:
    """Get what a dead holder left, with a greater fence."""
    before = await observe.fence(key)
    assert before is not None
    await observe.expire(key)
    held = await acquire(table, key, ttl=TTL)
    assert held.fence == before + 1
    await held.release()
    assert await observe.is_free(key)
