"""The one cancellation that a loss asks for: taken back, and told apart from everybody else's."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, lease
from tests.support.leasing import here, spin
from tests.support.observe import Observer

KEY = "lost"


async def lose(held: Lease, observe: Observer) -> None:
    """Let another holder take the row, and have the loss noticed without waiting for a beat."""
    await observe.hand_over(held.key)
    with suppress(LeaseLostError):
        await asyncio.create_task(held.renew())


async def assert_clean() -> None:
    """See that nothing of a cancellation is left in this task."""
    assert here().cancelling() == 0
    await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.sleep(1)
    assert here().cancelling() == 0


async def test_loss_in_a_body_that_awaits_is_taken_back_at_the_exit(table: LeaseTable, observe: Observer) -> None:
    """G4: the body is cancelled, LeaseLostError comes out, and the task is as if it had never been cancelled."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30) as held:
            loser = asyncio.create_task(lose(held, observe))
            await asyncio.sleep(10)
    assert (caught.value.reason, caught.value.taken_by) == ("taken_over", "other")
    await loser
    await assert_clean()


async def test_loss_and_the_users_cancel_in_one_step_end_cancelled(table: LeaseTable, observe: Observer) -> None:
    """G4: a user's cancellation that comes together with a loss is kept, whichever is first."""
    for first in ("user", "loss"):
        entered: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()

        async def job(entered: asyncio.Future[Lease] = entered) -> None:
            async with lease(table, KEY, ttl=30) as held:
                entered.set_result(held)
                await asyncio.sleep(10)

        task = asyncio.create_task(job())
        held = await entered
        await observe.expire(KEY)
        if first == "user":
            task.cancel()
        held._lose("expired", None, None)
        if first == "loss":
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), first
        assert task.cancelling() == 1, first


async def test_loss_swallowed_by_the_body_comes_out_all_the_same(table: LeaseTable, observe: Observer) -> None:
    """A body that swallows the cancellation does not swallow the loss."""
    with pytest.raises(LeaseLostError):
        async with lease(table, KEY, ttl=30) as held:
            loser = asyncio.create_task(lose(held, observe))
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
            await asyncio.sleep(0.01)
    await loser
    await assert_clean()


@pytest.mark.parametrize("way", ["renew", "raise_if_lost", "verify", "nothing"])
async def test_loss_found_by_the_body_itself_leaves_no_stray_cancellation(
    table: LeaseTable, observe: Observer, way: str
) -> None:
    """A loss that the body meets in its own call, or never meets, is flushed before the block is left."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30) as held:
            await observe.hand_over(KEY)
            if way == "renew":
                await held.renew()
            elif way == "verify":
                await held.verify()
            else:
                held._lose("taken_over", "other", None)
                if way == "raise_if_lost":
                    held.raise_if_lost()
    assert caught.value.taken_by == "other"
    await assert_clean()


async def test_loss_with_an_error_of_the_body_under_way_lets_the_error_out(
    table: LeaseTable, observe: Observer
) -> None:
    """A body that turns the cancellation into an exception of its own is heard; the loss is not put over it."""
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with lease(table, KEY, ttl=30) as held:
            loser = asyncio.create_task(lose(held, observe))
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                raise error from None
    assert caught.value is error
    await loser
    await assert_clean()


async def test_timeout_inside_the_body_is_the_bodys_own(table: LeaseTable, observe: Observer) -> None:
    """asyncio.timeout inside a block works as anywhere, before a loss and beside one."""
    async with lease(table, KEY, ttl=30):
        await assert_clean()
    with pytest.raises(LeaseLostError):
        async with lease(table, KEY, ttl=30) as held, asyncio.timeout(20):
            await lose(held, observe)
            await asyncio.sleep(10)
    await assert_clean()


async def test_timeout_round_the_block_comes_out_as_timeout(table: LeaseTable, observe: Observer) -> None:
    """asyncio.timeout round a block cancels the body, and the lease is released before TimeoutError is raised."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), lease(table, KEY, ttl=30):
            await asyncio.sleep(10)
    assert await observe.is_free(KEY)
    await assert_clean()


async def test_loss_inside_a_timeout_is_no_timeout(table: LeaseTable, observe: Observer) -> None:
    """A loss inside asyncio.timeout comes out as LeaseLostError, not as TimeoutError."""
    with pytest.raises(LeaseLostError):
        async with asyncio.timeout(5), lease(table, KEY, ttl=30) as held:
            await lose(held, observe)
            await asyncio.sleep(10)
    await assert_clean()


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
    """anyio's scopes inside and outside of the block take the loss for what it is."""
    with pytest.raises(LeaseLostError):  # noqa: PT012 - the scope is the subject
        with anyio.CancelScope() as outer:
            async with lease(table, KEY, ttl=30) as held:
                with anyio.move_on_after(5) as inner:
                    await lose(held, observe)
                    await asyncio.sleep(10)
    assert not outer.cancelled_caught
    assert not inner.cancelled_caught
    await assert_clean()


async def test_loss_of_an_inner_lease_leaves_the_outer_one(table: LeaseTable, observe: Observer) -> None:
    """Of two nested leases each asks and takes back its own cancellation."""
    async with lease(table, "outer", ttl=30) as outer:
        with pytest.raises(LeaseLostError) as caught:
            async with lease(table, KEY, ttl=30) as held:
                await lose(held, observe)
                await asyncio.sleep(10)
        assert caught.value.key == KEY
        assert outer.is_held
        await assert_clean()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, "outer", ttl=30) as outer, lease(table, KEY, ttl=30):
            await lose(outer, observe)
            await asyncio.sleep(10)
    assert caught.value.key == "outer"
    assert await observe.is_free(KEY)
    await assert_clean()
