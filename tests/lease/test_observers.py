"""Several observers, each told in order; one that raises or blocks harms nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from asyncpg_lease import Event, LeaseTable, acquire, lease
from asyncpg_lease.events import Acquired, Lost, Notifier, Released, Renewed
from tests.conftest import MakePool
from tests.support.inside import delivery
from tests.support.leasing import Recorder, settle, until
from tests.support.loops import run
from tests.support.observers import Stuck, event, logged
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "observed"


async def test_observers_in_a_list_and_a_tuple_are_each_told(pool: Pool) -> None:
    """A table takes a list of observers and a lease a tuple; all of them are told the same."""
    first, second, third, fourth = recorders = [Recorder() for _ in range(4)]
    given = [first, second]
    table = LeaseTable(pool, observer=given)
    given.clear()
    await table.create()
    async with lease(table, KEY, observer=(third, fourth)):
        pass
    assert [type(event) for event in first.events] == [Acquired, Released]
    assert all(recorder.events == first.events for recorder in recorders)
    await table.aclose()


async def test_observer_that_is_given_twice_is_told_once(pool: Pool) -> None:
    """An observer of the table that is the lease's too, or twice in a list, counts nothing twice; a method neither."""

    class Counter:
        count = 0

        def note(self, _: Event, /) -> None:
            self.count += 1

    recorder, counter, kept = Recorder(), Counter(), list[Event]()
    table = LeaseTable(pool, observer=[recorder, recorder, counter.note, kept.append])
    await table.create()
    async with lease(table, KEY, observer=[recorder, counter.note, kept.append]):
        pass
    await table.aclose()
    assert len(recorder.events) == counter.count == len(kept) == 2


async def test_observer_that_blocks_holds_up_neither_the_loop_nor_the_lease_nor_another_observer(
    table: LeaseTable, stuck: Stuck, travel: Travel
) -> None:
    """While an observer blocks for longer than the ttl the loop turns, the lease is renewed, and the next is told."""
    recorder = Recorder()
    async with lease(table, KEY, ttl=30, observer=[stuck, recorder]) as held:
        await travel(40)
        assert held.is_held
        assert stuck.entered.is_set()
        assert stuck.told == []
        assert len(recorder.of(Renewed)) >= 3
    stuck.let_go.set()
    settle(stuck)
    assert stuck.told == recorder.events


