"""What moving time promises: timers in order, older rows, less that remains, and the present at the end."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Renewed
from tests.support.leasing import Recorder
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel, come_back

KEY = "k"
REAL = 2.0
"""Seconds that may really pass meanwhile, on however busy a machine."""


async def expiry(observe: Observer) -> timedelta:
    """Return how long the key's row is valid, by the server's clock."""
    record = await observe.connection.fetchrow("SELECT expires_at - clock_timestamp() FROM lease WHERE key = $1", KEY)
    assert record is not None
    left: timedelta = record[0]
    return left


async def test_travel_fires_timers_in_order_each_at_its_own_time(travel: Travel) -> None:
    """A timer sees the time that it was set for, and what it sets itself is due as long after it."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    fired: list[tuple[str, float]] = []

    async def sleep(name: str, *seconds: float) -> None:
        for each in seconds:
            await asyncio.sleep(each)
            fired.append((name, loop.time() - started))

    tasks = [asyncio.create_task(each) for each in (sleep("long", 50), sleep("short", 10, 20, 15), sleep("never", 99))]
    await travel(60)
    assert [name for name, _ in fired] == ["short", "short", "short", "long"]
    for (_, at), due in zip(fired, [10, 30, 45, 50], strict=True):
        assert due <= at < due + REAL
    tasks[-1].cancel()


async def test_travel_moves_both_clocks_by_what_was_travelled(travel: Travel) -> None:
    """The loop's clock and that of the library go on by the same number of seconds, and never back."""
    before = time.monotonic(), time.clock_gettime(time.CLOCK_MONOTONIC)
    await travel(100)
    await travel(0)
    await travel(23)
    for was, now in zip(before, (time.monotonic(), time.clock_gettime(time.CLOCK_MONOTONIC)), strict=True):
        assert 123 <= now - was < 123 + REAL


