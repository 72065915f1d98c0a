"""Renewals that the user asks for, beside the heartbeat's."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from asyncpg_lease import acquire, lease
from asyncpg_lease.events import Lost, Renewed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, spin, until
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RENEW
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "by-hand"


@pytest.mark.usefixtures("table")
async def test_renew_by_hand_that_is_cancelled_in_the_queue_is_not_sent(make_pool: MakePool, proxy: Proxy) -> None:
    """A renewal that nobody waits for any more when a connection comes is left out."""
    pool = await make_pool(proxy.dsn, max_size=1)
    held = await acquire(pool, KEY, ttl=30)
    async with pool.acquire():
        renewal = asyncio.create_task(held.renew())
        await spin(20)
        renewal.cancel()
        with pytest.raises(asyncio.CancelledError):
            await renewal
    await until(lambda: not library_tasks())
    assert proxy.count(RENEW) == 0
    await held.release()


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_renew_by_hand_whose_answer_comes_after_the_release_is_ignored(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """Whatever a renewal finds once the tenure was given up is neither a loss nor more trust."""
    pool = await make_pool(proxy.dsn, min_size=2, max_size=2)
    told = Recorder()
    # A link that is silent for a tenth of the ttl would be given up.
    held = await acquire(pool, KEY, ttl=100, observer=told)
    # The first one would be prepared as well, which takes an answer more.
    await asyncio.gather(held.renew(), held.renew())
    renewed = len(told.of(Renewed))
    proxy.delay_replies = 8
    renewal = asyncio.create_task(held.renew())
    # The latency is that of bytes that arrive from now on.
    await travel(4)
    proxy.delay_replies = 0
    await held.release()
    assert not renewal.done()
    await travel.until(renewal.done, within=8)
    await renewal
    assert held.lost is None
    assert held.remaining == 0
    assert not told.of(Lost)
    assert len(told.of(Renewed)) == renewed


@pytest.mark.usefixtures("table")
async def test_renew_by_hand_raises_what_the_driver_raised(pool: Pool, observe: Observer) -> None:
    """renew() passes errors on, and an error is no loss."""
    async with lease(pool, KEY, ttl=30) as held:
        await observe.connection.execute("ALTER TABLE lease RENAME TO elsewhere")
        with pytest.raises(Exception, match="lease") as caught:
            await held.renew()
        assert not isinstance(caught.value, asyncpg.PostgresError)
        assert held.is_held
        await observe.connection.execute("ALTER TABLE elsewhere RENAME TO lease")
        await held.renew()
