"""A pool of one connection, which the body wants as well."""

from __future__ import annotations

import asyncio

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, ReleaseFailed, Renewed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, spin, until, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RENEW
from tests.support.travel import Travel

pytestmark = pytest.mark.usefixtures("table")


async def test_body_that_borrows_the_only_connection_again_and_again_keeps_its_lease(
    make_pool: MakePool, observe: Observer, travel: Travel
) -> None:
    """Over more than a ttl the beats find the connection between the body's own loans."""
    pool = await make_pool(max_size=1)
    told = Recorder()

    async def job() -> None:
        async with lease(pool, "k", ttl=9, heartbeat=2, observer=told) as held:
            for _ in range(4):
                async with pool.acquire():
                    await asyncio.sleep(3)
                await asyncio.sleep(0.1)
            await held.confirm()
            assert held.fence == 1

    before = travel.moved
    await travel.through(job(), within=40)
    assert travel.moved - before > 9
    assert len(told.of(Renewed)) > 2
    assert told.of(Lost) == []
    assert await observe.is_free("k")


async def test_body_that_keeps_the_only_connection_is_stopped_and_its_block_left_in_time(
    make_pool: MakePool, observe: Observer, travel: Travel
) -> None:
    """A body that never gives it back, not even when it is stopped, loses before the row runs out."""
    pool = await make_pool(max_size=1)
    was_free: list[bool] = []

    async def job() -> None:
        async with lease(pool, "k", ttl=16, heartbeat=5, grace=5):
            await pool.acquire()
            try:
                await asyncio.sleep(1000)
            finally:
                was_free.append(await observe.is_free("k"))

    with pytest.raises(LeaseLostError) as caught:
        await travel.through(job(), within=16)
    assert was_free == [False]
    assert caught.value.reason == "unreachable"
    assert "1 of the pool's 1 connections are in use" in str(caught.value.__cause__)
    pool.terminate()


async def test_ten_waiters_and_a_holder_share_one_connection(make_pool: MakePool, observe: Observer) -> None:
    """Each of the waiters has its turn, with the next fence, and none of them keeps the holder from renewing."""
    table = LeaseTable(await make_pool(max_size=1), poll=0.02)
    fences: list[int] = []
    told = Recorder()

    async def work() -> None:
        async with lease(table, "k", ttl=60, wait=60) as held:
            fences.append(held.fence)
            await held.confirm()

    async with lease(table, "k", ttl=60, heartbeat=0.05, observer=told):
        waiters = [asyncio.create_task(work()) for _ in range(10)]
        await until(lambda: len(told.of(Renewed)) > 2)
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
        # Up to the connection nobody waits for anything but the loop.
        await spin(20)
        renewal = asyncio.create_task(held.renew())
        await spin(20)
    await renewal
    others = await asyncio.gather(*claims)
    sent = [statement.sql for statement in proxy.statements if RENEW in statement.sql or CLAIM in statement.sql]
    assert [RENEW in sql for sql in sent] == [True, False, False, False]
    for each in (held, *others):
        await each.release()


async def test_release_waits_for_a_connection_that_another_task_gives_back(
    make_pool: MakePool, observe: Observer, travel: Travel
) -> None:
    """A block is left when its release has had the only connection."""
    pool = await make_pool(max_size=1)
    held = await acquire(pool, "k", ttl=60)
    connection = await pool.acquire()

    async def leave() -> None:
        async with held:
            pass

    leaving = asyncio.create_task(leave())
    await travel(2)
    assert not leaving.done()
    await pool.release(connection)
    await leaving
    assert await observe.is_free("k")


async def test_release_without_a_connection_is_bounded_and_goes_on_by_itself(
    make_pool: MakePool, observe: Observer, travel: Travel
) -> None:
    """A task that keeps the only connection holds an exit up for a few seconds; the release comes later."""
    pool = await make_pool(max_size=1)
    told = Recorder()
    held = await acquire(pool, "k", ttl=60, observer=told)
    connection = await pool.acquire()

    async def leave() -> None:
        async with held:
            pass

    leaving = asyncio.create_task(leave())
    assert 4 < await travel.until(leaving.done, within=20) < 8
    await leaving
    assert not await observe.is_free("k")
    await pool.release(connection)
    await observe.until_free("k", within=5)
    assert told.of(ReleaseFailed) == []
