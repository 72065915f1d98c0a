"""on_lost="flag": a loss is marked, logged and told, and the body goes on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.support.leasing import here, spin
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel

KEY = "flagged"


async def test_flag_marks_logs_and_wakes_without_cancelling(
    table: LeaseTable, observe: Observer, travel: Travel, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss is in `lost`, in the log as an ERROR, and ends both waits; nothing is raised or cancelled."""
    async with lease(table, KEY, ttl=30, on_lost="flag") as held:
        stopping, lost = asyncio.create_task(held.wait_stopping()), asyncio.create_task(held.wait_lost())
        await observe.hand_over(KEY)
        assert await travel.through(stopping, within=15) == held.stop_reason == "taken_over"
        loss = await travel.through(lost, within=1)
        assert loss is held.lost
        assert isinstance(loss, LeaseLostError)
        assert (loss.reason, loss.taken_by) == ("taken_over", "other")
        assert not held.is_held
        with pytest.raises(LeaseLostError):
            held.raise_if_stopping()
        with pytest.raises(LeaseLostError):
            await held.renew()
        await spin(5)
        assert here().cancelling() == 0
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage().split(":")[0] for record in errors] == ["lease lost"]
    record = await observe.row(KEY)
    assert record is not None
    assert record["holder"] == "other"


@pytest.mark.usefixtures("table")
async def test_flag_by_the_deadline_is_the_same(make_pool: MakePool, proxy: Proxy, travel: Travel) -> None:
    """A loss by the deadline is flagged like any other."""
    pool = await make_pool(proxy.dsn)
    async with lease(pool, KEY, ttl=30, on_lost="flag") as held:
        proxy.freeze()
        loss = await travel.through(held.wait_lost(), within=28)
        assert loss is not None
        assert loss.reason == "unreachable"
        assert not held.is_held
        assert here().cancelling() == 0
        proxy.thaw()


async def test_flag_lets_the_bodys_error_out(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """The body's own error comes out of a flagged block as of any other."""
    with pytest.raises(ValueError, match="mine"):
        async with lease(table, KEY, ttl=30, on_lost="flag") as held:
            await observe.expire(KEY)
            await travel.through(held.wait_lost(), within=15)
            message = "mine"
            raise ValueError(message)


async def test_wait_lost_returns_none_when_the_block_is_left(table: LeaseTable) -> None:
    """A watcher of a lease that ends well is told so: None."""
    async with lease(table, KEY) as held:
        waiter = asyncio.create_task(held.wait_lost())
        await asyncio.sleep(0)
    assert await waiter is None


async def test_wait_lost_of_a_lease_that_is_not_entered_ends_at_its_deadline(table: LeaseTable, travel: Travel) -> None:
    """Before it is entered nobody else keeps the deadline: who waits is told that it expired."""
    held = await acquire(table, KEY, ttl=30)
    loss = await travel.through(held.wait_lost(), within=28)
    assert loss is not None
    assert loss.reason == "expired"
    assert held.lost is loss


async def test_wait_lost_of_a_lease_that_is_not_entered_ends_at_its_release(table: LeaseTable) -> None:
    """A lease that is released without a block ends without a loss."""
    held = await acquire(table, KEY, ttl=30)
    waiter = asyncio.create_task(held.wait_lost())
    await spin(2)
    await held.release()
    assert await asyncio.wait_for(waiter, 2) is None
