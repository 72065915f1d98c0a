"""A loop that stands still cannot renew: warned of, and lost, but never silent."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, lease
from asyncpg_lease.events import Late, Lost, Renewed, RenewFailed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, here
from tests.support.loops import run
from tests.support.observe import Observer
from tests.support.processes import Spawn, emit
from tests.support.proxy import Proxy
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "blocked"


@pytest.mark.parametrize(("ttl", "block", "pause", "times"), [(30, 8, 2, 5), (50, 9, 1, 8)])
async def test_short_blocks_are_warned_of_and_the_lease_is_kept(
    *, table: LeaseTable, travel: Travel, ttl: float, block: float, pause: float, times: int
) -> None:
    """Blocks that leave time for a renewal in between cost a warning with their length, and no lease."""
    told = Recorder()
    async with lease(table, KEY, ttl=ttl, observer=told) as held:
        for _ in range(times):
            await travel.block(block)
            await travel(pause)
        assert held.is_held
    late = told.of(Late)
    assert len(late) >= 3
    # Measured from the tick that was due in it, a second after the one before.
    assert 0.75 * block <= max(event.blocked for event in late) < block + 2
    assert all(0 < event.remaining < ttl for event in late)
    assert not told.of(Lost)


@pytest.mark.parametrize("block", [3, 4.7, 9.5])
async def test_blocks_with_no_time_for_a_renewal_between_them_are_a_loss(
    table: LeaseTable, travel: Travel, block: float
) -> None:
    """A body that only ever yields for a turn starves the renewals, and is told that it stalled."""
    told = Recorder()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=10, observer=told):
            for _ in range(20):
                travel.stall(block)
                await asyncio.sleep(0)
    assert caught.value.reason == "stalled"
    assert told.of(Late)
    assert here().cancelling() == 0


class Rival:
    """Somebody in a thread, with a loop and a pool, who takes the key and keeps it until let go."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._let_go = threading.Event()
        self.took: Future[tuple[int, str]] = Future()

    def run(self) -> None:
        """Take the key and, when let go, see that it is held still."""
        run(self._hold())

    def let_go(self) -> None:
        """End."""
        self._let_go.set()

    async def _hold(self) -> None:
        async with asyncpg.create_pool(self._dsn, min_size=1) as pool, lease(pool, KEY, ttl=60) as held:
            self.took.set_result((held.fence, held.holder))
            await asyncio.to_thread(self._let_go.wait, 10)
            await held.confirm()


async def sleep(_held: Lease, _pool: Pool) -> None:
    """Wait for a timer."""
    await asyncio.sleep(0.5)


async def query(_held: Lease, pool: Pool) -> None:
    """Wait for the server, by way of the pool."""
    await pool.fetchval("SELECT pg_sleep(0.5)")


async def thread(_held: Lease, _pool: Pool) -> None:
    """Wait for a thread."""
    await asyncio.to_thread(time.sleep, 0.3)


async def verify(held: Lease, _pool: Pool) -> None:
    """Ask the server, as a job does before something that it cannot undo."""
    await held.confirm()


@pytest.mark.parametrize("first_await", [sleep, query, thread, verify])
async def test_block_past_the_deadline_while_a_rival_takes_over_is_a_loss_at_the_first_await(
    *,
    table: LeaseTable,
    pool: Pool,
    observe: Observer,
    travel: Travel,
    first_await: Callable[[Lease, Pool], Awaitable[None]],
) -> None:
    """After the block is_held is false at once, the next await raises, and the rival's row is not touched."""
    after_await = False
    lost: LeaseLostError | None = None
    rival = Rival(observe.dsn)
    with ThreadPoolExecutor(1) as threads:
        taking: Future[None] = Future()
        try:
            async with lease(table, KEY, ttl=30) as held:
                await travel.block(40)
                taking = threads.submit(rival.run)
                # The loop stands still until then.
                rival.took.result(10)
                assert not held.is_held
                await first_await(held, pool)
                after_await = True
        except LeaseLostError as error:
            lost = error
        assert lost is not None
        assert lost.reason in {"stalled", "taken_over"}
        assert not after_await
        row = await observe.row(KEY)
        assert row is not None
        assert (row["fence"], row["holder"]) == rival.took.result(0)
        assert row["fence"] == 2
        rival.let_go()
        await asyncio.wrap_future(taking)