@pytest.mark.parametrize("error", [ValueError(), asyncio.CancelledError(), GeneratorExit(), StopIteration()])
async def test_observer_that_raises_is_told_the_next_event(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever an observer raises is logged, and concerns nobody else and no other event."""
    told: list[Event] = []

    def fail(event: Event, /) -> None:
        told.append(event)
        raise error

    notifier = Notifier(fail)
    for number in (1, 2):
        notifier.tell(event(number))
        settle(fail)
    assert told == [event(1), event(2)]
    assert [record.exc_info[1] for record in logged(caplog, "lease observer failed") if record.exc_info] == [error] * 2


async def test_slow_observer_is_logged_once_until_it_has_caught_up(
    silent: Notifier, stuck: Stuck, stall: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """It is named with the seconds while it still blocks; and again when it is slow another time."""
    silent.tell(event(1))
    assert not logged(caplog, "lease observer is slow")
    stall(40)
    for number in range(2, 5):
        silent.tell(event(number))
    (record,) = logged(caplog, "lease observer is slow")
    assert record.levelname == "WARNING"
    assert "Stuck" in record.lease_observer  # type: ignore[attr-defined]
    assert 40 <= record.lease_seconds < 50  # type: ignore[attr-defined]
    stuck.let_go.set()
    settle(stuck)
    assert stuck.told == [event(number) for number in range(5)]
    assert len(logged(caplog, "lease observer is slow")) == 1
    stuck.let_go.clear()
    silent.tell(event(5))
    stall(40)
    stuck.let_go.set()
    settle(stuck)
    assert len(logged(caplog, "lease observer is slow")) == 2


async def test_events_beyond_the_limit_are_dropped_and_counted(
    silent: Notifier, stuck: Stuck, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits for an observer is bounded; how many events it missed is logged once, and later ones reach it."""
    assert delivery.LIMIT == 10_000
    monkeypatch.setattr(delivery, "LIMIT", 10)
    for number in range(1, 31):
        silent.tell(event(number))
    stuck.let_go.set()
    settle(stuck)
    assert stuck.told == [event(number) for number in range(11)]
    (record,) = logged(caplog, "lease observer was too slow, events were dropped")
    assert record.levelname == "WARNING"
    assert record.lease_dropped == 20  # type: ignore[attr-defined]
    silent.tell(event(31))
    settle(stuck)
    assert stuck.told[-1] == event(31)
    assert len(logged(caplog, "lease observer was too slow")) == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_observer_that_ends_the_program_ends_the_event_loop(error: BaseException) -> None:
    """What is meant for the program, as sys.exit() in an observer, comes out of the loop and not of the lease."""

    def end(_: Event, /) -> None:
        raise error

    async def tell() -> None:
        Notifier(end).tell(event(1))
        await asyncio.sleep(5)

    with pytest.raises(type(error)) as caught:
        run(tell())
    assert caught.value is error


def test_observer_that_ends_the_program_after_its_event_loop_is_logged(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there is no loop any more, or never was one, it is an error like any other."""

    def end(told: Event, /) -> None:
        stuck(told)
        raise SystemExit

    async def tell() -> None:
        Notifier(end).tell(event(1))

    run(tell())
    Notifier(end).tell(event(2))
    stuck.let_go.set()
    settle(end)
    assert [record.lease_key for record in logged(caplog, "lease observer failed")] == ["k1", "k2"]  # type: ignore[attr-defined]


async def test_aclose_waits_for_the_observers_of_its_leases(table: LeaseTable, stuck: Stuck) -> None:
    """What a lease's own observer is not told yet is waited for, and the loop turns meanwhile."""
    held = await acquire(table, KEY, observer=stuck)
    await held.release()
    closing = asyncio.create_task(table.aclose())
    assert not (await asyncio.wait([closing], timeout=0.1))[0]
    stuck.let_go.set()
    await closing
    assert [type(event) for event in stuck.told] == [Acquired, Released]


async def test_aclose_waits_for_an_observer_that_blocks_for_a_second(
    make_pool: MakePool, stuck: Stuck, travel: Travel, caplog: pytest.LogCaptureFixture
) -> None:
    """An observer that blocks for ever does not keep a table from being closed, and is named as it is given up."""
    table = LeaseTable(await make_pool(), observer=stuck)
    await table.create()
    await (await acquire(table, KEY)).release()
    await travel(0)
    # It looks again every few milliseconds, and needs no server for it.
    alone = Travel(None)
    closing = asyncio.create_task(table.aclose())
    assert 0.9 < await alone.until(closing.done, within=5) < 4
    await closing
    assert stuck.told == []
    (record,) = logged(caplog, "lease observer is slow")
    assert 0.9 < record.lease_seconds < 8  # type: ignore[attr-defined]
    await alone.through(table.aclose(), within=5)
    assert len(logged(caplog, "lease observer is slow")) == 1


async def test_observer_can_reach_the_event_loop(table: LeaseTable) -> None:
    """An observer is called in another thread, from which call_soon_threadsafe leads back."""
    loop, came = asyncio.get_running_loop(), list[tuple[int, Event]]()

    def observe(event: Event, /) -> None:
        assert threading.get_ident() != loops
        loop.call_soon_threadsafe(lambda: came.append((threading.get_ident(), event)))

    loops = threading.get_ident()
    async with lease(table, KEY, observer=observe):
        await until(lambda: came)
    assert came[0][0] == loops
    assert isinstance(came[0][1], Acquired)
    settle(observe)
    await asyncio.sleep(0)
    assert not any(isinstance(event, Lost) for _, event in came)
