"""What comes out of a block: the body's own exception, whoever's cancellation, or the loss."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import copy_context
from typing import Any

import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, lease
from asyncpg_lease.events import Lost, Released
from tests.support.leasing import Recorder, here, until
from tests.support.observe import Observer
from tests.support.travel import Travel

KEY = "left"


class MissingError(KeyError):
    """A KeyError of the user's own."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a"),
        MissingError("b"),
        SystemExit(3),
        KeyboardInterrupt(),
        StopAsyncIteration(1),
        StopIteration(2),
        ExceptionGroup("c", [ValueError(), OSError()]),
        BaseExceptionGroup("d", [KeyboardInterrupt()]),
        LeaseLostError("another", "h", 1, "expired"),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_block_left_by_an_exception_raises_the_identical_object(
    table: LeaseTable, observe: Observer, error: BaseException
) -> None:
    """Whatever the body raises comes out as the same object, with nothing of the library's chained to it."""
    caught: BaseException | None = None
    try:
        async with lease(table, KEY, ttl=30):
            await asyncio.sleep(0)
            raise error  # noqa: TRY301 - of several kinds
    except BaseException as raised:  # noqa: BLE001 - whatever it is
        caught = raised
    assert caught is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert await observe.is_free(KEY)
    assert here().cancelling() == 0


async def test_block_left_by_return_break_and_continue_releases(table: LeaseTable, observe: Observer) -> None:
    """Every way out of a block is an exit."""

    async def returning() -> int:
        async with lease(table, KEY, ttl=30) as held:
            return held.fence

    assert await returning() == 1
    for expected in (2, 3):
        async with lease(table, KEY, ttl=30) as held:
            assert held.fence == expected
            continue
    while True:
        async with lease(table, KEY, ttl=30):
            break
    assert await observe.is_free(KEY)


class Driven:
    """Runs a coroutine to its first await of `Parked`, and no further."""

    def __init__(self, body: Coroutine[Any, Any, None]) -> None:
        self._body = body

    def __await__(self) -> Generator[Any, None, None]:
        """Pass on what it awaits until then."""
        awaited = self._body.send(None)
        while awaited != "parked":
            yield awaited
            awaited = self._body.send(None)


