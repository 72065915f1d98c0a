"""Many leases on a few connections that others use as well: none is pinned, and all are renewed in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import NamedTuple

import pytest

from asyncpg_lease import LeaseTable, acquire
from asyncpg_lease.events import Lost, Renewed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until
from tests.support.proxy import Proxy
from tests.support.statements import RENEW
from tests.support.travel import Travel
from tests.support.typing import Pool


class Load(NamedTuple):
    """So many leases on so many connections, each of which others use for `busy` seconds and leave for `idle`."""

    leases: int
    connections: int
    ttl: float
    heartbeat: float
    busy: float
    idle: float


class Outcome(NamedTuple):
    """Which keys were lost, and how many leases a statement renewed."""

    lost: list[str]
    per_statement: float


Wait = Callable[[Callable[[], bool]], Awaitable[object]]


async def renew_beside_others(pool: Pool, proxy: Proxy, load: Load, wait: Wait) -> Outcome:
    """Hold leases until each was renewed twice and all connections are the pool's again.

    Args:
        pool: A pool behind the proxy.
        proxy: The proxy.
        load: The leases, and what others do with the pool's connections.
        wait: Waits, or lets time pass, until a condition is true.
    """
    # Two tables on one pool: they share nothing but its connections.
    tables = [LeaseTable(pool), LeaseTable(pool, "other")]
    await tables[1].create()
    told = Recorder()

    async def use() -> None:
        while True:
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
        users = [asyncio.create_task(use()) for _ in range(load.connections)]
        try:
            await wait(lambda: _least(told, load.leases) >= 2)
        finally:
            for user in users:
                user.cancel()
            await asyncio.wait(users)
        renewals = len(told.of(Renewed))
        # While all are held: a pinned connection would never come back.
        await until(lambda: pool.get_idle_size() == load.connections)
        outcome = Outcome([held.key for held in leases if not held.is_held], renewals / proxy.count(RENEW))
    for table in tables:
        await table.aclose()
    return outcome._replace(lost=outcome.lost + [event.key for event in told.of(Lost)])


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "load",
    [
        Load(40, 2, ttl=60, heartbeat=6, busy=1.5, idle=1.5),
        Load(20, 1, ttl=60, heartbeat=5, busy=1, idle=1),
        # The others keep a connection for longer than the renewals' interval.
        Load(40, 2, ttl=60, heartbeat=4, busy=6, idle=3),
    ],
    ids=lambda load: f"{load.leases} on {load.connections}, {load.busy:g} busy",
)
async def test_leases_on_a_small_pool_are_renewed_in_time_beside_its_other_users(
    make_pool: MakePool, proxy: Proxy, travel: Travel, load: Load
) -> None:
    """Every lease is kept, few statements do it, and in between all connections are the pool's."""
    pool = await make_pool(proxy.dsn, min_size=load.connections, max_size=load.connections)
    # Without the rows, of which there are many.
    wait = partial(travel.until, within=2 * load.ttl, rows=False)
    outcome = await renew_beside_others(pool, proxy, load, wait)
    assert outcome.lost == []
    # What is due together goes out together, or a pool of a few could not keep up with thousands.
    assert outcome.per_statement > 4


@pytest.mark.slow("how much a pool can do shows in real time")
@pytest.mark.usefixtures("table")
async def test_three_hundred_leases_on_three_busy_connections_are_renewed_in_time(
    make_pool: MakePool, proxy: Proxy
) -> None:
    """Hundreds of leases are kept on a few connections that others take and give back all the time."""
    pool = await make_pool(proxy.dsn, min_size=3, max_size=3)
    load = Load(300, 3, ttl=12, heartbeat=1, busy=0.02, idle=0.02)
    outcome = await renew_beside_others(pool, proxy, load, partial(until, within=2 * load.ttl))
    assert outcome.lost == []
    assert outcome.per_statement > 4


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_leases_leave_a_connection_of_two_idle_beside_its_other_users(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """Of a pool that others use half of the time the leases' renewals take next to nothing, for two ttls."""
    pool = await make_pool(proxy.dsn, min_size=2, max_size=2)
    told, leases = Recorder(), 20
    idle: list[bool] = []

    async def use() -> None:
        while True:
            async with pool.acquire():
                await asyncio.sleep(2.6)

    async def look() -> None:
        while True:
            idle.append(pool.get_idle_size() > 0)
            await asyncio.sleep(1.3)

    async with AsyncExitStack() as stack:
        claims = (acquire(pool, f"key-{n}", ttl=15, observer=told) for n in range(leases))
        for held in await asyncio.gather(*claims):
            await stack.enter_async_context(held)
        proxy.forget()
        # Of the network, which is what a renewal takes here.
        proxy.delay_replies = 0.05
        others = [asyncio.create_task(use()), asyncio.create_task(look())]
        # Without the rows, of which there are many.
        await travel(2 * 15, rows=False)
        proxy.delay_replies = 0
        for other in others:
            other.cancel()
        await asyncio.wait(others)
    assert not told.of(Lost)
    assert sum(idle) > 0.8 * len(idle)
    # Each lease was renewed again and again, and what was due together took one statement and one connection.
    assert _least(told, leases) >= 4
    assert proxy.count(RENEW) < leases


def _least(told: Recorder, keys: int) -> int:
    """Return how often the lease that was renewed least was renewed."""
    renewals = Counter(event.key for event in told.of(Renewed))
    return min(renewals.values()) if len(renewals) == keys else 0
