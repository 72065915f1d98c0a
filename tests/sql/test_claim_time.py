"""Claims and time: the clock after a wait, and answers that come too late."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from asyncpg_lease import LeaseTable, LeaseUnavailableError, acquire, lease
from tests.conftest import MakePool
from tests.sql.calls import Asked, claim_granted, outcome, release
from tests.support.leasing import until, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE
from tests.support.travel import Travel
from tests.support.typing import Connection, Pool

LOCKED = 8.0
STRENGTHS = ["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"]
"""How a row is locked: as by a claim, a renewal, or a guard of the tenure before."""
# An answer is late after 2 s, before the statement is given up, and long before the row runs out.
TTL, BEAT, GRACE = 60.0, 0.5, 58.0


async def warm_pool(make_pool: MakePool, proxy: Proxy) -> Pool:
    """Make a pool by way of the proxy, of one connection that knows the statements and is idle."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    await until(pool.get_idle_size)
    return pool


async def wait_past_a_lock(
    table: LeaseTable, observe: Observer, travel: Travel, strength: str, *, before_the_lock: float
) -> None:
    """See who does not wait refused at once, and who waits served as soon as the lock is gone, with a full ttl."""
    crashed = await acquire(table, "k", ttl=60)
    await observe.shift("k", before_the_lock - 60)
    async with observe.locked("k", strength):
        async with asyncio.timeout(5):
            with pytest.raises(LeaseUnavailableError):
                await acquire(table, "k", ttl=60)
            waiting = asyncio.create_task(acquire(table, "k", ttl=60, wait=100))
            while not await observe.is_free("k"):
                await asyncio.sleep(0.01)
        await travel(LOCKED, rows=False)
        assert not waiting.done()
    assert await travel.until(waiting.done, within=10) < 3, "within a poll"
    held = await waiting
    # What counted from before the lock would have lost as much as that.
    assert held.remaining > 60 - LOCKED / 2
    assert held.fence == 2
    info = await table.get("k")
    assert info is not None
    assert info.expires_in > 60 - LOCKED / 2
    await held.release()
    await crashed.release()


@pytest.mark.parametrize("strength", STRENGTHS)
async def test_claim_behind_a_lock_on_an_expired_row_has_its_full_ttl(
    table: LeaseTable, observe: Observer, travel: Travel, strength: str
) -> None:
    """Refused at once without waiting; with it, acquired within a poll of the lock's end and not short."""
    await wait_past_a_lock(table, observe, travel, strength, before_the_lock=0)
    assert await observe.fence("k") == 2


@pytest.mark.parametrize("strength", STRENGTHS)
async def test_claim_behind_a_lock_on_a_row_that_runs_out_meanwhile_is_granted(
    table: LeaseTable, observe: Observer, travel: Travel, strength: str
) -> None:
    """A row with a moment left when its lock began is judged by the time after the lock, not before it."""
    await wait_past_a_lock(table, observe, travel, strength, before_the_lock=0.1)
    assert await observe.fence("k") == 2


# A lock of the key alone, as a guard takes it, lets renewals pass.
@pytest.mark.parametrize("strength", [strength for strength in STRENGTHS if strength != "KEY SHARE"])
async def test_renewal_behind_a_lock_counts_from_the_locks_end(
    table: LeaseTable, observe: Observer, travel: Travel, strength: str
) -> None:
    """A heartbeat that met a lock of some seconds keeps its lease, and the new expiry is a ttl after the lock."""
    async with lease(table, "k", ttl=60, heartbeat=3) as held:
        async with observe.locked("k", strength) as other:
            before = held.expires_at
            await travel(LOCKED, rows=False)
            assert held.expires_at == before
            unlocked = await other.fetchval("SELECT clock_timestamp()")
        await travel.until(lambda: held.expires_at > before, within=10)
        # The row was not moved while it was locked: the server's own clock is the measure.
        assert held.expires_at - unlocked >= timedelta(seconds=60)
        assert held.is_held
        assert held.remaining > 60 - LOCKED / 2


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


@pytest.mark.usefixtures("table")
async def test_claim_answered_after_its_own_deadline_is_given_back(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """An answer that comes after trusted_until - grace is no lease: TimeoutError, and the row is released."""
    pool = await warm_pool(make_pool, proxy)
    proxy.delay_replies = 4
    claiming = asyncio.create_task(acquire(pool, "k", ttl=TTL, heartbeat=BEAT, grace=GRACE))
    await travel.until(claiming.done, within=60)
    with pytest.raises(TimeoutError, match="after its own deadline"):
        await (await claiming).release()
    row = await observe.row("k")
    assert row is not None
    assert row["released_at"] is not None
    assert await observe.is_free("k")


@pytest.mark.usefixtures("table")
async def test_claim_never_answered_within_its_ttl_is_given_back(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """A try that has waited its whole ttl ends, names key and time, and leaves nothing claimed."""
    pool = await warm_pool(make_pool, proxy)
    proxy.forget()
    # The statement is given up after 3 s at the earliest.
    proxy.delay_replies = 2.3
    claiming = asyncio.create_task(acquire(pool, "k", ttl=1.5))
    await travel.until(claiming.done, within=10)
    with pytest.raises(TimeoutError, match=r"within 1\.500 s to the claim of 'k'"):
        await claiming
    proxy.delay_replies = 0.0
    await travel.until(lambda: proxy.count(RELEASE), within=20)
    assert proxy.count(CLAIM) == 1
    assert await observe.fence("k") == 1, "it was granted"
    assert await observe.is_free("k")


async def test_claim_that_waited_for_a_first_insert_past_its_deadline_is_given_back(
    table: LeaseTable, session: Connection, observe: Observer, travel: Travel
) -> None:
    """A claim that an uncommitted insert held up for too long is not handed over, and not left behind."""
    transaction = session.transaction()
    await transaction.start()
    await claim_granted(session, "k", "first")
    claiming = asyncio.create_task(acquire(table, "k", ttl=TTL, heartbeat=BEAT, grace=GRACE))
    await travel(4)
    assert not claiming.done()
    await transaction.rollback()
    with pytest.raises(TimeoutError, match="after its own deadline"):
        await (await claiming).release()
    row = await observe.row("k")
    assert row is not None
    assert row["holder"] != "first"
    assert row["released_at"] is not None
    assert await observe.is_free("k")


@pytest.mark.usefixtures("table")
async def test_claim_answered_in_time_is_handed_over(make_pool: MakePool, proxy: Proxy, travel: Travel) -> None:
    """A slow answer within the deadline is a lease, whose trust counts from before it was asked for."""
    pool = await warm_pool(make_pool, proxy)
    proxy.forget()
    proxy.delay_replies = 3
    claiming = asyncio.create_task(acquire(pool, "k", ttl=TTL, heartbeat=BEAT, grace=40))
    await travel(1)
    # Of this answer, which is under way, and of no other.
    proxy.delay_replies = 0.0
    assert await travel.until(claiming.done, within=20) > 1
    held = await claiming
    assert held.is_held
    assert held.remaining <= TTL - 3
    assert proxy.count(CLAIM) == 1
    await held.release()
