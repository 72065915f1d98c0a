"""A failover to a synchronous standby: what holders and waiting calls make of it."""

from __future__ import annotations

import asyncio
import re
import time
from inspect import signature
from pathlib import Path
from textwrap import dedent

import asyncpg
import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Renewed, RenewFailed, WaitingFailed
from tests.conftest import MakePool
from tests.support.cluster import Pair, connecting
from tests.support.leasing import Recorder, until
from tests.support.proxy import Proxy
from tests.support.typing import Pool, Record

pytestmark = pytest.mark.slow("servers are stopped, promoted and copied")

PAGE = Path(__file__).parents[2] / "docs/explanation/failover.md"
KEY = "k"


@pytest.fixture
async def hosts(pair: Pair, make_pool: MakePool) -> Pool:
    """A pool of both nodes with a lease table; the standby is synchronous."""
    pool = await make_pool(pair.dsn)
    await LeaseTable(pool).create()
    await pair.cluster.set_synchronous(True)
    return pool


async def tenure(pair: Pair) -> Record | None:
    """Return what the primary knows of the key's tenure."""
    async with connecting(pair.primary) as connection:
        return await connection.fetchrow("SELECT holder, fence, acquired_at FROM lease WHERE key = $1", KEY)


@pytest.mark.parametrize("outage", [0.0, 1.5])
async def test_holder_whose_renewals_reach_the_new_primary_keeps_its_lease(
    pair: Pair, hosts: Pool, outage: float
) -> None:
    """The same tenure, with the same fence, goes on at the new server; the body hears nothing of it."""
    told = Recorder()
    async with lease(hosts, KEY, ttl=20, heartbeat=0.3, observer=told) as held:
        before = await tenure(pair)
        await pair.cluster.kill_primary()
        await until(lambda: told.of(RenewFailed), within=10)
        await asyncio.sleep(outage)
        await pair.cluster.promote()
        renewals = len(told.of(Renewed))
        await until(lambda: len(told.of(Renewed)) > renewals, within=15)
        assert held.is_held
        async with connecting(pair.primary) as connection:
            assert (
                await connection.fetchrow("SELECT holder, fence, acquired_at FROM lease WHERE key = $1", KEY) == before
            )
            async with held.transaction(connection):
                pass
    async with connecting(pair.primary) as connection:
        assert await connection.fetchval("SELECT expires_at <= clock_timestamp() FROM lease WHERE key = $1", KEY)


async def test_holder_of_a_failover_that_takes_too_long_has_stopped_before_the_next_one_starts(
    pair: Pair, hosts: Pool
) -> None:
    """Without a server the lease is given up in time, so that nobody runs beside it once there is one."""
    ended = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        async with lease(hosts, KEY, ttl=2, heartbeat=0.3):
            try:
                await asyncio.sleep(10)
            finally:
                ended.set_result(time.monotonic())

    holder = asyncio.create_task(hold())
    await until(lambda: holder.done() or hosts.get_idle_size() < hosts.get_size(), within=10)
    waiter = asyncio.create_task(acquire(LeaseTable(hosts, poll=0.05), KEY, wait=60))
    await asyncio.sleep(0.5)
    await pair.cluster.kill_primary()
    with pytest.raises(LeaseLostError) as caught:
        await holder
    assert caught.value.reason == "unreachable"
    await pair.cluster.promote()
    held = await waiter
    assert ended.result() < time.monotonic()
    assert held.fence == 2
    await held.release()


async def test_holder_whose_server_waits_for_a_standby_that_is_away_stops_in_time(pair: Pair, hosts: Pool) -> None:
    """A renewal that no standby has is none that can be trusted: it is not answered, and the lease is given up."""
    started = time.monotonic()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(hosts, KEY, ttl=3, heartbeat=0.3):
            await pair.cluster.cut_standby_off()
            await asyncio.sleep(10)
    assert caught.value.reason == "unreachable"
    assert time.monotonic() - started < 3 + 3 + 2
    hosts.terminate()


async def test_pool_that_takes_any_server_stays_with_a_standby_and_is_told_that_it_takes_no_writes(
    pair: Pair, make_pool: MakePool, hosts: Pool
) -> None:
    """A standby that answers is as good as a primary to such a pool; a claim says what it is."""
    assert hosts.get_size()
    node = pair.cluster.standby
    assert node is not None
    pool = await make_pool(pair.standby.replace(node.address, f"{node.address},{pair.cluster.primary.address}"))
    await pair.cluster.catch_up()
    for _ in range(3):
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await acquire(pool, KEY)


