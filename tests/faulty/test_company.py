"""Leases of one pool that have nothing to do with each other."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.faulty.conftest import Inserting
from tests.support.leasing import warm
from tests.support.proxy import Proxy
from tests.support.statements import RENEW

pytestmark = pytest.mark.usefixtures("table")


@pytest.mark.parametrize("first", ["healthy", "impatient"])
async def test_impatient_renewal_does_not_end_the_statement_of_others(
    make_pool: MakePool, proxy: Proxy, first: str
) -> None:
    """A renewal of a lease with little time left fails alone; the other one in its statement is confirmed."""
    pool = await make_pool(proxy.dsn, min_size=2, max_size=2)
    await warm(pool)
    healthy = await acquire(pool, "healthy", ttl=60)
    impatient = await acquire(pool, "impatient", ttl=0.6)
    await asyncio.sleep(0.1)
    links = proxy.links
    proxy.delay_replies = 1.2
    proxy.forget()
    both = sorted([healthy, impatient], key=lambda held: held.key != first)
    outcomes = dict(
        zip(
            [held.key for held in both],
            await asyncio.gather(*(held.renew() for held in both), return_exceptions=True),
            strict=True,
        )
    )
    proxy.delay_replies = 0.0
    for held in both:
        await held.release()
    assert isinstance(outcomes["impatient"], TimeoutError)
    assert outcomes["healthy"] is None
    assert proxy.count(RENEW) == 1
    assert proxy.links == links


async def test_block_left_by_a_timeout_comes_out_though_another_claim_is_stuck(
    table: LeaseTable, inserting: Inserting
) -> None:
    """A block that asyncio.timeout ends does not wait for a claim of somebody else's that gets no answer."""
    await warm(table)
    async with inserting("stuck"):
        stuck = asyncio.create_task(acquire(table, "stuck", ttl=60))
        await asyncio.sleep(0.2)
        took: list[float] = []
        for _ in range(3):
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2), lease(table, "mine", ttl=30):
                    await asyncio.sleep(10)
            took.append(time.monotonic() - started)
        assert not stuck.done()
        stuck.cancel()
        await asyncio.wait([stuck])
    # The quietest of three: the machine is not ours alone.
    assert min(took) < 0.55


async def test_claims_that_are_stuck_do_not_lose_an_innocent_lease(make_pool: MakePool, inserting: Inserting) -> None:
    """Two waiting claims that the server does not answer give a pool of 2 back in time for a renewal."""
    pool = await make_pool(min_size=2, max_size=2)
    await warm(pool)
    async with lease(pool, "innocent", ttl=6, heartbeat=1, grace=0.3) as innocent:
        async with inserting("stuck"):
            stuck = [asyncio.create_task(acquire(pool, "stuck", ttl=20, wait=30)) for _ in range(2)]
            await asyncio.sleep(6.3)
            assert innocent.is_held
            for claiming in stuck:
                claiming.cancel()
        await asyncio.wait(stuck)
