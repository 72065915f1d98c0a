"""wait=: until a holder is gone, for so long and not longer, and never spinning."""

from __future__ import annotations

import asyncio
import math
import time

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, LeaseTableError, LeaseTimeoutError, LeaseUnavailableError, acquire, lease
from asyncpg_lease.events import Acquired, Unavailable, Waiting, WaitingFailed
from asyncpg_lease.testing import EmbeddedServer
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until, warm
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer, observing
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM
from tests.support.travel import Travel

KEY = "wanted"


@pytest.mark.parametrize("wait", [0.1, 7])
async def test_wait_that_is_over_is_a_timeout_within_a_second(table: LeaseTable, travel: Travel, wait: float) -> None:
    """A waiter gives up between `wait` and a second later, with an error that is a TimeoutError too."""
    async with lease(table, KEY, ttl=60) as held:
        started, moved = time.monotonic(), travel.moved
        with pytest.raises(LeaseTimeoutError) as caught:
            await travel.through(acquire(table, KEY, wait=wait), within=20)
        assert travel.moved - moved < wait + 1
        # With what a busy machine takes.
        assert wait <= time.monotonic() - started < wait + 2.5
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, LeaseUnavailableError)
    assert (caught.value.holder, caught.value.fence) == (held.holder, 1)
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 25


async def test_wait_of_zero_is_one_try(make_pool: MakePool, proxy: Proxy, table: LeaseTable) -> None:
    """Without wait= a taken key is LeaseUnavailableError after one statement, and no timeout."""
    pool = await make_pool(proxy.dsn)
    async with lease(table, KEY, ttl=30):
        proxy.forget()
        with pytest.raises(LeaseUnavailableError) as caught:
            await acquire(pool, KEY)
        assert not isinstance(caught.value, TimeoutError)
        assert proxy.count(CLAIM) == 1


async def test_waiter_is_in_within_a_poll_of_the_release(make_pool: MakePool, travel: Travel) -> None:
    """A release is noticed at the next poll."""
    table = LeaseTable(await make_pool(), poll=10)
    await table.create()
    told = Recorder()
    async with lease(table, KEY, ttl=30):
        waiter = asyncio.create_task(acquire(table, KEY, wait=60, observer=told))
        await until(lambda: told.of(Waiting))
    held = await travel.through(waiter, within=12)
    assert held.fence == 2
    assert len(told.of(Waiting)) == 1
    assert told.of(Acquired)[0].waited > 0
    assert told.of(Acquired)[0].how == "free"
    await held.release()


@pytest.mark.parametrize("wait", [100, math.inf])
async def test_waiter_is_in_when_the_incumbent_runs_out(make_pool: MakePool, travel: Travel, wait: float) -> None:
    """A dead holder's expiry is known, and the waiter is there when it comes, however long the poll."""
    table = LeaseTable(await make_pool(), poll=60)
    await table.create()
    dead = await acquire(table, KEY, ttl=20)
    told = Recorder()
    # A poll is 30 s at least.
    held = await travel.through(acquire(table, KEY, wait=wait, observer=told), within=23)
    assert held.fence == dead.fence + 1
    assert (told.of(Acquired)[0].how, told.of(Acquired)[0].before) == ("taken_over", dead.holder)
    await held.release()
    await dead.release()


