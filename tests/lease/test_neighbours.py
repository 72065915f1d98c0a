"""Leases of one pool that have nothing to do with each other."""

from __future__ import annotations

import asyncio

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.support.leasing import warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RENEW
from tests.support.travel import Travel

pytestmark = pytest.mark.usefixtures("table")


@pytest.mark.parametrize("first", ["healthy", "impatient"])
async def test_impatient_renewal_does_not_end_the_statement_of_others(
    make_pool: MakePool, proxy: Proxy, travel: Travel, first: str
) -> None:
    """A renewal of a lease with little time left fails alone; the other one in its statement is confirmed."""
    pool = await make_pool(proxy.dsn, min_size=2, max_size=2)
    await warm(pool)
    healthy = await acquire(pool, "healthy", ttl=120)
    impatient = await acquire(pool, "impatient", ttl=8)
    await travel(2)
    links = proxy.links
    # Later than the one can wait, and sooner than the other's connection is given up, a tenth of its ttl.
    proxy.delay_replies = 9
    proxy.forget()
    both = sorted([healthy, impatient], key=lambda held: held.key != first)
    renewals = {held.key: asyncio.create_task(held.renew()) for held in both}
    await travel(1)
    proxy.delay_replies = 0.0
    await travel.until(lambda: all(each.done() for each in renewals.values()), within=11)
    for held in both:
        await held.release()
    assert isinstance(renewals["impatient"].exception(), TimeoutError)
    assert renewals["healthy"].exception() is None
    assert proxy.count(RENEW) == 1
    assert proxy.links == links


async def test_block_left_by_a_timeout_comes_out_though_another_claim_is_stuck(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """A block that asyncio.timeout ends does not wait for a claim of somebody else's that gets no answer."""
    await warm(table)
    cancelled = asyncio.Event()

    async def time_out() -> None:
        async with asyncio.timeout(5), lease(table, "mine", ttl=30):
            try:
                await asyncio.sleep(100)
            finally:
                cancelled.set()

    async with observe.inserting("stuck"):
        stuck = asyncio.create_task(acquire(table, "stuck", ttl=600))
        await observe.until_waiting()
        leaving = asyncio.create_task(time_out())
        await travel.until(cancelled.is_set, within=10)
        # No more time has to pass.
        await travel.until(leaving.done, within=0)
        with pytest.raises(TimeoutError):
            await leaving
        assert not stuck.done()
        stuck.cancel()
        await travel.until(stuck.done, within=5)


@pytest.mark.slow("takes half a second or so")
async def test_claims_that_are_stuck_do_not_lose_an_innocent_lease(
    make_pool: MakePool, observe: Observer, travel: Travel
) -> None:
    """Two waiting claims that the server does not answer give a pool of 2 back in time for a renewal."""
    pool = await make_pool(min_size=2, max_size=2)
    await warm(pool)
    async with lease(pool, "innocent", ttl=10) as innocent:
        async with observe.inserting("stuck"):
            stuck = [asyncio.create_task(acquire(pool, "stuck", ttl=20, wait=60)) for _ in range(2)]
            await observe.until_waiting(2)
            # The deadline is on this side: the row need not become older.
            await travel(10.5, rows=False)
            assert innocent.is_held
            assert not any(claiming.done() for claiming in stuck)
            for claiming in stuck:
                claiming.cancel()
        await asyncio.wait(stuck)
