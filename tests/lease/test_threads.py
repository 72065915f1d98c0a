"""A thread that the body runs its work in, and asks there whether the lease is lost."""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Lost
from tests.support.leasing import Recorder, here, until
from tests.support.loops import run
from tests.support.observe import Observer
from tests.support.travel import Travel

KEY = "threaded"


def loss_in_thread(held: Lease) -> LeaseLostError | None:
    """Ask in another thread, while the loop stands still; return what was raised there."""
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(held.raise_if_stopping).exception()
    assert error is None or isinstance(error, LeaseLostError)
    return error


async def test_raise_if_stopping_in_a_thread_of_a_lease_that_is_held_or_left_raises_nothing(table: LeaseTable) -> None:
    """A thread may ask at any time; where nothing was lost there is nothing to raise."""
    async with lease(table, KEY, ttl=30) as held:
        assert loss_in_thread(held) is None
    assert loss_in_thread(held) is None


async def test_raise_if_stopping_in_a_thread_past_the_deadline_raises_before_the_loop_knows(
    table: LeaseTable, travel: Travel
) -> None:
    """The thread has its loss while the loop stands still, and what the loss does is done in the loop's thread."""
    told = Recorder()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30, observer=told) as held:
            travel.stall(31)
            loss = loss_in_thread(held)
            assert loss is not None
            assert loss.reason == "stalled"
            assert (held.lost, told.of(Lost)) == (None, [])
            await asyncio.sleep(5)
    assert caught.value is held.lost
    assert len(told.of(Lost)) == 1
    assert here().cancelling() == 0


async def test_raise_if_stopping_in_a_thread_after_the_loss_raises_it(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """A loss that the loop knows of is the very error that a thread is given."""
    async with lease(table, KEY, ttl=30, on_lost="flag") as held:
        await observe.hand_over(KEY)
        loss = await travel.through(held.wait_lost(), within=15)
        assert loss is not None
        assert await asyncio.to_thread(loss_in_thread, held) is loss


async def test_raise_if_stopping_in_a_thread_tells_the_loop_of_a_lease_that_is_not_entered(
    table: LeaseTable, travel: Travel
) -> None:
    """Without a heartbeat it is the thread's question alone that has the loss noted."""
    held = await acquire(table, KEY, ttl=30)
    travel.stall(31)
    assert held.lost is None
    assert loss_in_thread(held) is not None
    await until(lambda: held.lost)
    assert held.lost is not None


def test_raise_if_stopping_in_a_thread_after_its_event_loop_raises_all_the_same(dsn: str) -> None:
    """A thread that outlives the loop is told of the loss, though nobody else can be."""

    async def hold() -> Lease:
        async with asyncpg.create_pool(dsn, min_size=0) as pool:
            await LeaseTable(pool).create()
            return await acquire(pool, KEY, ttl=30)

    with pytest.warns(ResourceWarning, match="was dropped"):  # noqa: PT031 - the drop is it
        held = run(hold())
        Travel(None).stall(31)
        assert loss_in_thread(held) is not None
        del held
        gc.collect()