async def drive(body: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its first await of `Parked`."""
    await Driven(body)


class Parked:
    """Something that is awaited for ever, and known when it is."""

    def __await__(self) -> Generator[str, None, None]:
        """Yield a value that no event loop would take."""
        yield "parked"


async def test_block_in_a_closed_coroutine_releases_in_the_background(table: LeaseTable, observe: Observer) -> None:
    """coroutine.close() in the body: nothing may be awaited then, and the row is free soon after all the same."""
    ended: list[BaseException] = []

    async def body() -> None:
        async with lease(table, KEY, ttl=30):
            try:
                await Parked()
            except GeneratorExit as error:
                ended.append(error)
                raise

    frame = body()
    await drive(frame)
    frame.close()
    assert [type(error) for error in ended] == [GeneratorExit]
    await observe.until_free(KEY, within=5)


async def test_block_in_a_closed_async_generator_releases(table: LeaseTable, observe: Observer) -> None:
    """aclose() of an async generator that holds a lease releases it."""
    told = Recorder()

    async def numbers() -> AsyncIterator[int]:
        async with lease(table, KEY, ttl=30, observer=told):
            yield 1
            yield 2

    iterator = numbers()
    assert await anext(iterator) == 1
    await iterator.aclose()  # type: ignore[attr-defined]
    await observe.until_free(KEY, within=5)
    await until(lambda: told.of(Released))


async def test_block_in_a_forgotten_async_generator_releases(table: LeaseTable, observe: Observer) -> None:
    """An async generator that is dropped in the middle is closed by the loop, in another task: released as well."""

    async def numbers() -> AsyncIterator[int]:
        async with lease(table, KEY, ttl=30):
            yield 1

    async for number in numbers():
        assert number == 1
        break
    gc.collect()
    await observe.until_free(KEY, within=5)


async def test_block_closed_after_a_loss_leaves_no_cancellation(table: LeaseTable, travel: Travel) -> None:
    """A closed frame may not await: the request of a loss is taken back all the same."""

    async def body() -> None:
        async with lease(table, KEY, ttl=30) as held:
            travel.stall(31)
            with suppress(LeaseLostError):
                held.raise_if_stopping()
            lost.append(held.lost)
            await Parked()

    lost: list[LeaseLostError | None] = []
    frame = body()
    with suppress(asyncio.CancelledError):
        await drive(frame)
        frame.close()
        await asyncio.sleep(0)
    assert [None if loss is None else loss.reason for loss in lost] == ["stalled"]
    assert here().cancelling() == 0


async def test_block_entered_in_one_task_and_left_in_another_releases(table: LeaseTable, observe: Observer) -> None:
    """An AsyncExitStack that is closed by another task than it was opened by works, context variables included."""
    stack = AsyncExitStack()

    async def enter() -> Lease:
        return await stack.enter_async_context(lease(table, KEY, ttl=30))

    held = await asyncio.create_task(enter())
    assert held.is_held
    await asyncio.create_task(stack.aclose())
    assert await observe.is_free(KEY)


async def test_block_left_in_another_context_releases(table: LeaseTable, observe: Observer) -> None:
    """Leaving in another context than entering is no error."""
    context = lease(table, KEY, ttl=30)
    await context.__aenter__()
    await asyncio.get_running_loop().create_task(context.__aexit__(None, None, None), context=copy_context())
    assert await observe.is_free(KEY)


async def test_loss_that_nobody_could_be_cancelled_for_is_raised_at_the_exit(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """The task that entered is over: the loss waits for whoever leaves the block."""
    stack = AsyncExitStack()

    async def enter() -> Lease:
        return await stack.enter_async_context(lease(table, KEY, ttl=30))

    held = await asyncio.create_task(enter())
    await observe.hand_over(KEY)
    loss = await travel.through(held.wait_lost(), within=15)
    assert loss is not None
    with pytest.raises(LeaseLostError) as caught:
        await stack.aclose()
    assert caught.value is loss
    assert here().cancelling() == 0
    record = await observe.row(KEY)
    assert record is not None
    assert record["holder"] == "other"


async def test_loss_while_another_task_leaves_cancels_only_who_entered(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """The task that entered is cancelled, and its request taken back, where another task leaves the block."""
    stack = AsyncExitStack()
    entered: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
    seen: list[int] = []

    async def enter_and_work() -> None:
        entered.set_result(await stack.enter_async_context(lease(table, KEY, ttl=30)))
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            with pytest.raises(LeaseLostError):
                await asyncio.create_task(stack.aclose())
            seen.append(here().cancelling())

    worker = asyncio.create_task(enter_and_work())
    await entered
    await observe.hand_over(KEY)
    await travel.through(worker, within=25)
    assert seen == [0]


async def test_block_left_by_another_task_after_its_deadline_cancels_nobody(table: LeaseTable, travel: Travel) -> None:
    """The body has ended, and the task that entered has gone on to something else, which is not to be cancelled."""
    stack = AsyncExitStack()
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def enter_and_go_on() -> None:
        await stack.enter_async_context(lease(table, KEY, ttl=30))
        entered.set()
        await go_on.wait()

    worker = asyncio.create_task(enter_and_go_on())
    await entered.wait()
    travel.stall(31)
    with pytest.raises(LeaseLostError):
        await stack.aclose()
    go_on.set()
    await worker
    assert not worker.cancelled()


async def test_block_that_ends_after_its_deadline_is_lost(table: LeaseTable, travel: Travel) -> None:
    """A body that blocked the loop past the deadline and then simply ends has lost its lease: stalled, at the exit."""
    told = Recorder()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30, observer=told) as held:
            travel.stall(31)
            assert not held.is_held
            assert held.remaining == 0
    assert caught.value.reason == "stalled"
    assert [event.reason for event in told.of(Lost)] == ["stalled"]
    await asyncio.sleep(0)
    assert here().cancelling() == 0


async def test_block_with_an_error_of_its_own_after_its_deadline_raises_that(table: LeaseTable, travel: Travel) -> None:
    """The body's own exception comes out, whatever became of the lease; the loss is told all the same."""
    told = Recorder()
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with lease(table, KEY, ttl=30, observer=told) as held:
            travel.stall(31)
            raise error
    assert caught.value is error
    assert told.of(Lost)
    assert error.__notes__ == [str(held.lost)]


async def test_block_left_by_its_own_loss_has_no_note_of_it(table: LeaseTable, travel: Travel) -> None:
    """The loss itself needs no note that there was a loss."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30) as held:
            travel.stall(31)
            held.raise_if_stopping()
    assert caught.value is held.lost
    assert not hasattr(caught.value, "__notes__")


@asynccontextmanager
async def leading(table: LeaseTable) -> AsyncIterator[Lease]:
    """Wrap lease() as users do."""
    async with lease(table, KEY, ttl=30) as held:
        yield held


async def test_loss_inside_a_users_context_manager_comes_out_of_it(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """An @asynccontextmanager round lease() passes the loss on."""
    with pytest.raises(LeaseLostError):
        async with leading(table):
            await observe.hand_over(KEY)
            await travel(20)
    assert here().cancelling() == 0
