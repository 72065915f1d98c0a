"""Many leases on a few connections that others use as well: none is pinned, and all are renewed in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from asyncpg_lease import LeaseTable, acquire
from asyncpg_lease.events import Lost, Renewed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until
from tests.support.proxy import Proxy
from tests.support.statements import RENEW


class Load(NamedTuple):
    """So many leases on so many connections, each of which others use for `busy` seconds and leave for `idle`."""

    leases: int
    connections: int
    ttl: float
    heartbeat: float
    busy: float
    idle: float


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "load",
    [
        Load(100, 2, ttl=9, heartbeat=1, busy=0.05, idle=0.05),
        Load(60, 1, ttl=9, heartbeat=0.8, busy=0.1, idle=0.1),
        # The others keep a connection for longer than the renewals' interval.
        Load(200, 2, ttl=12, heartbeat=0.8, busy=1.2, idle=0.6),
        Load(300, 3, ttl=9, heartbeat=1, busy=0.02, idle=0.02),
    ],
    ids=lambda load: f"{load.leases} on {load.connections}, {load.busy:g} busy",
)
async def test_leases_on_a_small_pool_are_renewed_in_time_beside_its_other_users(
    make_pool: MakePool, proxy: Proxy, load: Load
) -> None:
    """Every lease is kept, few statements do it, and in between all connections are the pool's."""
    pool = await make_pool(proxy.dsn, min_size=load.connections, max_size=load.connections)
    # Two tables on one pool: they share nothing but its connections.
    tables = [LeaseTable(pool), LeaseTable(pool, "other")]
    await tables[1].create()
    told, stop = Recorder(), asyncio.Event()

    async def use() -> None:
        while not stop.is_set():
            async with pool.acquire():
                await asyncio.sleep(load.busy)
            await asyncio.sleep(load.idle)

    async with AsyncExitStack() as stack:
        claims = (
            acquire(tables[n % 2], f"key-{n}", ttl=load.ttl, heartbeat=load.heartbeat, observer=told)
            for n in range(load.leases)
        )
        leases = await asyncio.gather(*claims)
        for held in leases:
            await stack.enter_async_context(held)
        proxy.forget()
        async with asyncio.TaskGroup() as group:
            for _ in range(load.connections):
                group.create_task(use())
            try:
                keys = load.leases
                await until(lambda: _least(told, keys) >= 2, within=2 * load.ttl)
            finally:
                stop.set()
        renewals = len(told.of(Renewed))
        # While all are held: a pinned connection would never come back.
        await until(lambda: pool.get_idle_size() == load.connections)
        assert all(held.is_held for held in leases)
    assert not told.of(Lost)
    # What is due together goes out together, or a pool of a few could not keep up with thousands.
    assert proxy.count(RENEW) < renewals / 4
    for table in tables:
        await table.aclose()


@pytest.mark.usefixtures("table")
async def test_hundred_leases_leave_a_connection_of_two_idle_beside_its_other_users(
    make_pool: MakePool, proxy: Proxy
) -> None:
    """Of a pool that others use half of the time the leases' renewals take next to nothing, for five ttls."""
    pool = await make_pool(proxy.dsn, min_size=2, max_size=2)
    told, until_then = Recorder(), asyncio.get_running_loop().time() + 15
    # The two of them in turns: half of the pool, whatever the machine does, and never all of it.
    turn = asyncio.Lock()

    async def use() -> None:
        while asyncio.get_running_loop().time() < until_then:
            async with turn, pool.acquire():
                await asyncio.sleep(0.05)

    async with AsyncExitStack() as stack:
        claims = (acquire(pool, f"key-{n}", ttl=3, observer=told) for n in range(100))
        for held in await asyncio.gather(*claims):
            await stack.enter_async_context(held)
        proxy.forget()
        users = [asyncio.create_task(use()) for _ in range(2)]
        idle = []
        while asyncio.get_running_loop().time() < until_then:
            idle.append(pool.get_idle_size() > 0)
            await asyncio.sleep(0.01)
        await asyncio.gather(*users)
    assert not told.of(Lost)
    assert sum(idle) > 0.8 * len(idle)
    # Each lease was renewed again and again, and what was due together took one statement and one connection.
    assert _least(told, 100) >= 10
    assert proxy.count(RENEW) < 100


def _least(told: Recorder, keys: int) -> int:
    """Return how often the lease that was renewed least was renewed."""
    renewals = Counter(event.key for event in told.of(Renewed))
    return min(renewals.values()) if len(renewals) == keys else 0
