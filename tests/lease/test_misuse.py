"""What cannot work, and says so: twice, too late, in the wrong place, in a child's copy."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Coroutine, Iterator

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, acquire, lease, try_acquire
from asyncpg_lease.events import ReleaseFailed
from tests.conftest import MakePool
from tests.lease.test_exits import Parked, drive
from tests.support.inside import forget_backend
from tests.support.leasing import Recorder, spin
from tests.support.loops import chosen_factory, run
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "job"


async def test_context_entered_twice_is_refused(table: LeaseTable, observe: Observer) -> None:
    """What lease() returns is for one use: nested or afterwards, a second entry says so."""
    context = lease(table, KEY)
    async with context:
        with pytest.raises(RuntimeError, match="entered once only"):
            await context.__aenter__()
    with pytest.raises(RuntimeError, match="entered once only"):
        await context.__aenter__()
    assert await observe.fence(KEY) == 1


async def test_acquisition_awaited_twice_is_refused(table: LeaseTable, observe: Observer) -> None:
    """What acquire() returns is for one use, too: a second one claims nothing."""
    context = acquire(table, KEY)
    held = await context
    with pytest.raises(RuntimeError, match="already awaited"):
        await context
    with pytest.raises(RuntimeError, match="already awaited"):
        await context.__aenter__()
    await held.release()
    assert await observe.fence(KEY) == 1


async def test_acquisition_that_is_not_awaited_warns(table: LeaseTable, observe: Observer) -> None:
    """A forgotten `await` is Python's own warning, and claims nothing."""

    def forget() -> None:
        acquire(table, KEY)
        gc.collect()

    with pytest.warns(RuntimeWarning, match="never awaited"):
        forget()
    assert await observe.row(KEY) is None


async def test_lease_entered_twice_is_refused(table: LeaseTable) -> None:
    """A Lease has one block: a second entry says so, and does the first no harm."""
    held = await acquire(table, KEY)
    async with held:
        with pytest.raises(RuntimeError, match="entered once only"):
            await held.__aenter__()
        assert held.is_held
    with pytest.raises(RuntimeError, match="entered once only"):
        await held.__aenter__()


async def test_release_from_another_event_loop_is_refused(table: LeaseTable) -> None:
    """It would end the heartbeat, and leave the body at work without anybody to tell it of the row's end."""
    async with lease(table, KEY) as held:
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(lambda: run(held.release()))
        assert held.is_held
        await held.confirm()


async def test_lease_entered_after_its_release_is_refused(table: LeaseTable) -> None:
    """A released lease cannot be entered, renewed or confirmed any more."""
    held = await acquire(table, KEY)
    await held.release()
    with pytest.raises(RuntimeError, match="not after its release"):
        await held.__aenter__()
    with pytest.raises(RuntimeError, match="left or released"):
        await held.renew()
    with pytest.raises(RuntimeError, match="left or released"):
        await held.confirm()


async def test_lease_dropped_without_being_entered_warns(table: LeaseTable, observe: Observer) -> None:
    """A lease that nobody entered or released keeps its key for the ttl: its end is a ResourceWarning."""
    held: Lease | None = await acquire(table, KEY, ttl=30)
    name = repr(held)
    with pytest.warns(ResourceWarning, match="was dropped") as caught:  # noqa: PT031 - the drop is it
        held = None
        gc.collect()
    assert name in str(caught[0].message)
    assert not await observe.is_free(KEY)


async def test_lease_that_was_released_or_left_is_dropped_in_silence(table: LeaseTable) -> None:
    """No warning where there is nothing to warn of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        held: Lease | None = await acquire(table, KEY)
        assert held is not None
        await held.release()
        held = None
        async with lease(table, KEY) as inner:
            assert inner.is_held
        del inner
        gc.collect()


async def test_lease_entered_after_its_deadline_is_lost(table: LeaseTable, travel: Travel) -> None:
    """A lease that was not entered in time is lost, says so when it is entered, and is dropped in silence."""
    held = await acquire(table, KEY, ttl=30)
    await travel.block(31)
    assert not held.is_held
    with pytest.raises(LeaseLostError) as caught:
        await held.__aenter__()
    assert caught.value.reason == "expired"
    assert held.lost is caught.value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del held, caught
        gc.collect()


async def test_lease_that_was_not_entered_and_is_lost_can_be_released(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """release() of a lease that ran out before it was entered touches nothing and raises nothing."""
    held = await acquire(table, KEY, ttl=30)
    await travel.block(31)
    with pytest.raises(LeaseLostError):
        held.raise_if_stopping()
    successor = await acquire(table, KEY)
    before = await observe.version(KEY)
    await held.release()
    assert await observe.version(KEY) == before
    await successor.release()


def step(call: Coroutine[object, object, object]) -> None:
    """Take one step of a coroutine outside of any event loop, as another library's loop would."""
    try:
        call.send(None)
    finally:
        call.close()


