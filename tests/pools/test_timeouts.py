"""Servers and pools that cut things short: a statement, a lock wait, an idle session, a transaction."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, Renewed, RenewFailed, WaitingFailed
from tests.conftest import MakePool
from tests.pools.kinds import settings
from tests.support.databases import Server
from tests.support.leasing import Recorder, until, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM

# asyncpg before 0.32 tells of the connection alone where the server ends that as well.
ENDED = "timeout|connection was closed"
BRIEF = {
    "statement_timeout": asyncpg.QueryCanceledError,
    "lock_timeout": asyncpg.LockNotAvailableError,
    "transaction_timeout": asyncpg.PostgresConnectionError,
}

pytestmark = pytest.mark.usefixtures("table")


@pytest.fixture(params=BRIEF)
def brief(request: pytest.FixtureRequest, server: Server) -> str:
    """The name of a setting that ends a statement which waits for a lock."""
    name = str(request.param)
    if name == "transaction_timeout" and server.major < 17:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    return name


@asynccontextmanager
async def first_claim_uncommitted(dsn: str, key: str) -> AsyncIterator[None]:
    """Have an uncommitted first row of a key, the one thing that a claim waits for; it is rolled back at the end."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("BEGIN")
        await connection.execute(
            "INSERT INTO lease (key, holder, acquired_at, expires_at)"
            f" VALUES ('{key}', 'nobody', clock_timestamp(), clock_timestamp() + interval '1 minute')"
        )
        yield
    finally:
        await connection.close()


async def test_timeout_of_a_claim_comes_out_as_the_driver_s_error(
    make_pool: MakePool, observe: Observer, dsn: str, brief: str
) -> None:
    """A claim that the server cuts short is no evidence of an incumbent, and leaves nothing behind."""
    pool = await make_pool(**settings(**{brief: "50ms"}))
    async with first_claim_uncommitted(dsn, "k"):
        with pytest.raises(BRIEF[brief]):
            await acquire(pool, "k")
    assert await observe.rows() == []


async def test_timeout_of_a_claim_is_waited_out_while_waiting(make_pool: MakePool, dsn: str, brief: str) -> None:
    """While it waits for the key, a claim that the server cuts short is tried again, with its cause told."""
    table = LeaseTable(await make_pool(**settings(**{brief: "50ms"})), poll=0.05)
    told = Recorder()
    async with first_claim_uncommitted(dsn, "k"):
        waiter = asyncio.create_task(acquire(table, "k", wait=30, observer=told))
        await until(lambda: len(told.of(WaitingFailed)) > 1)
    held = await waiter
    assert re.search(ENDED, told.of(WaitingFailed)[0].error)
    await held.release()


async def test_timeout_of_renewals_is_no_loss(make_pool: MakePool, observe: Observer, brief: str) -> None:
    """A renewal that waits for a lock of the whole table is cut short and tried again, and the lease is kept."""
    pool = await make_pool(**settings(**{brief: "50ms"}))
    told = Recorder()
    async with lease(pool, "k", ttl=10, heartbeat=0.1, observer=told) as held:
        async with observe.connection.transaction():
            await observe.connection.execute("LOCK TABLE lease")
            await until(lambda: len(told.of(RenewFailed)) > 2)
        renewals = len(told.of(Renewed))
        await until(lambda: len(told.of(Renewed)) > renewals)
        assert held.is_held
    assert re.search(ENDED, told.of(RenewFailed)[0].error)
    assert told.of(Lost) == []


async def test_timeout_of_a_release_is_tried_again(make_pool: MakePool, observe: Observer, brief: str) -> None:
    """A release that is cut short at a row that somebody has locked comes through when the lock is gone."""
    pool = await make_pool(**settings(**{brief: "50ms"}))
    held = await acquire(pool, "k")
    async with observe.locked("k"):
        release = asyncio.create_task(held.release())
        await asyncio.sleep(0.3)
        assert not release.done()
    await release
    assert await observe.is_free("k")


async def test_timeout_of_the_pool_s_commands_leaves_nothing_claimed(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """Where command_timeout ends a claim that the server grants, the claim is given back."""
    pool = await make_pool(proxy.dsn, command_timeout=0.6, max_size=1)
    await warm(pool)
    granted = proxy.count(CLAIM)
    proxy.delay_replies = 1.2
    claim = asyncio.create_task(acquire(pool, "k"))
    await proxy.wait_for(CLAIM, count=granted + 1)
    await asyncio.sleep(0.1)
    proxy.delay_replies = 0
    with pytest.raises(TimeoutError):
        await claim
    await observe.until_free("k", within=5)
    assert await observe.fence("k") == 1


async def test_session_that_the_server_ends_when_idle_costs_no_lease(make_pool: MakePool, observe: Observer) -> None:
    """With every connection ended between two beats, renewals find or make another in time."""
    pool = await make_pool(**settings(idle_session_timeout="100ms"))
    told = Recorder()
    async with lease(pool, "k", ttl=10, heartbeat=0.25, observer=told):
        await until(lambda: len(told.of(Renewed)) > 2, within=9)
    assert told.of(Lost) == []
    assert await observe.is_free("k")
