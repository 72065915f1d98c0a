"""LeaseTable.aclose(): what is under way is waited for, and nothing begins after it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from asyncpg_lease import Lease, LeaseTable, acquire, lease, try_acquire
from tests.conftest import MakePool
from tests.support.leasing import until, warm
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE
from tests.support.travel import Travel
from tests.support.typing import Pool


@pytest.fixture
async def slow(table: LeaseTable, make_pool: MakePool, proxy: Proxy) -> LeaseTable:
    """The table by way of the proxy, its statements known to the one connection."""
    pool = await make_pool(proxy.dsn, min_size=1, max_size=1)
    before = LeaseTable(pool, schema="public")
    await warm(before)
    await until(pool.get_idle_size)
    await before.aclose()
    assert before.name == table.name
    proxy.forget()
    return LeaseTable(pool, schema="public")


async def test_close_waits_for_a_claim_that_is_given_back(
    slow: LeaseTable, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """The give-back of an acquire that was cancelled, and whose caller is gone, is over when aclose() returns."""
    # More than whoever was cancelled waits, and less than a statement that nobody waits for may take.
    proxy.delay_replies = 2.2
    claiming = asyncio.create_task(acquire(slow, "k"))
    await proxy.wait_for(CLAIM)
    claiming.cancel()
    await travel.until(claiming.done, within=2)
    with pytest.raises(asyncio.CancelledError):
        await claiming
    # Only the claim's answer is late, and it is on its way.
    proxy.delay_replies = 0.0
    assert not await observe.is_free("k")
    closing = asyncio.create_task(slow.aclose())
    await travel(0.2)
    assert not closing.done()
    await travel.until(closing.done, within=20)
    assert await observe.is_free("k")
    assert library_tasks() == []


async def test_close_waits_for_a_release_under_way(
    slow: LeaseTable, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """A release that somebody has begun and nobody waits for is done when aclose() returns."""
    held = await acquire(slow, "k")
    proxy.forget()
    proxy.delay_requests = 2.0
    releasing = asyncio.create_task(held.release())
    await travel(0.2)
    releasing.cancel()
    closing = asyncio.create_task(slow.aclose())
    await travel(0.2)
    assert not closing.done()
    assert not await observe.is_free("k")
    await travel.until(closing.done, within=20)
    assert await observe.is_free("k")
    assert proxy.count(RELEASE) == 1
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


@pytest.mark.usefixtures("table")
async def test_close_ends_a_waiting_acquire(pool: Pool, travel: Travel) -> None:
    """Who waits for a key on a table that is closed is told so by the next try, not after its wait."""
    other = LeaseTable(pool)
    held = await acquire(other, "k", ttl=600)
    polling = LeaseTable(pool, poll=5)
    waiting = asyncio.create_task(acquire(polling, "k", wait=300))
    await travel(12)
    await polling.aclose()
    await travel.until(waiting.done, within=8)
    with pytest.raises(RuntimeError, match="closed"):
        await waiting
    await held.release()


async def test_close_of_one_table_leaves_the_pool_and_its_other_tables(table: LeaseTable, pool: Pool) -> None:
    """Closing is the table object's own affair: a second one on the same pool serves on."""
    await table.aclose()
    fences = []
    for target in (LeaseTable(pool), pool):
        held = await acquire(target, "k")
        fences.append(held.fence)
        await held.release()
    assert fences == [1, 2]


async def test_close_leaves_a_lease_that_is_held_alone(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """A held lease goes on being renewed, and is released at its block's end."""
    async with lease(table, "k", ttl=30) as held:
        async with asyncio.timeout(5):
            await table.aclose()
        await travel(45)
        assert held.is_held
        assert not await observe.is_free("k")
    assert await observe.is_free("k")


async def test_close_with_nothing_under_way_returns_at_once(make_pool: MakePool, proxy: Proxy) -> None:
    """A table that was never used has nothing to wait for, not even the server."""
    pool = await make_pool(proxy.dsn)
    proxy.freeze()
    async with asyncio.timeout(5):
        await LeaseTable(pool, "never").aclose()
    proxy.thaw()
    assert proxy.statements == []
