"""LeaseTable.aclose(): what is under way is waited for, and nothing begins after it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from asyncpg_lease import Lease, LeaseTable, acquire, lease, try_acquire
from tests.conftest import MakePool
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE
from tests.support.typing import Pool


async def slow_table(make_pool: MakePool, proxy: Proxy, table: LeaseTable) -> LeaseTable:
    """Return the table by way of the proxy, its statements known to the one connection."""
    slow = LeaseTable(await make_pool(proxy.dsn, min_size=1, max_size=1), schema="public")
    await (await acquire(slow, "warm")).release()
    await slow.aclose()
    assert slow.name == table.name
    return LeaseTable(slow._store.connections.pool, schema="public")


async def test_close_waits_for_a_claim_that_is_given_back(
    table: LeaseTable, make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """The give-back of an acquire that was cancelled, and whose caller is gone, is over when aclose() returns."""
    slow = await slow_table(make_pool, proxy, table)
    proxy.forget()
    proxy.delay_replies = 1.3
    claiming = asyncio.create_task(acquire(slow, "k"))
    await proxy.wait_for(CLAIM)
    claiming.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    assert time.monotonic() - started < 1.2
    assert not await observe.is_free("k")
    await slow.aclose()
    assert await observe.is_free("k")
    assert library_tasks() == []


async def test_close_waits_for_a_release_under_way(
    table: LeaseTable, make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """A release that somebody has begun and nobody waits for is done when aclose() returns."""
    slow = await slow_table(make_pool, proxy, table)
    held = await acquire(slow, "k")
    proxy.forget()
    proxy.delay_requests = 0.3
    releasing = asyncio.create_task(held.release())
    await asyncio.sleep(0.05)
    releasing.cancel()
    await slow.aclose()
    assert await observe.is_free("k")
    assert proxy.count(RELEASE) == 1
    proxy.delay_requests = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        await releasing


async def test_close_refuses_what_comes_after_it(table: LeaseTable) -> None:
    """Nothing can be acquired on a closed table, in whatever way, and the message says why."""
    await table.aclose()
    await table.aclose()

    async def enter() -> None:
        async with lease(table, "k"):
            pass

    async def hold(claim: Callable[..., Awaitable[Lease | None]], **options: float) -> None:
        if (held := await claim(table, "k", **options)) is not None:
            await held.release()

    for attempt in (enter, partial(hold, acquire), partial(hold, try_acquire), partial(hold, acquire, wait=5)):
        with pytest.raises(RuntimeError, match=r"closed.*aclose\(\)"):
            await attempt()


async def test_close_ends_a_waiting_acquire(table: LeaseTable, pool: Pool) -> None:
    """Who waits for a key on a table that is closed is told so by the next try, not after its wait."""
    other = LeaseTable(pool)
    held = await acquire(other, "k")
    quick = LeaseTable(pool, poll=0.05)
    waiting = asyncio.create_task(acquire(quick, "k", wait=30))
    await asyncio.sleep(0.1)
    await quick.aclose()
    async with asyncio.timeout(1):
        with pytest.raises(RuntimeError, match="closed"):
            await waiting
    await held.release()
    assert table.name


async def test_close_of_one_table_leaves_the_pool_and_its_other_tables(table: LeaseTable, pool: Pool) -> None:
    """Closing is the table object's own affair: a second one on the same pool serves on."""
    await table.aclose()
    held = await acquire(LeaseTable(pool), "k")
    await held.release()
    await (await acquire(pool, "k")).release()


async def test_close_leaves_a_lease_that_is_held_alone(table: LeaseTable, observe: Observer) -> None:
    """A held lease goes on being renewed, and is released at its block's end."""
    async with lease(table, "k", ttl=0.6):
        async with asyncio.timeout(1):
            await table.aclose()
        await asyncio.sleep(0.9)
        assert not await observe.is_free("k")
    assert await observe.is_free("k")


async def test_close_with_nothing_under_way_returns_at_once(pool: Pool) -> None:
    """A table that was never used has nothing to wait for, not even the server."""
    async with asyncio.timeout(0.1):
        await LeaseTable(pool, "never").aclose()