@pytest.mark.parametrize("function", [acquire, try_acquire])
def test_acquire_without_an_asyncio_loop_is_refused(
    function: type[object], server_pool: tuple[asyncio.AbstractEventLoop, Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under trio, or under no loop at all, the error says what is needed, be it the first call of a process."""
    _loop, pool = server_pool
    forget_backend(monkeypatch)
    with pytest.raises(RuntimeError, match="running asyncio event loop"):
        step(function(pool, KEY))  # type: ignore[call-arg, arg-type]
    with pytest.raises(RuntimeError, match="running asyncio event loop"):
        step(lease(pool, KEY).__aenter__())


@pytest.fixture
def server_pool(dsn: str) -> Iterator[tuple[asyncio.AbstractEventLoop, Pool]]:
    """Make a pool of a loop that does not run when the test does."""
    loop = chosen_factory()()

    async def make() -> Pool:
        pool = await asyncpg.create_pool(dsn, min_size=0)
        await LeaseTable(pool).create()
        return pool

    pool = loop.run_until_complete(make())
    yield loop, pool
    loop.run_until_complete(pool.close())
    loop.close()


def test_acquire_on_another_loops_pool_is_refused(server_pool: tuple[asyncio.AbstractEventLoop, Pool]) -> None:
    """A pool belongs to the loop that made it, and the error says so before anything is sent."""
    loop, pool = server_pool

    async def use() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await acquire(pool, KEY)

    run(use())

    async def hold() -> Lease:
        return await acquire(pool, KEY)

    held = loop.run_until_complete(hold())

    async def misuse() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await held.renew()
        with pytest.raises(RuntimeError, match="another event loop"):
            await held.__aenter__()

    thread = threading.Thread(target=run, args=(misuse(),))
    thread.start()
    thread.join()
    loop.run_until_complete(held.release())


async def test_acquire_on_a_pool_that_is_not_initialized_is_refused(dsn: str) -> None:
    """create_pool() without await has no queue yet, by which its default table is known: refused all the same."""
    with pytest.raises(RuntimeError, match="not initialized"):
        await acquire(asyncpg.create_pool(dsn), KEY)


async def test_lease_entered_outside_a_task_is_refused(table: LeaseTable) -> None:
    """Only a task can be cancelled on a loss, so a block needs one."""
    held = await acquire(table, KEY)
    caught: list[RuntimeError] = []

    def enter() -> None:
        try:
            step(held.__aenter__())
        except RuntimeError as error:
            caught.append(error)

    asyncio.get_running_loop().call_soon(enter)
    await spin(2)
    assert ["inside a task" in str(error) for error in caught] == [True]
    await held.release()


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), 10**400])
async def test_lease_with_a_bad_ttl_sends_nothing(make_pool: MakePool, proxy: Proxy, ttl: float) -> None:
    """Arguments are checked where lease() is called, before any I/O."""
    pool = await make_pool(proxy.dsn)
    proxy.forget()
    with pytest.raises(ValueError, match="ttl"):
        lease(pool, KEY, ttl=ttl)
    with pytest.raises(ValueError, match="ttl"):
        await acquire(pool, KEY, ttl=ttl)
    assert not proxy.statements


def test_block_closed_after_its_event_loop_says_that_the_row_stays(
    server_pool: tuple[asyncio.AbstractEventLoop, Pool],
) -> None:
    """A frame that is closed when its loop does not run can release nothing, and says so."""
    loop, pool = server_pool
    told = Recorder()

    async def body() -> None:
        async with lease(pool, KEY, ttl=30, observer=told):
            await Parked()

    frame = body()
    loop.run_until_complete(drive(frame))
    frame.close()
    (failed,) = told.of(ReleaseFailed)
    assert failed.error == "left without its event loop; the row runs out by itself"


async def test_block_left_twice_is_left_once(table: LeaseTable, observe: Observer) -> None:
    """A second __aexit__ changes nothing."""
    held = await acquire(table, KEY)
    await held.__aenter__()
    await held.__aexit__(None, None, None)
    before = await observe.version(KEY)
    await held.__aexit__(None, None, None)
    assert await observe.version(KEY) == before


async def enter_and_forget(table: LeaseTable, ttl: float) -> None:
    """Enter a lease whose last reference is this frame's, and that of the context of the task that runs it."""
    held = await acquire(table, KEY, ttl=ttl)
    await held.__aenter__()


async def test_lease_entered_and_dropped_warns_and_is_renewed_no_more(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """A block that nobody can leave any more does not keep its key for ever: it runs out, and says so at once."""
    with pytest.warns(ResourceWarning, match="was dropped"):  # noqa: PT031 - the drop is it
        await asyncio.create_task(enter_and_forget(table, 30))
        # The loop itself knows the task for the turn that it ends in.
        await asyncio.sleep(0)
        gc.collect()
    assert not await observe.is_free(KEY)
    await travel.until(lambda: observe.is_free(KEY), within=32)


def test_lease_entered_and_dropped_after_its_event_loop_only_warns(dsn: str) -> None:
    """A loop that is closed has no heartbeat to stop: the drop warns as ever, and raises nothing."""

    async def hold() -> Lease:
        async with asyncpg.create_pool(dsn, min_size=0) as pool:
            await LeaseTable(pool).create()
            held = await acquire(pool, KEY)
            return await held.__aenter__()

    with pytest.warns(ResourceWarning, match="was dropped"):  # noqa: PT031 - the drop is it
        run(hold())
        gc.collect()
