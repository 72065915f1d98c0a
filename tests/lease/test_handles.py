"""Handles that are polled, forgotten, left in another order, or asked in a thread."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from contextvars import ContextVar

import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, acquire, current_lease, lease
from tests.support.observe import Observer
from tests.support.travel import Travel


async def test_loss_polled_a_thousand_times_keeps_a_short_traceback(table: LeaseTable, observe: Observer) -> None:
    """The one error that is raised again and again does not collect the frames of each time."""
    async with lease(table, "key", ttl=30, on_lost="flag") as held:
        await observe.hand_over("key")
        with pytest.raises(LeaseLostError):
            await held.renew()
        for _ in range(1000):
            with pytest.raises(LeaseLostError):
                held.raise_if_stopping()
    assert held.lost is not None
    assert len(list(traceback.walk_tb(held.lost.__traceback__))) < 20


async def test_wait_lost_of_a_never_entered_lease_returns_at_its_deadline(table: LeaseTable, travel: Travel) -> None:
    """Whoever waits for the loss of a lease that was not entered hears of it when its time is over."""
    held = await acquire(table, "key", ttl=30, grace=5)
    lost = await travel.through(held.wait_lost(), within=30)
    assert travel.moved > 20
    assert lost is not None
    assert lost.reason == "expired"
    assert held.lost is lost


async def test_wait_lost_of_a_never_entered_lease_is_told_before_others_get_in(
    table: LeaseTable, travel: Travel
) -> None:
    """However little time is left when it begins, the wait ends at the deadline, and not at the row's expiry."""
    overdue: list[float] = []
    # Once in time is enough: the machine is not ours alone.
    for number in range(5):
        held = await acquire(table, f"key-{number}", ttl=60, grace=0.08)
        trusted_until = time.monotonic() + held.remaining
        travel.stall(held.remaining - 0.08 - 0.01)
        await held.wait_lost()
        overdue.append(time.monotonic() - trusted_until)
    assert min(overdue) < 0


@pytest.mark.slow("takes half a second or so")
async def test_entered_lease_that_nobody_can_leave_warns_and_runs_out(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """A lease whose task is over and whose handle is gone is named in a warning and renewed no longer."""

    async def enter_and_forget() -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(lease(table, "forgotten", ttl=20))

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        await asyncio.create_task(enter_and_forget())
        gc.collect()
        await asyncio.sleep(0)
        gc.collect()
    assert any(each.category is ResourceWarning and "'forgotten'" in str(each.message) for each in warned)
    assert not await observe.is_free("forgotten")
    await travel.until(lambda: observe.is_free("forgotten"), within=25)


async def test_block_left_before_one_entered_later_keeps_the_current_lease(table: LeaseTable) -> None:
    """Two blocks that are not left in reverse order: the one that is still entered is found."""
    first, second = await acquire(table, "first"), await acquire(table, "second")
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    assert current_lease() is second
    assert current_lease("second") is second
    with pytest.raises(LookupError):
        current_lease("first")
    await second.__aexit__(None, None, None)
    with pytest.raises(LookupError):
        current_lease()


@pytest.fixture
async def earlier_timer() -> AsyncIterator[None]:
    """A timer of somebody else's: asyncio keeps a cancelled one that would come after it until its time has come."""
    timer = asyncio.get_running_loop().call_later(10, lambda: None)
    yield
    timer.cancel()


@pytest.mark.usefixtures("earlier_timer")
async def test_leases_left_in_another_context_are_not_kept(table: LeaseTable) -> None:
    """Leases that are entered here and left in tasks of their own do not pile up in this context."""
    known: weakref.WeakSet[Lease] = weakref.WeakSet()

    async def enter_here_and_leave_there() -> None:
        held = await acquire(table, "key", ttl=20)
        known.add(held)
        await held.__aenter__()
        await asyncio.create_task(held.__aexit__(None, None, None))

    for _ in range(12):
        await enter_here_and_leave_there()
    gc.collect()
    # The last few may have something under way still.
    assert len(known) <= 5


class Request:
    """What a service may have in a context variable."""


@pytest.mark.usefixtures("earlier_timer")
async def test_context_of_a_caller_is_not_kept_by_the_timers_of_its_calls(table: LeaseTable) -> None:
    """What a caller has in its context variables is let go when its calls are over, long before their limits."""
    variable: ContextVar[Request] = ContextVar("request")
    known: weakref.WeakSet[Request] = weakref.WeakSet()

    async def serve() -> None:
        request = Request()
        known.add(request)
        variable.set(request)
        async with lease(table, "key", ttl=60) as held:
            await held.renew()

    for _ in range(5):
        await asyncio.create_task(serve())
    gc.collect()
    assert len(known) <= 1


@pytest.mark.parametrize("debug", [False, True])
async def test_raise_if_stopping_in_a_thread_past_the_deadline_raises_and_cancels(
    table: LeaseTable, travel: Travel, *, debug: bool
) -> None:
    """A thread of a blocked loop hears of the loss by raise_if_stopping, and the loop then cancels the body."""
    asyncio.get_running_loop().set_debug(debug)
    told: list[BaseException] = []
    past, asked = threading.Event(), threading.Event()
    ended_by_itself = False

    def job(held: Lease) -> None:
        past.wait(10)
        try:
            held.raise_if_stopping()
        except Exception as error:  # noqa: BLE001 - judged by the test
            told.append(error)
        asked.set()

    held = await acquire(table, "key", ttl=30)
    with pytest.raises(LeaseLostError):
        async with held:
            working = asyncio.create_task(asyncio.to_thread(job, held))
            await travel.block(31)
            past.set()
            assert asked.wait(10)  # The loop stands still until the thread has asked
            await asyncio.wait([working])
            await asyncio.sleep(5)
            ended_by_itself = True
    assert not ended_by_itself
    assert held.lost is not None
    assert [type(error) for error in told] == [LeaseLostError]
