"""A lease from the claim to where it is left, when nothing goes wrong."""

from __future__ import annotations

import asyncio
import gc
import time
from datetime import UTC, datetime, timedelta

import pytest

from asyncpg_lease import LeaseTable, LeaseUnavailableError, acquire, current_lease, lease, try_acquire
from tests.conftest import MakePool
from tests.support.leasing import until, warm
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE, RENEW, RESET
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "job"


async def test_lease_holds_inside_its_block_and_releases_after_it(table: LeaseTable, observe: Observer) -> None:
    """The block's lease is the row: held inside, released and free after."""
    async with lease(table, KEY, ttl=30, label="worker") as held:
        record = await observe.row(KEY)
        assert record is not None
        assert (held.key, held.holder, held.fence) == (KEY, record["holder"], record["fence"])
        assert (held.acquired_at, held.expires_at) == (record["acquired_at"], record["expires_at"])
        assert held.acquired_at.tzinfo is UTC
        assert held.expires_at - held.acquired_at == pytest.approx(timedelta(seconds=30), abs=timedelta(seconds=0.01))
        assert held.holder.startswith("worker/")
        assert held.is_held
        assert not held.joined
        assert held.lost is None
        assert 29 < held.remaining <= 30
        held.raise_if_stopping()
        await held.confirm()
    assert (held.is_held, held.remaining) == (False, 0)
    assert await held.wait_lost() is None
    held.raise_if_stopping()
    record = await observe.row(KEY)
    assert record is not None
    assert record["released_at"] is not None
    assert await observe.is_free(KEY)


async def test_lease_of_a_pool_uses_its_default_table(table: LeaseTable, pool: Pool, observe: Observer) -> None:
    """A pool as the target means its table `lease`, in which a LeaseTable sees the same rows."""
    async with lease(pool, KEY) as held:
        with pytest.raises(LeaseUnavailableError) as caught:
            await acquire(table, KEY)
        assert (caught.value.holder, caught.value.fence) == (held.holder, held.fence)
        assert caught.value.expires_at is not None
        assert caught.value.expires_at > datetime(2000, 1, 1, tzinfo=UTC)
        assert await try_acquire(table, KEY) is None
    assert await observe.fence(KEY) == 1


async def test_try_acquire_returns_a_lease_that_can_be_entered(table: LeaseTable, observe: Observer) -> None:
    """Where the key is free, try_acquire() answers a Lease as acquire() does."""
    held = await try_acquire(table, KEY)
    assert held is not None
    assert held.is_held
    async with held as same:
        assert same is held
    assert await observe.is_free(KEY)


async def test_lease_shows_its_state_in_its_repr(table: LeaseTable) -> None:
    """A repr says key, holder, fence and how far the lease has come."""
    context = lease(table, KEY)
    assert repr(context) == f"<lease({KEY!r})>"
    async with context as held:
        assert "fence 1, entered" in repr(held)
        assert KEY in repr(context)
        assert held.holder in repr(context)
    assert "fence 1, left" in repr(held)
    other = await acquire(table, KEY)
    assert "claimed, not entered" in repr(other)
    await other.release()


@pytest.mark.usefixtures("table")
async def test_acquire_returns_after_one_round_trip(make_pool: MakePool, proxy: Proxy, travel: Travel) -> None:
    """A warm acquire() is one statement and one round trip: through 4 s of latency it takes less than 5 s."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    proxy.delay_replies = 4
    proxy.forget()
    claim = asyncio.create_task(acquire(pool, KEY, ttl=60))
    moved = travel.moved
    # The least with what the machine took, the most without.
    assert await travel.until(claim.done, within=20) > 3.5
    assert travel.moved - moved < 5
    assert (proxy.count(CLAIM), proxy.statements[0].sql.count(CLAIM)) == (1, 1)
    # The pool's reset query is under way.
    assert {statement.sql.partition("(")[0] for statement in proxy.statements[1:]} <= {"SELECT pg_advisory_unlock_all"}
    assert proxy.round_trips == len(proxy.statements)
    proxy.delay_replies = 0
    await travel.through((await claim).release(), within=20)


@pytest.mark.usefixtures("table")
async def test_lease_of_an_empty_block_is_claim_and_release_with_one_reset(make_pool: MakePool, proxy: Proxy) -> None:
    """Claim and release in a burst share a connection, and the pool's reset comes after both."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    proxy.forget()
    async with lease(pool, KEY):
        pass
    await until(lambda: pool.get_idle_size() == 1)
    await proxy.wait_for(RESET)
    assert [proxy.count(part) for part in (CLAIM, RELEASE, RENEW)] == [1, 1, 0]
    assert 1 <= proxy.count(RESET) <= 2


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_lease_on_a_pool_of_one_leaves_it_to_the_body(make_pool: MakePool, travel: Travel) -> None:
    """No connection is held between statements: the body has the pool's only one, renewals included."""
    pool = await make_pool(max_size=1)
    async with lease(pool, KEY, ttl=30) as held:
        renewed: set[datetime] = set()
        for _ in range(10):
            async with asyncio.timeout(2), pool.acquire() as connection:
                assert await connection.fetchval("SELECT 1") == 1
            await travel(4)
            assert pool.get_idle_size() == 1
            renewed.add(held.expires_at)
        assert held.is_held
        assert len(renewed) >= 3


