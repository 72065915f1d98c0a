"""The one cancellation that a loss asks for: taken back, and told apart from everybody else's."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, lease
from tests.support.leasing import here, spin
from tests.support.observe import Observer
from tests.support.travel import Travel

KEY = "lost"


async def lose(held: Lease, observe: Observer) -> None:
    """Let another holder take the row, and have the loss noticed without waiting for a beat."""
    await observe.hand_over(held.key)
    with suppress(LeaseLostError):
        await held.renew()


async def sleep_and_lose(held: Lease, observe: Observer) -> None:
    """Sleep for long, while another task loses the lease."""
    loser = asyncio.create_task(lose(held, observe))
    try:
        await asyncio.sleep(10)
    finally:
        await loser


def stall(held: Lease, travel: Travel) -> None:
    """Block the loop past the lease's deadline, and have somebody notice that before the body awaits again."""
    travel.stall(held.remaining)
    with suppress(LeaseLostError):
        held.raise_if_stopping()


async def assert_clean() -> None:
    """See that nothing of a cancellation is left in this task."""
    assert here().cancelling() == 0
    await spin(5)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(1)
    assert here().cancelling() == 0


async def test_loss_in_a_body_that_awaits_is_taken_back_at_the_exit(table: LeaseTable, observe: Observer) -> None:
    """The body is cancelled, LeaseLostError comes out, and the task is as if it had never been cancelled."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30) as held:
            await sleep_and_lose(held, observe)
    assert (caught.value.reason, caught.value.taken_by) == ("taken_over", "other")
    await assert_clean()


@pytest.mark.parametrize("first", ["user", "loss"])
async def test_loss_and_the_users_cancel_in_one_step_end_cancelled(
    table: LeaseTable, observe: Observer, travel: Travel, first: str
) -> None:
    """A user's cancellation that comes together with a loss is kept, whichever is first."""
    entered: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()

    async def job() -> None:
        async with lease(table, KEY, ttl=30) as held:
            entered.set_result(held)
            await asyncio.sleep(100)

    task = asyncio.create_task(job())
    held = await entered
    if first == "user":
        task.cancel()
    stall(held, travel)
    if first == "loss":
        task.cancel()
    assert task.cancelling() == 2
    await asyncio.wait([task])
    assert task.cancelled()
    assert task.cancelling() == 1
    assert held.lost is not None
    # The row was left where it was: nothing has renewed it, and nothing has released it.
    await observe.shift(KEY, -30)
    assert await observe.is_free(KEY)


async def test_loss_swallowed_by_the_body_comes_out_all_the_same(table: LeaseTable, observe: Observer) -> None:
    """A body that swallows the cancellation does not swallow the loss."""
    with pytest.raises(LeaseLostError):
        async with lease(table, KEY, ttl=30) as held:
            with suppress(asyncio.CancelledError):
                await sleep_and_lose(held, observe)
            await spin(2)
    await assert_clean()


@pytest.mark.parametrize("way", ["renew", "confirm"])
async def test_loss_that_the_body_asks_for_leaves_no_stray_cancellation(
    table: LeaseTable, observe: Observer, way: str
) -> None:
    """A loss that the body meets in its own call comes out, and no cancellation is left in the task."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30) as held:
            await observe.hand_over(KEY)
            await getattr(held, way)()
    assert caught.value.taken_by == "other"
    await assert_clean()


@pytest.mark.parametrize("meets_it", [True, False])
async def test_loss_that_the_body_never_awaited_after_leaves_no_stray_cancellation(
    table: LeaseTable, travel: Travel, meets_it: bool
) -> None:
    """A cancellation that was asked for in the body's last step is flushed before the block is left."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30) as held:
            stall(held, travel)
            if meets_it:
                held.raise_if_stopping()
    assert caught.value is held.lost
    assert caught.value.reason == "stalled"
    await assert_clean()


async def test_loss_in_a_body_that_ends_by_what_somebody_else_cancelled_leaves_no_stray_cancellation(
    table: LeaseTable, travel: Travel
) -> None:
    """A CancelledError that came out of a future, and not of the loss, does not stand for the loss's own."""
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30) as held:
            stall(held, travel)
            await cancelled
    assert caught.value.reason == "stalled"
    await assert_clean()


async def test_loss_with_an_error_of_the_body_under_way_lets_the_error_out(
    table: LeaseTable, observe: Observer
) -> None:
    """A body that turns the cancellation into an exception of its own is heard; the loss is not put over it."""
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with lease(table, KEY, ttl=30) as held:
            try:
                await sleep_and_lose(held, observe)
            except asyncio.CancelledError:
                raise error from None
    assert caught.value is error
    await assert_clean()


async def test_timeout_inside_the_body_is_the_bodys_own(table: LeaseTable, observe: Observer) -> None:
    """asyncio.timeout inside a block works as anywhere, before a loss and beside one."""
    async with lease(table, KEY, ttl=30):
        await assert_clean()
    with pytest.raises(LeaseLostError):
        async with lease(table, KEY, ttl=30) as held, asyncio.timeout(20):
            await sleep_and_lose(held, observe)
    await assert_clean()


