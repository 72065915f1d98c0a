"""Claims and time: the clock after a wait, and answers that come too late."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from asyncpg_lease import Lease, LeaseTable, LeaseUnavailableError, acquire, lease
from tests.conftest import MakePool
from tests.sql.calls import Asked, claim_granted, outcome, release
from tests.support.leasing import until
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE
from tests.support.typing import Connection, Pool

LOCKED = 2.5
REPEATED = range(5)
STRENGTHS = ["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE", "UPDATE"]
"""How each of the repeated keys is locked: as by a claim, a renewal, or a guard of the tenure before."""
# Early enough for a renewal to be missed, late enough for a reply that takes 0.3 s to be late.
TTL, BEAT, GRACE = 1.0, 0.1, 0.75


async def wait_past_a_lock(table: LeaseTable, observe: Observer, key: str, strength: str) -> None:
    """See who does not wait refused at once, and who waits served as soon as the lock is gone."""
    async with observe.locked(key, strength):
        started = time.monotonic()
        with pytest.raises(LeaseUnavailableError):
            await acquire(table, key, ttl=6)
        assert time.monotonic() - started < LOCKED / 2
        waiting = asyncio.create_task(acquire(table, key, ttl=6, wait=8))
        await asyncio.sleep(LOCKED)
        assert not waiting.done()
    unlocked = time.monotonic()
    held = await waiting
    assert time.monotonic() - unlocked < 2
    # What counted from before the lock would have lost as much as that.
    assert held.remaining > 6 - LOCKED / 2
    await held.release()


async def warm_pool(make_pool: MakePool, proxy: Proxy) -> Pool:
    """Make a pool by way of the proxy, of one connection that knows the statements and is idle."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await (await acquire(pool, "warm")).release()
    async with asyncio.timeout(5):
        while not pool.get_idle_size():
            await asyncio.sleep(0.005)
    return pool


async def prepare(table: LeaseTable, ttl: float) -> list[tuple[str, Lease]]:
    """Acquire a key for each repetition."""
    return [(f"k{number}", await acquire(table, f"k{number}", ttl=ttl)) for number in REPEATED]


async def test_claim_behind_a_lock_on_an_expired_row_has_its_full_ttl(table: LeaseTable, observe: Observer) -> None:
    """Refused at once without waiting; with it, acquired within a poll of the lock's end and not short."""
    crashed = await prepare(table, 60)
    for key, _ in crashed:
        await observe.expire(key)
    waits = zip(crashed, STRENGTHS, strict=True)
    await asyncio.gather(*(wait_past_a_lock(table, observe, key, strength) for (key, _), strength in waits))
    for _, held in crashed:
        await held.release()


async def test_claim_behind_a_lock_on_a_row_that_runs_out_meanwhile_is_granted(
    table: LeaseTable, observe: Observer
) -> None:
    """A row with a second left when its lock began is judged by the time after the lock, not before it."""
    crashed = await prepare(table, 60)
    for key, _ in crashed:
        await observe.shift(key, -59)
    waits = zip(crashed, STRENGTHS, strict=True)
    await asyncio.gather(*(wait_past_a_lock(table, observe, key, strength) for (key, _), strength in waits))
    for _, held in crashed:
        await held.release()


async def test_renewal_behind_a_lock_counts_from_the_locks_end(table: LeaseTable, observe: Observer) -> None:
    """A heartbeat that met a lock of 2.5 s keeps its lease, and the new expiry is a ttl after the lock."""

    async def hold(key: str, strength: str) -> None:
        async with lease(table, key, ttl=9, heartbeat=1.2) as held:
            async with observe.locked(key, strength) as other:
                before = await other.fetchval("SELECT expires_at FROM lease WHERE key = $1", key)
                await asyncio.sleep(LOCKED)
                unlocked = await other.fetchval("SELECT clock_timestamp()")
            await until(lambda: held.expires_at > before)
            info = await table.get(key)
            assert info is not None
            assert timedelta(seconds=9) <= info.expires_at - unlocked
            assert held.is_held

    # A lock of the key alone, as a guard takes it, lets renewals pass.
    strengths = [strength for strength in STRENGTHS if strength != "KEY SHARE"]
    await asyncio.gather(*(hold(f"k{number}", strength) for number, strength in enumerate(strengths)))