async def test_travel_makes_rows_older(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """Every timestamp of a row is as long ago as time has passed, and none of what the row says else has changed."""
    held = await acquire(table, KEY, ttl=60, min_hold=60)
    await held.release()
    before = await observe.row(KEY)
    await travel(25)
    after = await observe.row(KEY)
    assert before is not None
    assert after is not None
    moved = {name for name, value in before.items() if after[name] != value}
    assert moved == {"acquired_at", "expires_at", "released_at"}
    for name in moved:
        # What has really passed has made the row older already.
        assert timedelta(seconds=25 - REAL) < before[name] - after[name] <= timedelta(seconds=25)


async def test_travel_lets_the_lease_run_out_for_library_and_server_alike(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """What remains of a lease falls by what was travelled, and it is over for both sides at one time."""
    held = await acquire(table, KEY, ttl=60)
    await travel(40)
    assert 20 - REAL < held.remaining <= 20
    assert timedelta(seconds=20 - REAL) < await expiry(observe) <= timedelta(seconds=20)
    assert not await observe.is_free(KEY)
    await travel(21)
    assert held.remaining <= 0
    assert await observe.is_free(KEY)
    await held.release()


@pytest.mark.slow("takes half a second or so")
async def test_travel_lets_each_renewal_arrive_before_it_goes_on(table: LeaseTable, travel: Travel) -> None:
    """However far it goes at once, a lease that is held is renewed at each of its beats and stays held."""
    told = Recorder()
    async with lease(table, KEY, ttl=30, observer=told) as held:
        await travel(90)
        assert held.is_held
        assert held.fence == 1
    assert 7 <= len(told.of(Renewed)) <= 12


async def test_travel_goes_by_the_latency_of_a_proxy(proxy: Proxy, travel: Travel) -> None:
    """What a proxy keeps back for some seconds comes when they have passed, and not before."""
    connection = await asyncpg.connect(proxy.dsn)
    proxy.delay_requests, proxy.delay_replies = 20, 30
    asked = asyncio.create_task(connection.fetchval("SELECT 1"))
    await travel(45)
    assert not asked.done()
    # The driver prepares the statement first.
    assert 50 <= await travel.until(asked.done, within=60) < 55 + REAL
    assert await asked == 1
    connection.terminate()


async def test_until_returns_how_long_it_took(travel: Travel) -> None:
    """The condition is looked at whenever something happens, and at once where it is true already."""
    task = asyncio.create_task(asyncio.sleep(12))

    async def is_done() -> bool:
        return task.done()

    assert 12 <= await travel.until(is_done, within=50) < 12 + REAL
    assert await travel.until(task.done, within=50) < REAL


async def test_until_raises_where_it_does_not_become_true(travel: Travel) -> None:
    """When the seconds have passed the condition is looked at once more, and the error says how long that was."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(TimeoutError, match="within 50 s"):
        await travel.until(lambda: False, within=50)
    assert 50 <= loop.time() - started < 50 + REAL
    due = loop.time() + 30
    await travel.until(lambda: loop.time() >= due, within=30)


async def test_block_lets_timers_come_late(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """While the loop stands still no timer fires, and rows get older; after it all fire that were due."""
    held = await acquire(table, KEY, ttl=60)
    loop = asyncio.get_running_loop()
    started = loop.time()
    fired: list[float] = []
    for delay in (5, 10):
        loop.call_later(delay, lambda: fired.append(loop.time() - started))
    await travel.block(40)
    assert fired == []
    assert 20 - REAL < held.remaining <= 20
    assert await expiry(observe) <= timedelta(seconds=20)
    await travel(0)
    assert len(fired) == 2
    assert min(fired) >= 40
    await held.release()


async def test_suspend_is_seen_by_the_library_and_not_by_timers(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """A machine that sleeps loses the time of its leases, and its timers go on where they were."""
    held = await acquire(table, KEY, ttl=60)
    timer = asyncio.create_task(asyncio.sleep(30))
    await travel.suspend(40)
    assert 20 - REAL < held.remaining <= 20
    assert await expiry(observe) <= timedelta(seconds=20)
    assert 30 - REAL < await travel.until(timer.done, within=40) <= 30
    await held.release()


async def test_two_that_travel_at_once_share_the_time_that_passes(travel: Travel) -> None:
    """A task may travel, or block, while another does: time passes once for both, and each goes its own way."""
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def stand_still() -> None:
        await asyncio.sleep(10)
        await travel.block(15)

    await asyncio.gather(travel(40), travel(20), stand_still())
    assert 40 <= loop.time() - started < 40 + REAL


async def test_travel_past_a_locked_row_is_refused(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """Rows that cannot be moved are an error that says what to pass; with that they stay where they are."""
    for key in (KEY, "other"):
        await (await acquire(table, key)).release()
    before = await observe.rows()
    async with observe.locked(KEY):
        with pytest.raises(RuntimeError, match=r"has locked a row of public\.lease: travel with rows=False"):
            await travel(10)
        assert await observe.rows() == before
        await travel(10, rows=False)
    assert await observe.rows() == before


@pytest.mark.slow("takes half a second or so")
async def test_travel_past_a_locked_table_is_refused(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """A table that cannot be written is an error that says what to pass."""
    await (await acquire(table, KEY)).release()
    async with observe.connection.transaction():
        await observe.connection.execute("LOCK TABLE lease")
        with pytest.raises(RuntimeError, match="has locked a lease table: travel with rows=False"):
            await travel(10)
        await travel(10, rows=False)


async def test_travel_passes_the_lock_of_a_guard(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """A fenced transaction's lock, which lets renewals pass, lets time pass too."""
    held = await acquire(table, KEY, ttl=60)
    async with observe.locked(KEY, "KEY SHARE"):
        await travel(40)
    assert await expiry(observe) <= timedelta(seconds=20)
    await held.release()


async def test_travel_without_a_database_moves_this_process_alone() -> None:
    """Where there are no rows, loop and library are moved all the same."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    await Travel(None)(50)
    assert 50 <= loop.time() - started < 50 + REAL


async def test_clock_comes_back_at_the_end(travel: Travel) -> None:
    """What the end of each test does undoes all travelling: both functions are Python's own again."""
    own = time.perf_counter() - time.monotonic()
    await travel(1000)
    assert abs(time.perf_counter() - time.monotonic() - own) > 999
    come_back()
    assert abs(time.perf_counter() - time.monotonic() - own) < REAL
    assert (time.monotonic.__module__, time.clock_gettime.__module__) == ("time", "time")