@pytest.mark.parametrize("block", [28, 32, 75], ids=["its row is live", "its row ran out", "long ago"])
async def test_block_past_the_deadline_without_a_rival_is_a_loss(
    table: LeaseTable, observe: Observer, travel: Travel, block: float
) -> None:
    """Past its deadline a lease is given up also where nobody wanted it: a late beat never renews quietly."""
    told = Recorder()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30, observer=told):
            await travel.block(block)
            await travel(2)
    assert caught.value.reason == "stalled"
    assert not told.of(Renewed)
    assert await observe.fence(KEY) == 1
    assert 0.85 * block < told.of(Late)[0].blocked < block + 2


async def test_block_of_many_leases_is_reported_for_each_that_it_matters_to(table: LeaseTable, travel: Travel) -> None:
    """A tenth of the ttl is worth a warning: a long lease does not mind what a short one does."""
    told = Recorder()
    async with (
        lease(table, "long", ttl=600, observer=told),
        lease(table, "short", ttl=30, observer=told),
    ):
        await travel(1)
        await travel.block(8)
        await travel(1)
    assert {event.key for event in told.of(Late)} == {"short"}


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_missed_deadline_is_stalled_only_where_the_loop_was_late(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """Lateness that left time enough for a renewal is not what the lease was lost by."""
    pool = await make_pool(proxy.dsn)
    with pytest.raises(LeaseLostError) as caught:
        async with lease(pool, KEY, ttl=30):
            proxy.freeze()
            await travel(2)
            await travel.block(4)
            await travel(40)
    assert caught.value.reason == "unreachable"
    proxy.thaw()


async def hold(dsn: str, key: str) -> None:
    """Hold the key in this process and say what became of it."""
    async with asyncpg.create_pool(dsn, min_size=1) as pool:
        try:
            async with lease(pool, key, ttl=2) as held:
                emit(fence=held.fence)
                while True:
                    await asyncio.sleep(0.01)
        except LeaseLostError as error:
            emit(lost=error.reason, cancelling=here().cancelling())


@pytest.mark.slow("stops a process by a signal, for longer than its ttl")
@pytest.mark.usefixtures("table")
async def test_process_that_was_stopped_past_its_ttl_has_lost_its_lease(
    spawn: Spawn, observe: Observer, make_pool: MakePool
) -> None:
    """SIGSTOP for longer than the ttl and SIGCONT: the first thing that the process learns is its loss."""
    child = await spawn(hold, observe.dsn, KEY)
    assert (await child.event())["fence"] == 1
    child.signal(signal.SIGSTOP)
    pool = await make_pool()
    async with lease(LeaseTable(pool, poll=0.05), KEY, wait=20) as held:
        child.signal(signal.SIGCONT)
        event = await child.event()
        assert event["lost"] in {"stalled", "taken_over", "unreachable"}
        assert event["cancelling"] == 0
        await held.confirm()
    assert await child.wait() == 0


@pytest.mark.slow("takes half a second or so")
async def test_late_renewal_is_no_longer_tried_once_it_is_over(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """After a loss no statement of the lease's goes out: its renewal ends with it."""
    told = Recorder()
    with pytest.raises(LeaseLostError):
        async with lease(table, KEY, ttl=15, observer=told):
            await observe.connection.execute("ALTER TABLE lease RENAME TO elsewhere")
            await travel(30)
    failed = len(told.of(RenewFailed))
    assert failed
    await travel(10)
    assert len(told.of(RenewFailed)) == failed
