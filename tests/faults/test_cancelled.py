"""Cancellations in the exit and beside a loss: everybody's own comes out, and the row is free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import anyio
import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, lease
from asyncpg_lease.events import Released, ReleaseFailed
from tests.conftest import MakePool
from tests.faults import outages
from tests.faults.outages import Outage, Stage
from tests.support.inside import CANCELLED_LIMIT
from tests.support.leasing import Recorder, here, spin, until
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.rings import quick_few
from tests.support.statements import RELEASE
from tests.support.travel import Travel

KEY = "cancelled"


@asynccontextmanager
async def reply_lost(stage: Stage) -> AsyncIterator[None]:
    """Have the release made, its link cut before the answer, and no other to ask again on."""
    stage.proxy.refuse()
    stage.proxy.drop_reply(RELEASE)
    yield
    await stage.proxy.accept()


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "trouble",
    [
        *(outages.locked_row, outages.exhausted_pool, outages.stopped_backends, outages.frozen, outages.cut),
        reply_lost,
    ],
)
@pytest.mark.parametrize(
    ("cancels", "lasting"),
    [((0.05,), 0.3), ((0.05, 0.1, 0.2), 0.3), ((0.1, 0.2), 4.0)],
    ids=["once", "again and again", "longer than the wait"],
)
async def test_exit_cancelled_in_trouble_comes_out_cancelled_and_frees_the_row(
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    trouble: Outage,
    cancels: tuple[float, ...],
    lasting: float,
) -> None:
    """However the release is held up, the cancellation comes out half a second later, and the row is freed."""
    stage = await Stage.make(make_pool, proxy, observe, connections=1)
    pool = stage.pool
    told, entered, end = Recorder(), asyncio.Event(), asyncio.Event()
    seen: list[object] = []

    async def job() -> None:
        try:
            async with lease(pool, KEY, ttl=60, observer=told):
                entered.set()
                await end.wait()
        except BaseException as error:
            seen.extend([type(error), here().cancelling(), travel.moved])
            raise

    task = asyncio.create_task(job())
    await until(entered.is_set)
    await until(lambda: pool.get_idle_size() == 1)
    # The rows stay where they are: what frees the key is its release alone.
    async with trouble(stage):
        end.set()
        started = travel.moved
        for at in cancels:
            await travel(started + at - travel.moved, rows=False)
            task.cancel()
        await travel(started + lasting - travel.moved, rows=False)
        assert task.done() or lasting < cancels[0] + CANCELLED_LIMIT
    with pytest.raises(asyncio.CancelledError):
        await travel.through(task, within=10, rows=False)
    kind, cancelling, ended = seen
    assert (kind, cancelling) == (asyncio.CancelledError, len(cancels))
    assert isinstance(ended, float)
    assert ended - started < cancels[0] + CANCELLED_LIMIT + 0.5
    await travel.until(lambda: observe.is_free(KEY), within=20, rows=False)
    await travel.until(lambda: told.of(Released), within=20, rows=False)
    assert not told.of(ReleaseFailed)


def stall(held: Lease, travel: Travel) -> None:
    """Let the loop stand still past the deadline, and have that noticed before the body awaits again."""
    travel.stall(held.remaining)
    with suppress(LeaseLostError):
        held.raise_if_stopping()


Stop = Callable[[], object]
Way = Callable[[], AbstractAsyncContextManager[Stop]]


@asynccontextmanager
async def timeout() -> AsyncIterator[Stop]:
    """Let asyncio.timeout cancel the body."""
    async with asyncio.timeout(1000) as timeout:
        yield lambda: timeout.reschedule(0)


@asynccontextmanager
async def scope() -> AsyncIterator[Stop]:
    """Let a scope of anyio's cancel it."""
    with anyio.CancelScope() as scope:
        yield scope.cancel


@asynccontextmanager
async def anyio_group() -> AsyncIterator[Stop]:
    """Let a task group of anyio's cancel it."""
    async with anyio.create_task_group() as group:
        yield group.cancel_scope.cancel


@asynccontextmanager
async def failing_group() -> AsyncIterator[Stop]:
    """Let a TaskGroup cancel it, another task of which fails."""

    async def fail() -> None:
        message = "sibling"
        raise ValueError(message)

    async with asyncio.TaskGroup() as group:
        yield lambda: group.create_task(fail())


@pytest.mark.parametrize("first", ["theirs", "ours"])
@pytest.mark.parametrize(
    ("way", "theirs"),
    quick_few([(timeout, TimeoutError), (scope, None), (anyio_group, None), (failing_group, ValueError)], 2),
)
async def test_loss_in_the_step_of_another_end_leaves_no_stray_cancellation(
    table: LeaseTable, travel: Travel, way: Way, theirs: type[Exception] | None, first: str
) -> None:
    """A loss beside a timeout, a scope's end or a sibling's failure: one of both comes out, and both are taken back."""
    entered: asyncio.Future[tuple[Lease, Stop]] = asyncio.get_running_loop().create_future()
    outcome: set[type[BaseException] | None] = set()

    async def job() -> None:
        try:
            async with way() as stop, lease(table, KEY, ttl=30) as held:
                entered.set_result((held, stop))
                await asyncio.sleep(1000)
            outcome.add(None)
        except* (TimeoutError, ValueError, LeaseLostError) as group:
            outcome.update(type(error) for error in group.exceptions)
        assert here().cancelling() == 0
        # What was left over would come out of one of these.
        await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.sleep(1)

    task = asyncio.create_task(job())
    held, stop = await entered
    if first == "theirs":
        stop()
    stall(held, travel)
    if first == "ours":
        stop()
    await task
    assert held.lost is not None
    assert outcome
    assert outcome <= {theirs, LeaseLostError}
    assert theirs in outcome or first == "ours"


async def revoke(table: LeaseTable, _observe: Observer) -> None:
    """Ask for the key; the body is cancelled, and its row is released after it."""
    await table.revoke(KEY)


async def take(_table: LeaseTable, observe: Observer) -> None:
    """Give the key to somebody else."""
    await observe.hand_over(KEY)


async def delete(_table: LeaseTable, observe: Observer) -> None:
    """Delete the row."""
    await observe.connection.execute("DELETE FROM lease")


@pytest.mark.parametrize("lose", [revoke, take, delete])
@pytest.mark.parametrize("cancels", [1, 2])
async def test_cancel_of_a_body_that_unwinds_after_a_loss_is_kept(
    table: LeaseTable,
    observe: Observer,
    travel: Travel,
    lose: Callable[[LeaseTable, Observer], Awaitable[None]],
    cancels: int,
) -> None:
    """The library takes its own request back alone: the user's, which came while the body unwound, ends the task."""
    entered, unwinding = asyncio.Event(), asyncio.Event()
    seen: list[tuple[type[BaseException], int]] = []

    async def job() -> None:
        try:
            async with lease(table, KEY, ttl=60):
                entered.set()
                try:
                    await asyncio.sleep(1000)
                finally:
                    unwinding.set()
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(1000)
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(1000 if cancels > 1 else 0)
        except BaseException as error:
            seen.append((type(error), here().cancelling()))
            raise

    task = asyncio.create_task(job())
    await until(entered.is_set)
    await lose(table, observe)
    await travel.until(unwinding.is_set, within=30)
    for _ in range(cancels):
        await spin(5)
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert seen == [(asyncio.CancelledError, cancels)]