async def test_timeout_round_the_block_comes_out_as_timeout(table: LeaseTable, observe: Observer) -> None:
    """asyncio.timeout round a block cancels the body, and the lease is released before TimeoutError is raised."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as timeout, lease(table, KEY, ttl=30):
            timeout.reschedule(0)
            await asyncio.sleep(10)
    assert await observe.is_free(KEY)
    await assert_clean()


async def test_loss_inside_a_timeout_is_no_timeout(table: LeaseTable, observe: Observer) -> None:
    """A loss inside asyncio.timeout comes out as LeaseLostError, not as TimeoutError."""
    with pytest.raises(LeaseLostError):
        async with asyncio.timeout(5), lease(table, KEY, ttl=30) as held:
            await sleep_and_lose(held, observe)
    await assert_clean()


async def test_scope_that_is_cancelled_while_the_body_unwinds_catches_its_own(
    table: LeaseTable, observe: Observer
) -> None:
    """A body that met the loss alone, and was still at its clean-up when anyio's scope round it ended, leaves that."""
    unwinding, cancelled = asyncio.Event(), asyncio.Event()

    async def clean_up_slowly() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            unwinding.set()
            await cancelled.wait()

    async def cancel() -> None:
        await unwinding.wait()
        scope.cancel()
        await spin(5)
        cancelled.set()

    canceller = asyncio.create_task(cancel())
    with anyio.CancelScope() as scope:
        # A group lets out the first of the cancellations that it meets.
        async with lease(table, KEY, ttl=30) as held, asyncio.TaskGroup() as group:
            group.create_task(clean_up_slowly())
            await spin(2)
            await lose(held, observe)
    await canceller
    assert scope.cancelled_caught
    assert held.lost is not None
    await assert_clean()


async def test_error_of_the_body_comes_out_of_a_lost_lease_in_a_cancelled_scope(
    table: LeaseTable, observe: Observer
) -> None:
    """An exception of the body's own is heard, and not put aside for a cancellation of anyio's that came meanwhile."""
    error = RuntimeError("mine")
    with pytest.raises(RuntimeError, match="mine"), anyio.CancelScope() as scope:
        async with lease(table, KEY, ttl=30) as held:
            try:
                await sleep_and_lose(held, observe)
            except asyncio.CancelledError:
                scope.cancel()
                raise error from None
    await assert_clean()


async def test_users_cancellation_comes_out_as_it_was_asked_for_beside_a_loss(
    table: LeaseTable, travel: Travel
) -> None:
    """A loss that the clean-up itself meets leaves the cancellation that began it as it is."""
    entered = asyncio.Event()

    async def job() -> None:
        async with lease(table, KEY, ttl=30) as held:
            entered.set()
            try:
                await asyncio.sleep(10)
            finally:
                stall(held, travel)

    task = asyncio.create_task(job())
    await entered.wait()
    task.cancel("shutdown")
    with pytest.raises(asyncio.CancelledError, match="shutdown"):
        await task


async def test_loss_in_a_task_group_cancels_its_tasks(table: LeaseTable, observe: Observer) -> None:
    """A TaskGroup inside the body is torn down by the loss, and its LeaseLostError is no group."""
    cancelled: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    with pytest.raises(LeaseLostError):
        async with lease(table, KEY, ttl=30) as held, asyncio.TaskGroup() as group:
            group.create_task(work("a"))
            group.create_task(work("b"))
            await spin(2)
            await lose(held, observe)
    assert sorted(cancelled) == ["a", "b"]
    await assert_clean()


async def test_error_in_a_task_group_round_the_block_releases(table: LeaseTable, observe: Observer) -> None:
    """A sibling's failure cancels the body; the lease is released and the group's error is what it always is."""
    entered = asyncio.Event()

    async def job() -> None:
        async with lease(table, KEY, ttl=30):
            entered.set()
            await asyncio.sleep(10)

    async def fail() -> None:
        await entered.wait()
        message = "sibling"
        raise ValueError(message)

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(job())
            group.create_task(fail())
    assert [type(error) for error in caught.value.exceptions] == [ValueError]
    assert await observe.is_free(KEY)


async def test_loss_in_an_anyio_scope_is_no_cancellation_of_the_scope(table: LeaseTable, observe: Observer) -> None:
    """Anyio's scopes inside and outside of the block take the loss for what it is."""
    with pytest.raises(LeaseLostError):
        with anyio.CancelScope() as outer:
            async with lease(table, KEY, ttl=30) as held:
                with anyio.move_on_after(5) as inner:
                    await sleep_and_lose(held, observe)
    assert not outer.cancelled_caught
    assert not inner.cancelled_caught
    await assert_clean()


async def test_loss_of_an_inner_lease_leaves_the_outer_one(table: LeaseTable, observe: Observer) -> None:
    """Of two nested leases each asks and takes back its own cancellation."""
    async with lease(table, "outer", ttl=30) as outer:
        with pytest.raises(LeaseLostError) as caught:
            async with lease(table, KEY, ttl=30) as held:
                await sleep_and_lose(held, observe)
        assert caught.value.key == KEY
        assert outer.is_held
        await assert_clean()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, "outer", ttl=30) as outer, lease(table, "inner", ttl=30):
            await sleep_and_lose(outer, observe)
    assert caught.value.key == "outer"
    assert await observe.is_free("inner")
    await assert_clean()