async def test_waiting_calls_come_through_a_failover(pair: Pair, hosts: Pool) -> None:
    """A call that waited before, and one that was made while no server took writes, get the key when it is free."""
    told = Recorder()
    table = LeaseTable(hosts, poll=0.05)
    incumbent = await acquire(table, KEY, ttl=60)
    early = asyncio.create_task(acquire(table, KEY, ttl=60, wait=60, observer=told))
    await asyncio.sleep(0.2)
    await pair.cluster.kill_primary()
    late = asyncio.create_task(acquire(table, "other", wait=60, observer=told))
    await until(lambda: {event.key for event in told.of(WaitingFailed)} == {KEY, "other"}, within=20)
    await pair.cluster.promote()
    other = await late
    await incumbent.release()
    held = await early
    assert (other.fence, held.fence) == (1, incumbent.fence + 1)
    await held.release()
    await other.release()


async def test_waiting_call_whose_only_host_is_a_standby_comes_in_when_it_is_promoted(
    pair: Pair, hosts: Pool, make_pool: MakePool
) -> None:
    """That no host takes writes is no error of a waiting call's: an address may move before the server does."""
    assert hosts.get_size()
    told = Recorder()
    pool = await make_pool(f"{pair.standby}?target_session_attrs=read-write", min_size=0)
    waiting = asyncio.create_task(acquire(LeaseTable(pool, poll=0.05), KEY, wait=60, observer=told))
    await until(lambda: told.of(WaitingFailed))
    assert "read-write" in told.of(WaitingFailed)[0].error
    await pair.cluster.fail_over()
    held = await waiting
    await held.release()


async def test_call_without_wait_says_that_no_host_takes_writes(pair: Pair, hosts: Pool) -> None:
    """Between the two servers' times a call that does not wait ends with what the driver said, and claims nothing."""
    await pair.cluster.kill_primary()
    for _ in range(5):
        with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
            await acquire(hosts, KEY, ttl=5)
    await pair.cluster.promote()
    held = await acquire(LeaseTable(hosts, poll=0.05), KEY, wait=20)
    assert held.fence == 1
    await held.release()


def with_front(pair: Pair, front: Proxy) -> str:
    """Return the DSN of both nodes in which the proxy stands in for the primary."""
    node = pair.cluster.primary
    return pair.dsn.replace(node.address, front.dsn.rpartition("@")[2].partition("/")[0])


def connect_as_told(*servers: str) -> object:
    """Return the function that the page gives a pool to connect with, for these servers."""
    (block,) = re.findall(r"^ *```python\n( *import asyncpg\n.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(compile(dedent(block), PAGE, "exec"), names)  # noqa: S102 - the page's own
    names["SERVERS"] = tuple(f"{dsn}?target_session_attrs=read-write" for dsn in servers)
    return names["connect"]


@pytest.mark.parametrize("in_turn", [False, pytest.param(True, marks=pytest.mark.night("waits for each host's limit"))])
async def test_silent_host_is_passed_over_where_each_host_has_a_limit_of_its_own(
    pair: Pair, make_pool: MakePool, in_turn: bool
) -> None:
    """The driver has one limit for all hosts, so one that is silent hides the others, and the lease is lost in time."""
    if in_turn and "connect" not in signature(asyncpg.create_pool).parameters:
        pytest.skip("asyncpg takes a function that connects since 0.30")
    await LeaseTable(await make_pool(pair.primary)).create()
    async with Proxy(pair.primary) as front:
        options = {"connect": connect_as_told(front.dsn, pair.standby)} if in_turn else {}
        pool = await make_pool(with_front(pair, front), min_size=0, max_size=2, **options)
        told = Recorder()
        reason = None
        started = time.monotonic()
        try:
            async with lease(pool, KEY, ttl=8, heartbeat=0.5, observer=told):
                await until(lambda: told.of(Renewed))
                await pair.cluster.catch_up()
                front.freeze()
                await pair.cluster.promote()
                moved = len(told.of(Renewed)) + 1
                await until(lambda: len(told.of(Renewed)) > moved, within=20)
        except LeaseLostError as error:
            reason = error.reason
        assert reason == (None if in_turn else "unreachable")
        assert time.monotonic() - started < 8 + 2 + 5
        pool.terminate()
