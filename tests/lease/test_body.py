"""The body's one cancellation, and the waits that outlast one."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest

from tests.support.inside import CANCELLED_LIMIT, Body, TaskOwner, require_loop, wait_shielded, wait_turn
from tests.support.leasing import here, spin
from tests.support.travel import Travel


@pytest.mark.parametrize("by_others", [0, 1])
async def test_body_cancelled_twice_takes_back_one_request(by_others: int) -> None:
    """The request is asked for and taken back once, and others' stay."""
    entered: asyncio.Future[Body] = asyncio.get_running_loop().create_future()

    async def work() -> tuple[bool, int]:
        body = Body()
        entered.set_result(body)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        body.end()
        others, pending = await body.settle(shielded=False)
        assert pending is None
        return others, here().cancelling()

    task = asyncio.create_task(work(), name="the worker")
    body = await entered
    assert "the worker" in repr(body)
    body.cancel("lost")
    for _ in range(by_others):
        task.cancel()
    assert await task == (bool(by_others), by_others)


async def test_body_that_has_ended_is_not_cancelled() -> None:
    """After its end nobody is cancelled any more, and there is nothing to take back."""
    body = Body()
    body.end()
    body.cancel("too late")
    await spin(2)
    assert await body.settle(shielded=False) == (False, None)
    assert here().cancelling() == 0


async def test_body_whose_request_was_not_delivered_is_flushed() -> None:
    """A request that the body never met is met when it is settled, and not by whoever awaits next."""
    body = Body()
    body.cancel("lost")
    body.end()
    others, pending = await body.settle(shielded=False)
    assert not others
    assert isinstance(pending, asyncio.CancelledError)
    await asyncio.sleep(0)
    assert here().cancelling() == 0


async def test_body_abandoned_takes_its_request_back_without_awaiting() -> None:
    """Where nothing may be awaited the request is taken back all the same; the flush is the loop's to make."""
    body = Body()
    body.abandon()
    body.cancel("lost")
    body.end()
    body.abandon()
    assert here().cancelling() == 0
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


async def test_wait_shielded_outlasts_cancellations_and_returns_the_first() -> None:
    """Whatever is cancelled meanwhile, the wait goes on until what it waits for is there."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    async def wait() -> tuple[str, bool]:
        cancelled = await wait_shielded([future], 5)
        assert cancelled is not None
        return str(cancelled), future.done()

    task = asyncio.create_task(wait())
    for name in ("first", "second", "third"):
        await spin(2)
        task.cancel(name)
    await spin(3)
    assert not task.done()
    future.set_result(None)
    assert await task == ("first", True)
    assert task.cancelling() == 3


@pytest.mark.parametrize("cancelled", [False, True])
async def test_wait_shielded_is_bounded(travel: Travel, cancelled: bool) -> None:
    """What never comes is waited for no longer than said, cancelled or not."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    limit = CANCELLED_LIMIT if cancelled else 20.0
    task = asyncio.create_task(wait_shielded([future], 20))
    await spin(2)
    if cancelled:
        task.cancel()
    started, moved = loop.time(), travel.moved
    assert (await travel.through(task, within=30) is not None) is cancelled
    # The least with what the machine took, the most without.
    assert loop.time() - started > limit - 0.2
    assert travel.moved - moved <= limit
    assert not future.done()


async def test_wait_shielded_waits_for_all() -> None:
    """It ends with the last of several, some of which were done before, and at once with none."""
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(3)]
    futures[0].set_result(None)
    task = asyncio.create_task(wait_shielded(futures, 5))
    await spin(2)
    futures[1].set_exception(ValueError())
    await spin(2)
    assert not task.done()
    futures[2].cancel()
    assert await task is None
    assert await wait_shielded([], 5) is None
    assert await wait_shielded(futures, 5) is None
    assert isinstance(futures[1].exception(), ValueError)


async def test_wait_turn_returns_the_cancellation_that_was_waiting() -> None:
    """A turn of the loop, and whatever was to be delivered in it; anyio's repeated cancellation stays out."""
    assert await wait_turn(shielded=True) is None

    async def work() -> bool:
        here().cancel()
        return await wait_turn(shielded=True) is not None

    assert await asyncio.create_task(work())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await wait_turn(shielded=True)


async def test_owner_keeps_its_tasks_until_they_end() -> None:
    """A task is owned while it runs, named as the library's, and starts in the loop and not in the caller."""
    owner = TaskOwner()
    steps: list[int] = []

    async def work() -> None:
        steps.append(1)
        await asyncio.sleep(0)

    task = owner.start(work(), "something")
    assert not steps
    assert "asyncpg_lease:something" in repr(owner)
    await task
    await spin(1)
    assert "something" not in repr(owner)


def test_require_loop_without_one_says_what_is_needed() -> None:
    """Outside of asyncio the error names asyncio and trio."""
    with pytest.raises(RuntimeError, match="trio"):
        require_loop()
