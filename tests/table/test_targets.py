"""What a lease can be acquired on: a pool, by its one default table, or a LeaseTable."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire, lease, try_acquire
from asyncpg_lease.table import store_of
from tests.conftest import MakePool
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel
from tests.support.typing import Pool

WAYS: list[Callable[[Any], object]] = [
    LeaseTable,
    lambda target: lease(target, "k"),
    lambda target: acquire(target, "k"),
    lambda target: try_acquire(target, "k"),
]


async def use(way: Callable[[Any], object], target: object) -> None:
    """Use a target as a lease's, as far as it goes."""
    made = way(target)
    if isinstance(made, Awaitable):
        await made


async def test_target_that_is_no_pool_is_refused(pool: Pool, dsn: str) -> None:
    """A connection, a pool's connection, and what is neither, each have their TypeError."""
    connection = await asyncpg.connect(dsn)
    async with pool.acquire() as proxied:
        for target in (connection, proxied):
            for way in WAYS:
                with pytest.raises(TypeError, match=r"a pool, not a single connection.*create_pool"):
                    await use(way, target)
    await connection.close()
    for nothing in (None, dsn, object(), asyncpg.Pool, [pool]):
        for way in WAYS:
            with pytest.raises(TypeError, match=r"asyncpg\.Pool or a LeaseTable, not \w+; pass what"):
                await use(way, nothing)


@pytest.mark.usefixtures("table")
async def test_target_of_another_loop_is_refused_before_any_statement(make_pool: MakePool, proxy: Proxy) -> None:
    """Another loop's pool is a RuntimeError that says to make one for each, and nothing is sent."""
    pool = await make_pool(proxy.dsn)
    theirs = LeaseTable(pool)
    proxy.forget()

    async def elsewhere(verb: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await verb()

    async def enter() -> None:
        async with lease(pool, "k"):
            pytest.fail("entered")

    verbs: list[Callable[[], Awaitable[object]]] = [
        lambda: acquire(pool, "k"),
        lambda: try_acquire(theirs, "k"),
        enter,
        lambda: theirs.get("k"),
        theirs.leases,
        theirs.create,
        theirs.verify,
    ]
    for verb in verbs:
        await asyncio.to_thread(asyncio.run, elsewhere(verb))
    assert proxy.round_trips == 0
    assert proxy.statements == []


def test_target_without_a_running_loop_is_refused() -> None:
    """Where no asyncio loop runs, as under trio, that is what the error says."""
    call = acquire(LeaseTable(object.__new__(asyncpg.Pool)), "k")
    with pytest.raises(RuntimeError, match="asyncio event loop"):
        call.send(None)
    call.close()


async def test_pool_has_one_default_table(table: LeaseTable, pool: Pool, make_pool: MakePool) -> None:
    """Leases by the pool share one table for as long as one of them is alive; another pool has another."""
    held = await acquire(pool, "k")
    store = store_of(pool)
    again = await acquire(pool, "l")
    assert store_of(pool) is store
    other = await make_pool()
    assert store_of(other) is not store
    assert store_of(table) is not store
    assert store.name.quoted == '"public"."lease"'
    await held.release()
    await again.release()


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_pool_s_default_table_lives_as_long_as_a_lease_of_it(pool: Pool, travel: Travel) -> None:
    """The lease alone keeps its table; where the table was found is known as long as the pool lives."""
    held = await acquire(pool, "k")
    kept = weakref.ref(store_of(pool))
    gc.collect()
    assert kept() is not None
    assert kept() is store_of(pool)
    await held.release()
    del held
    # A timer of its workers may be under way still.
    await travel(1)
    gc.collect()
    assert kept() is None
    assert store_of(pool).name.quoted == '"public"."lease"'


def pools_alive() -> list[int]:
    """Return the identities of all pools there are; asyncpg's take no weak reference."""
    gc.collect()
    return [id(one) for one in gc.get_objects() if isinstance(one, asyncpg.Pool)]


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_pool_is_collected_when_it_is_closed_and_nothing_of_it_is_alive(
    dsn: str, pool: Pool, travel: Travel
) -> None:
    """After leases by the pool and by a table nothing of ours keeps it, once another pool is used."""
    # Without a lifetime of idle connections: before 0.32 the driver's own timer for it keeps a closed pool alive.
    other, pool = pool, await asyncpg.create_pool(dsn, min_size=1, max_size=2, max_inactive_connection_lifetime=0)
    mine = LeaseTable(pool)
    collected = weakref.ref(store_of(mine))
    for target in (pool, mine):
        await (await acquire(target, "k")).release()
        async with lease(target, "k", ttl=15):
            await travel(8)
    identity = id(pool)
    assert identity in pools_alive()
    await mine.aclose()
    await pool.close()
    del pool, target, mine
    await (await acquire(other, "k")).release()
    # A timer of its workers may be under way still.
    await travel.until(lambda: identity not in pools_alive(), within=5)
    assert collected() is None


@pytest.mark.usefixtures("table")
async def test_default_tables_of_many_short_lived_pools_are_each_their_own(dsn: str, observe: Observer) -> None:
    """A pool that takes a dead one's place in memory does not take its table."""
    for number in range(6):
        pool = await asyncpg.create_pool(dsn, min_size=1, max_size=1)
        held = await acquire(pool, f"k{number}")
        assert store_of(pool).connections.pool is pool
        await held.release()
        await pool.close()
        del pool, held
    assert len(await observe.rows()) == 6
