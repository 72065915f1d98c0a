"""A pool of one connection, which the body wants as well."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, ReleaseFailed, Renewed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RENEW

pytestmark = pytest.mark.usefixtures("table")


async def test_body_that_borrows_the_only_connection_again_and_again_keeps_its_lease(
    make_pool: MakePool, observe: Observer
) -> None:
    """Over more than two ttls of real time the beats find the connection between the body's own loans."""
    pool = await make_pool(max_size=1)
    told = Recorder()
    async with lease(pool, "k", ttl=1.4, heartbeat=0.3, observer=told) as held:
        ended = time.monotonic() + 3
        while time.monotonic() < ended:
            async with pool.acquire() as connection:
                await connection.execute("SELECT pg_sleep(0.3)")
            await asyncio.sleep(0.02)
        await held.verify()
        assert held.fence == 1
    assert len(told.of(Renewed)) > 2
    assert told.of(Lost) == []
    assert await observe.is_free("k")


async def test_body_that_keeps_the_only_connection_is_stopped_and_its_block_left_in_time(
    make_pool: MakePool, observe: Observer
) -> None:
    """A body that never gives it back, not even when it is stopped, loses before the row runs out."""
    pool = await make_pool(max_size=1)
    started = time.monotonic()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(pool, "k", ttl=2.5, grace=0.8) as held:
            connection = await pool.acquire()
            try:
                await asyncio.sleep(30)
            finally:
                stopped_at = await observe.connection.fetchval("SELECT clock_timestamp()")
    assert stopped_at < held.expires_at
    assert caught.value.reason == "unreachable"
    assert "1 of the pool's 1 connections are in use" in str(caught.value.__cause__)
    assert time.monotonic() - started < 5
    await pool.release(connection)


async def test_ten_waiters_and_a_holder_share_one_connection(make_pool: MakePool, observe: Observer) -> None:
    """Each of the waiters has its turn, with the next fence, and none of them keeps the holder from renewing."""
    table = LeaseTable(await make_pool(max_size=1), poll=0.02)
    fences: list[int] = []
    told = Recorder()

    async def work() -> None:
        async with lease(table, "k", ttl=20, wait=60) as held:
            fences.append(held.fence)
            await held.verify()

    async with lease(table, "k", ttl=20, heartbeat=0.05, observer=told):
        waiters = [asyncio.create_task(work()) for _ in range(10)]
        await until(lambda: len(told.of(Renewed)) > 5)
        assert fences == []
    await asyncio.gather(*waiters)
    assert fences == list(range(2, 12))
    assert await observe.is_free("k")


async def test_renewal_goes_before_claims_that_wait_for_the_only_connection(make_pool: MakePool, proxy: Proxy) -> None:
    """A late renewal costs a job, a late claim a moment."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    held = await acquire(pool, "k", ttl=60)
    async with pool.acquire():
        proxy.forget()
        claims = [asyncio.create_task(acquire(pool, f"other-{number}", ttl=60)) for number in range(3)]
        await asyncio.sleep(0.02)
        renewal = asyncio.create_task(held.renew())
        await asyncio.sleep(0.02)
    await renewal
    others = await asyncio.gather(*claims)
    sent = [statement.sql for statement in proxy.statements if RENEW in statement.sql or CLAIM in statement.sql]
    assert [RENEW in sql for sql in sent] == [True, False, False, False]
    for each in (held, *others):
        await each.release()


async def test_release_waits_for_a_connection_that_another_task_gives_back(
    make_pool: MakePool, observe: Observer
) -> None:
    """A block is left when its release has had the only connection."""
    pool = await make_pool(max_size=1)
    async with lease(pool, "k", ttl=30):
        other = asyncio.create_task(pool.execute("SELECT pg_sleep(0.5)"))
        await until(lambda: pool.get_idle_size() == 0)
    assert await observe.is_free("k")
    await other


async def test_release_without_a_connection_is_bounded_and_goes_on_by_itself(
    make_pool: MakePool, observe: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that keeps the only connection holds an exit up for as long as that may wait; the release comes later."""
    monkeypatch.setattr("asyncpg_lease._holding.RELEASE_LIMIT", 0.7)
    pool = await make_pool(max_size=1)
    told = Recorder()
    held = await acquire(pool, "k", ttl=60, observer=told)
    connection = await pool.acquire()
    started = time.monotonic()
    async with held:
        pass
    assert 0.6 < time.monotonic() - started < 4
    assert not await observe.is_free("k")
    await pool.release(connection)
    await observe.until_free("k", within=5)
    assert told.of(ReleaseFailed) == []