async def test_claim_in_an_older_transaction_goes_by_the_clock(session: Connection, observe: Observer) -> None:
    """A row that ran out after the claim's transaction began is free, and the new tenure begins now."""
    await claim_granted(session, "k", "crashed")
    async with session.transaction():
        began = await session.fetchval("SELECT now()")
        await observe.expire("k")
        row = await claim_granted(session, "k", ttl=5)
        ran_out = await observe.connection.fetchval("SELECT clock_timestamp()")
    assert row.fence == 2
    assert began < row.acquired_at < ran_out
    assert row.expires_at - row.acquired_at >= timedelta(seconds=5)


async def test_first_claim_in_an_older_transaction_begins_now(session: Connection, observe: Observer) -> None:
    """A new key's tenure begins when it is claimed, not when the transaction began."""
    async with session.transaction():
        await session.fetchval("SELECT now()")
        later = await observe.connection.fetchval("SELECT clock_timestamp()")
        row = await claim_granted(session, "k", ttl=5)
    assert row.acquired_at > later
    assert row.expires_at > later + timedelta(seconds=5)


async def test_join_in_an_older_transaction_goes_by_the_clock(session: Connection, observe: Observer) -> None:
    """A tenure that ran out after the transaction began is not there to be joined."""
    await claim_granted(session, "k")
    async with session.transaction():
        await session.fetchval("SELECT now()")
        await observe.expire("k")
        assert (await claim_granted(session, "k")).how == "taken_over"


async def test_renewal_in_an_older_transaction_goes_by_the_clock(session: Connection, observe: Observer) -> None:
    """A tenure that ran out after the transaction began is lost, and cannot be released either."""
    await claim_granted(session, "k")
    async with session.transaction():
        await session.fetchval("SELECT now()")
        await observe.expire("k")
        assert await outcome(session, Asked("k")) == "lost"
        assert await release(session, "k") is None


async def test_claim_answered_after_its_own_deadline_is_given_back(
    table: LeaseTable,  # noqa: ARG001
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
) -> None:
    """An answer that comes after trusted_until - grace is no lease: TimeoutError, and the row is released."""
    pool = await warm_pool(make_pool, proxy)
    proxy.delay_replies = 0.3
    with pytest.raises(TimeoutError, match="after its own deadline"):
        await (await acquire(pool, "k", ttl=TTL, heartbeat=BEAT, grace=GRACE)).release()
    row = await observe.row("k")
    assert row is not None
    assert row["released_at"] is not None
    assert await observe.is_free("k")


async def test_claim_never_answered_within_its_ttl_is_given_back(
    table: LeaseTable,  # noqa: ARG001
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
) -> None:
    """A try that has waited its whole ttl ends, names key and time, and leaves nothing claimed."""
    pool = await warm_pool(make_pool, proxy)
    proxy.delay_replies = 0.5
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"within 0\.400 s to the claim of 'k'"):
        await acquire(pool, "k", ttl=0.4)
    assert time.monotonic() - started < 1.1
    await observe.until_free("k", within=1)
    proxy.delay_replies = 0.0
    await proxy.wait_for(RELEASE, count=2)


async def test_claim_that_waited_for_a_first_insert_past_its_deadline_is_given_back(
    table: LeaseTable, session: Connection, observe: Observer
) -> None:
    """A claim that an uncommitted insert held up for too long is not handed over, and not left behind."""
    transaction = session.transaction()
    await transaction.start()
    await claim_granted(session, "k", "first")
    claiming = asyncio.create_task(acquire(table, "k", ttl=TTL, heartbeat=BEAT, grace=GRACE))
    await asyncio.sleep(0.4)
    await transaction.rollback()
    with pytest.raises(TimeoutError, match="after its own deadline"):
        await (await claiming).release()
    row = await observe.row("k")
    assert row is not None
    assert row["holder"] != "first"
    assert row["released_at"] is not None
    assert await observe.is_free("k")


async def test_claim_answered_in_time_is_handed_over(
    table: LeaseTable,  # noqa: ARG001
    make_pool: MakePool,
    proxy: Proxy,
) -> None:
    """A slow answer within the deadline is a lease, whose trust counts from before it was asked for."""
    pool = await warm_pool(make_pool, proxy)
    proxy.forget()
    proxy.delay_replies = 0.1
    held = await acquire(pool, "k", ttl=TTL, heartbeat=BEAT, grace=GRACE)
    assert held.is_held
    assert held.remaining < 0.92
    assert proxy.count(CLAIM) == 1
    proxy.delay_replies = 0.0
    await held.release()