@pytest.mark.usefixtures("table")
async def test_pool_closed_right_after_the_block_is_clean(make_pool: MakePool, observe: Observer) -> None:
    """The hand-back of the connection is awaited by the pool's own close()."""
    for _ in range(3):
        pool = await make_pool(max_size=2)
        async with lease(pool, KEY):
            pass
        async with asyncio.timeout(4):
            await pool.close()
        assert await observe.is_free(KEY)


async def test_release_called_many_times_at_once_is_sent_once(
    make_pool: MakePool, proxy: Proxy, table: LeaseTable
) -> None:
    """Any number of release() calls, at once and later, sends one release and waits for it."""
    pool = await make_pool(proxy.dsn)
    held = await acquire(pool, KEY)
    proxy.delay_requests = 0.1
    proxy.forget()

    async def release() -> bool:
        await held.release()
        info = await table.get(KEY)
        return info is not None and info.state == "free"

    assert await asyncio.gather(*(release() for _ in range(5))) == [True] * 5
    await held.release()
    assert proxy.count(RELEASE) == 1
    assert not held.is_held
    proxy.delay_requests = 0


async def test_release_inside_the_block_ends_it_early(table: LeaseTable, observe: Observer) -> None:
    """A release in the body frees the row at once, and leaving the block afterwards does nothing."""
    async with lease(table, KEY, ttl=30) as held:
        await held.release()
        assert await observe.is_free(KEY)
        assert not held.is_held
        successor = await acquire(table, KEY)
    await successor.confirm()
    await successor.release()


async def test_lease_leaves_no_reference_behind(table: LeaseTable) -> None:
    """A lease that was left is not kept alive by anything of the library's."""
    async with lease(table, KEY) as held:
        pass
    await until(lambda: not library_tasks())
    known = [repr(item)[:60] for item in gc.get_referrers(held) if "asyncpg_lease" in type(item).__module__]
    assert known in ([], [f"<lease({KEY!r})>"[:60]])


async def test_renew_moves_the_expiry_and_the_trust(table: LeaseTable, travel: Travel) -> None:
    """renew() asks for a full ttl from now, by the server's clock and by the local one."""
    async with lease(table, KEY, ttl=60, heartbeat=25) as held:
        await travel(20)
        assert held.remaining < 41
        await held.renew()
        assert held.remaining == pytest.approx(60, abs=2)
        info = await table.get(KEY)
        assert info is not None
        assert info.expires_in == pytest.approx(60, abs=2)
        assert info.fence == held.fence


async def test_renew_of_a_lease_that_is_not_entered_keeps_it(table: LeaseTable, travel: Travel) -> None:
    """Before it is entered a lease can be renewed by hand, and only so."""
    held = await acquire(table, KEY, ttl=30)
    for _ in range(4):
        await travel(12)
        await held.renew()
    async with held:
        assert held.is_held
        await held.confirm()


async def test_renew_of_a_locked_row_waits_for_it(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """A row that another session has locked for a moment is renewed after that."""
    async with lease(table, KEY, ttl=30) as held:
        async with observe.locked(KEY):
            renewal = asyncio.create_task(held.renew())
            await travel(0.2, rows=False)
            assert not renewal.done()
        await renewal


@pytest.mark.parametrize("min_hold", [20, timedelta(seconds=20)])
async def test_lease_with_min_hold_keeps_the_key_shut_after_its_release(
    table: LeaseTable, pool: Pool, travel: Travel, min_hold: float | timedelta
) -> None:
    """A job that ends early leaves the key shut until min_hold is over, counted from the claim."""
    started = time.monotonic()
    async with lease(table, KEY, min_hold=min_hold):
        pass
    info = await table.get(KEY)
    assert info is not None
    assert info.state == "resting"
    with pytest.raises(LeaseUnavailableError, match="rests under its min_hold") as caught:
        await acquire(table, KEY)
    assert caught.value.resting
    held = await travel.through(acquire(LeaseTable(pool, poll=15), KEY, wait=60), within=60)
    assert 20 <= time.monotonic() - started < 24
    assert held.fence == 2
    await held.release()


async def test_acquire_in_async_with_holds_and_releases_as_lease_does(table: LeaseTable, observe: Observer) -> None:
    """`async with acquire(..)` starts the heartbeat, as pool.acquire() is used, and its end releases."""
    async with acquire(table, KEY, ttl=60) as held:
        assert held.is_held
        assert current_lease() is held
        assert not await observe.is_free(KEY)
        with pytest.raises(LeaseUnavailableError):
            await acquire(table, KEY).__aenter__()
    assert held.remaining == 0.0
    assert await observe.is_free(KEY)


async def test_acquire_is_a_coroutine_for_tasks_and_timeouts(table: LeaseTable, observe: Observer) -> None:
    """create_task, gather and wait_for take it; a task of it that is cancelled leaves nothing claimed."""
    first, second = await asyncio.gather(asyncio.create_task(acquire(table, "a")), acquire(table, "b"))
    third = await asyncio.wait_for(acquire(table, "c"), 10)
    for held in (first, second, third):
        await held.release()
    async with lease(table, KEY):
        waiting = asyncio.create_task(acquire(table, KEY, wait=60))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await observe.fence(KEY) == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(acquire(table, KEY, wait=60), 0.01)
        assert await try_acquire(table, KEY, wait=0.01) is None
    assert await observe.is_free(KEY)
