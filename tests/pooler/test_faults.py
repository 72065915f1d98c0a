"""PgBouncer, or the server behind it, stops, pauses or is busy under leases."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Renewed, RenewFailed, WaitingFailed
from asyncpg_lease.testing import EmbeddedServer
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until, warm
from tests.support.leftovers import expect_no_tasks
from tests.support.observe import Observer, observing
from tests.support.pgbouncer import PgBouncer
from tests.support.typing import Pool

KEY = "job"


WAITS = "PgBouncer counts query_wait_timeout in whole seconds"
AT_WORK = "the caller of a claim that is cancelled waits for up to a second of real time"


@pytest.mark.slow(AT_WORK)
@pytest.mark.parametrize("blocked", [0.0, 0.5, 4.0])
async def test_acquire_cancelled_while_the_server_is_at_it_leaves_nothing(
    table: LeaseTable, observe: Observer, blocked: float
) -> None:
    """A claim that waits in the server, is cancelled and leaves no row in the end; the caller waits 1 s at most."""
    await warm(table)
    async with observe.inserting(KEY):
        task = asyncio.create_task(acquire(table, KEY, ttl=30))
        await observe.until_waiting()
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=3)
        await asyncio.sleep(blocked)
    assert done
    assert task.cancelled()
    await observe.until_free(KEY, within=5)
    await table.aclose()
    await expect_no_tasks()
    assert await observe.is_free(KEY)


@pytest.mark.parametrize("first", range(4))
async def test_acquire_cancelled_at_any_turn_leaves_nothing(table: LeaseTable, observe: Observer, first: int) -> None:
    """Wherever the cancellation comes, the row is free a moment later."""
    left: list[int] = []
    for turns in range(2 * first, 40, 8):
        task = asyncio.create_task(acquire(table, KEY, ttl=30))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        task.cancel()
        await asyncio.wait([task], timeout=10)
        assert task.done()
        if not task.cancelled():
            await task.result().release()
        try:
            await observe.until_free(KEY, within=10)
        except TimeoutError:
            left.append(turns)
            await observe.expire(KEY)
    assert left == []


@pytest.mark.parametrize("missed", [0, 2])
async def test_restart_of_pgbouncer_is_waited_out(table: LeaseTable, pgbouncer: PgBouncer, missed: int) -> None:
    """A held lease outlives a restart of the pooler: what fails meanwhile is told and tried again."""
    recorder = Recorder()
    async with lease(table, KEY, ttl=30, heartbeat=0.05, observer=recorder) as held:
        await until(lambda: recorder.of(Renewed))
        pgbouncer.stop()
        await until(lambda: len(recorder.of(RenewFailed)) >= missed)
        pgbouncer.start()
        seen = len(recorder.of(Renewed))
        await until(lambda: len(recorder.of(Renewed)) > seen)
        assert held.is_held
    assert held.lost is None


@pytest.mark.parametrize("seconds", [0.2, pytest.param(2.0, marks=pytest.mark.slow("a pause of real time"))])
async def test_pause_of_pgbouncer_is_waited_out(table: LeaseTable, pgbouncer: PgBouncer, seconds: float) -> None:
    """PAUSE keeps statements waiting and RESUME lets them go: shorter than the trust, it costs nothing."""
    recorder = Recorder()
    async with lease(table, KEY, ttl=30, heartbeat=0.05, observer=recorder) as held:
        await pgbouncer.command("PAUSE")
        await asyncio.sleep(seconds)
        assert held.is_held
        await pgbouncer.command("RESUME")
        seen = len(recorder.of(Renewed))
        await until(lambda: len(recorder.of(Renewed)) > seen)
    assert held.lost is None


async def test_reload_of_pgbouncer_is_not_noticed(table: LeaseTable, pgbouncer: PgBouncer) -> None:
    """RELOAD with another pool size interrupts nothing."""
    recorder = Recorder()
    async with lease(table, KEY, ttl=30, heartbeat=0.05, observer=recorder):
        await pgbouncer.configure(default_pool_size="1")
        await pgbouncer.command("RECONNECT")
        seen = len(recorder.of(Renewed))
        await until(lambda: len(recorder.of(Renewed)) >= seen + 3)
    assert recorder.of(RenewFailed) == []


@pytest.mark.slow("starts and restarts a server of its own")
async def test_restart_of_the_server_behind_pgbouncer_is_waited_out(
    own_server: EmbeddedServer, make_pool: MakePool
) -> None:
    """The server behind the pooler crashes and comes back: the lease is kept, and released after it."""
    recorder = Recorder()
    with PgBouncer(own_server.dsn, {"server_login_retry": "1"}) as pgbouncer:
        pool = await make_pool(pgbouncer.dsn, statement_cache_size=0)
        await LeaseTable(pool).create()
        async with lease(pool, KEY, ttl=60, heartbeat=0.2, observer=recorder) as held:
            await until(lambda: recorder.of(Renewed))
            await asyncio.to_thread(own_server.restart_immediately)
            seen = len(recorder.of(Renewed))
            await until(lambda: len(recorder.of(Renewed)) > seen, within=30)
            assert held.is_held
        async with observing(own_server.dsn) as observe:
            await observe.until_free(KEY, within=10)
        await pool.close()


@pytest.mark.slow(WAITS)
async def test_claim_that_finds_no_server_connection_fails_as_pgbouncer_says(
    dsn: str, make_pool: MakePool, observe: Observer
) -> None:
    """What PgBouncer says after query_wait_timeout comes out, and nothing is claimed."""
    with PgBouncer(dsn, {"default_pool_size": "1", "query_wait_timeout": "1"}) as pgbouncer:
        pool = await make_pool(pgbouncer.dsn, statement_cache_size=0, min_size=2, max_size=2)
        await LeaseTable(pool).create()
        await warm(pool)
        async with pool.acquire() as hog, hog.transaction():
            await hog.execute("SELECT 1")
            with pytest.raises(asyncpg.PostgresError, match="query_wait_timeout"):
                await acquire(pool, KEY, ttl=30)
        assert await observe.is_free(KEY)
        async with lease(pool, KEY):
            pass


@pytest.mark.slow(WAITS)
async def test_wait_outlasts_a_pooler_without_server_connections(dsn: str, make_pool: MakePool, pool: Pool) -> None:
    """An acquire that waits takes query_wait_timeout for a passing trouble and has the key afterwards."""
    await LeaseTable(pool).create()
    with PgBouncer(dsn, {"default_pool_size": "1", "query_wait_timeout": "1"}) as pgbouncer:
        busy = await make_pool(pgbouncer.dsn, statement_cache_size=0, min_size=2, max_size=2)
        async with busy.acquire() as hog:
            transaction = hog.transaction()
            await transaction.start()
            told = Recorder()
            waiter = asyncio.create_task(acquire(busy, KEY, ttl=30, wait=60, observer=told))
            await until(lambda: len(told.of(WaitingFailed)) >= 2, within=20)
            assert not waiter.done()
            await transaction.rollback()
        held = await waiter
        await held.release()
        await busy.close()


async def test_pooler_that_takes_no_more_clients_is_not_told_as_a_missing_setting(
    dsn: str, make_pool: MakePool
) -> None:
    """PgBouncer's own errors have the code of mixed-up statements: they come out as they are, and a waiter waits."""
    with PgBouncer(dsn, {"max_client_conn": "1"}) as pgbouncer:
        pool = await make_pool(pgbouncer.dsn, statement_cache_size=0, max_size=2)
        table = LeaseTable(pool, poll=0.05)
        await table.create()
        await until(lambda: pool.get_idle_size() == 1)
        async with pool.acquire():
            with pytest.raises(asyncpg.ProtocolViolationError, match="no more connections"):
                await acquire(table, KEY, ttl=30)
            told = Recorder()
            waiter = asyncio.create_task(acquire(table, KEY, ttl=30, wait=30, observer=told))
            await until(lambda: len(told.of(WaitingFailed)) >= 2)
            assert not waiter.done()
        held = await waiter
        await held.release()
        await table.aclose()
        await pool.close()
