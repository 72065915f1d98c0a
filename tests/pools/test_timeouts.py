"""Servers and pools that cut things short: a statement, a lock wait, an idle session, a transaction."""

from __future__ import annotations

import asyncio
import re

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
from tests.support.statements import CLAIM, RELEASE
from tests.support.travel import Travel
from tests.support.typing import PooledConnection

# asyncpg before 0.32 tells of the connection alone where the server ends that as well.
ENDED = "timeout|connection was closed"
BRIEF = {
    "statement_timeout": asyncpg.QueryCanceledError,
    "lock_timeout": asyncpg.LockNotAvailableError,
    "transaction_timeout": asyncpg.PostgresConnectionError,
}

pytestmark = pytest.mark.usefixtures("table")


class Brief:
    """A setting that ends a statement which waits for a lock: on as a rule, off where nothing is to be cut short."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.on = True

    @property
    def error(self) -> type[Exception]:
        """What the driver raises."""
        return BRIEF[self.name]

    async def setup(self, connection: PooledConnection) -> None:
        """Be a pool's `setup`."""
        await connection.execute(f"SET {self.name} = '{'50ms' if self.on else '0'}'")


@pytest.fixture(params=BRIEF)
def brief(request: pytest.FixtureRequest, server: Server) -> Brief:
    """Each of the settings; on."""
    name = str(request.param)
    if name == "transaction_timeout" and server.major < 17:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    return Brief(name)


async def test_timeout_of_a_claim_comes_out_as_the_driver_s_error(
    make_pool: MakePool, observe: Observer, brief: Brief
) -> None:
    """A claim that the server cuts short is no evidence of an incumbent, and leaves nothing behind."""
    pool = await make_pool(setup=brief.setup)
    async with observe.inserting("k"):
        with pytest.raises(brief.error):
            await acquire(pool, "k")
    assert await observe.rows() == []


async def test_timeout_of_a_claim_is_waited_out_while_waiting(
    make_pool: MakePool, observe: Observer, brief: Brief
) -> None:
    """While it waits for the key, a claim that the server cuts short is tried again, with its cause told."""
    table = LeaseTable(await make_pool(setup=brief.setup), poll=0.05)
    told = Recorder()
    async with observe.inserting("k"):
        waiter = asyncio.create_task(acquire(table, "k", wait=30, observer=told))
        await until(lambda: len(told.of(WaitingFailed)) > 1)
    held = await waiter
    assert re.search(ENDED, told.of(WaitingFailed)[0].error)
    await held.release()


async def test_timeout_of_renewals_is_no_loss(make_pool: MakePool, observe: Observer, brief: Brief) -> None:
    """A renewal that waits for a lock of the whole table is cut short and tried again, and the lease is kept."""
    pool = await make_pool(setup=brief.setup)
    told = Recorder()
    brief.on = False
    async with lease(pool, "k", ttl=30, heartbeat=0.05, observer=told) as held:
        brief.on = True
        async with observe.connection.transaction():
            await observe.connection.execute("LOCK TABLE lease")
            await until(lambda: len(told.of(RenewFailed)) > 1)
        renewals = len(told.of(Renewed))
        await until(lambda: len(told.of(Renewed)) > renewals)
        assert held.is_held
        brief.on = False
    assert re.search(ENDED, told.of(RenewFailed)[0].error)
    assert told.of(Lost) == []


async def test_timeout_of_a_release_is_tried_again(
    make_pool: MakePool, proxy: Proxy, observe: Observer, brief: Brief
) -> None:
    """A release that is cut short at a row that somebody has locked comes through when the lock is gone."""
    pool = await make_pool(proxy.dsn, setup=brief.setup)
    brief.on = False
    held = await acquire(pool, "k")
    brief.on = True
    async with observe.locked("k"):
        release = asyncio.create_task(held.release())
        await proxy.wait_for(RELEASE, count=2)
        assert not release.done()
    await release
    assert await observe.is_free("k")


async def test_timeout_of_the_pool_s_commands_leaves_nothing_claimed(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """Where command_timeout ends a claim that the server grants, the claim is given back."""
    pool = await make_pool(proxy.dsn, command_timeout=10, max_size=1)
    await warm(pool)
    granted = proxy.count(CLAIM)
    proxy.delay_replies = 20
    claim = asyncio.create_task(acquire(pool, "k"))
    await proxy.wait_for(CLAIM, count=granted + 1)
    # The latency is that of bytes that arrive from now on: let the answer arrive.
    await travel(1)
    assert await observe.fence("k") == 1
    proxy.delay_replies = 0
    with pytest.raises(TimeoutError):
        await travel.through(claim, within=15)
    await travel.until(lambda: observe.is_free("k"), within=15)
    assert await observe.fence("k") == 1


async def test_session_that_the_server_ends_when_idle_costs_no_lease(
    make_pool: MakePool, observe: Observer, travel: Travel
) -> None:
    """With every connection ended between two beats, renewals find or make another in time."""
    pool = await make_pool(**settings(idle_session_timeout="100ms"))
    told = Recorder()
    # A busy machine may let the session end before the claim has reached it.
    async with lease(LeaseTable(pool, poll=0.05), "k", ttl=15, wait=15, observer=told):
        for renewals in range(2):
            await until(lambda: pool.get_size() == 0)
            await travel.until(lambda renewals=renewals: len(told.of(Renewed)) > renewals, within=10)
    assert told.of(Lost) == []
    assert await observe.is_free("k")