@pytest.mark.slow("takes half a second or so")
async def test_waiter_never_spins_on_a_row_that_ran_out_and_is_locked(
    make_pool: MakePool, proxy: Proxy, table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """A row that has no time left and cannot be had is asked for once a poll, with its tries, not in a loop."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    held = await acquire(table, KEY, ttl=30)
    await observe.expire(KEY)
    async with observe.locked(KEY):
        proxy.forget()
        moved = travel.moved
        with pytest.raises(LeaseTimeoutError):
            await travel.through(acquire(LeaseTable(pool, poll=1), KEY, wait=2.5), within=5, rows=False)
        assert travel.moved - moved < 3.5
        assert 2 <= proxy.count(CLAIM) <= 4 * 7
    await held.release()
    winner = await travel.through(acquire(LeaseTable(pool, poll=1), KEY, wait=10), within=5)
    assert winner.fence == 2
    await winner.release()


@pytest.mark.slow("takes half a second or so")
async def test_waiter_outlasts_ended_connections(
    table: LeaseTable, observe: Observer, make_pool: MakePool, travel: Travel
) -> None:
    """pg_terminate_backend in the middle of waiting is a warning, and the wait goes on."""
    other = LeaseTable(await make_pool(min_size=1, max_size=1), poll=2)
    held = await acquire(table, KEY, ttl=60)
    told = Recorder()
    waiter = asyncio.create_task(acquire(other, KEY, wait=50, observer=told))
    await until(lambda: told.of(Waiting))
    async with observe.connection.transaction():
        # The next try waits for the lock, and is ended so.
        await observe.connection.execute("LOCK TABLE lease")
        await travel(3, rows=False)
        await observe.terminate_backends()
        await until(lambda: told.of(WaitingFailed))
    assert told.of(WaitingFailed)[0].error
    assert not waiter.done()
    await observe.expire(KEY)
    successor = await travel.through(waiter, within=10)
    assert successor.fence == 2
    await successor.release()
    await held.release()


@pytest.mark.slow("restarts a server of its own")
async def test_waiter_outlasts_a_restart_of_the_server(
    own_server: EmbeddedServer, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that restarts while one waits is waited out, with a warning; the holder's row survives it."""
    pool = await make_pool(own_server.dsn, min_size=1, max_size=2)
    table = LeaseTable(pool, poll=0.1)
    await table.create()
    held = await acquire(table, KEY, ttl=60)
    told = Recorder()
    waiter = asyncio.create_task(acquire(table, KEY, wait=60, observer=told))
    await until(lambda: told.of(Waiting))
    async with asyncio.timeout(30):
        # A restart between two tries is not noticed.
        while not told.of(WaitingFailed):
            await asyncio.to_thread(own_server.restart_immediately)
    assert not waiter.done()
    async with observing(own_server.dsn) as observer:
        await observer.expire(KEY)
    successor = await waiter
    assert successor.fence == held.fence + 1
    assert any(record.getMessage().startswith("claim failed, still waiting") for record in caplog.records)
    await successor.release()
    await held.release()


@pytest.mark.usefixtures("table")
async def test_wait_on_a_frozen_server_comes_back_within_a_second_of_its_end(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """A silent network does not make a wait longer."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    proxy.freeze()
    started, moved = time.monotonic(), travel.moved
    with pytest.raises(LeaseTimeoutError) as caught:
        await travel.through(acquire(pool, KEY, wait=5), within=20)
    assert time.monotonic() - started >= 5
    assert travel.moved - moved < 6
    assert isinstance(caught.value.__cause__, TimeoutError)
    proxy.thaw()
    await travel.until(lambda: not library_tasks(), within=20)


@pytest.mark.usefixtures("table")
async def test_acquire_on_an_exhausted_pool_ends_by_the_ttl(
    make_pool: MakePool, observe: Observer, travel: Travel
) -> None:
    """One try takes at most the ttl, the wait for a connection included, and leaves nothing behind."""
    pool = await make_pool(max_size=2)
    async with pool.acquire(), pool.acquire():
        started, moved = time.monotonic(), travel.moved
        with pytest.raises(TimeoutError, match="2 of the pool's 2 connections are in use") as caught:
            await travel.through(acquire(pool, KEY, ttl=8), within=20)
        assert time.monotonic() - started >= 8
        assert travel.moved - moved <= 8
        assert not isinstance(caught.value, LeaseUnavailableError)
    await until(lambda: not library_tasks())
    assert await observe.row(KEY) is None


async def test_wait_does_not_outlast_an_error_that_stays(make_pool: MakePool, travel: Travel) -> None:
    """A missing table is not waited for: the error says what to run."""
    table = LeaseTable(await make_pool(), "nowhere")
    with pytest.raises(LeaseTableError, match="nowhere"):
        await travel.through(acquire(table, KEY, wait=60), within=5)


@pytest.mark.usefixtures("table")
async def test_wait_on_a_closed_pool_is_an_error_at_once(make_pool: MakePool, travel: Travel) -> None:
    """A pool that is closed never comes back."""
    pool = await make_pool()
    await pool.close()
    with pytest.raises(asyncpg.InterfaceError):
        await travel.through(acquire(pool, KEY, wait=60), within=5)


async def test_unavailable_is_told_with_the_incumbent(table: LeaseTable) -> None:
    """Each try that finds somebody is an event, with who it is."""
    told = Recorder()
    async with lease(table, KEY, ttl=30) as held:
        with pytest.raises(LeaseUnavailableError):
            await acquire(table, KEY, observer=told)
    (event,) = told.of(Unavailable)
    assert (event.incumbent, event.incumbent_fence) == (held.holder, held.fence)
    assert event.retry_after is not None
