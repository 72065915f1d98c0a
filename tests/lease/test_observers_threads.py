"""The threads in which observers are called: how many there are, what each does, and that nothing falls between two."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack
from queue import Empty, SimpleQueue

import pytest

from asyncpg_lease import Event, LeaseTable, acquire, lease
from asyncpg_lease.events import Acquired, Notifier, Released
from tests.support.inside import delivery
from tests.support.leasing import Recorder, settle, until
from tests.support.observers import Stuck, event, logged, threads
from tests.support.typing import Pool

KEY = "observed"


async def test_observers_that_block_are_each_told_in_a_thread_of_their_own(silent: Notifier) -> None:
    """However many observers block, the next one is still told."""
    others = [Stuck() for _ in range(20)]
    recorder = Recorder()
    silent.plus([*others, recorder]).tell(event(1))
    assert recorder.events == [event(1)]
    await asyncio.to_thread(others[-1].entered.wait, 5)
    for other in others:
        other.let_go.set()
        settle(other)
        assert other.told == [event(1)]


@pytest.mark.usefixtures("few_threads")
def test_observer_is_told_one_event_at_a_time_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that tell one method at once, by notifiers of their own, never meet in it, and nothing is lost."""
    monkeypatch.setattr(delivery, "IDLE_LIMIT", 0.0)

    class Careful:
        def __init__(self) -> None:
            self.inside = threading.Lock()
            self.met = 0
            self.told: list[Event] = []

        def note(self, event: Event, /) -> None:
            if self.inside.acquire(blocking=False):
                time.sleep(0)
                self.told.append(event)
                self.inside.release()
            else:
                self.met += 1

    careful = Careful()

    def tell(first: int) -> None:
        notifier = Notifier(careful.note)
        for number in range(first, 4000, 2):
            notifier.tell(event(number))
            if number % 50 == first:
                time.sleep(0.001)

    tellers = [threading.Thread(target=tell, args=(first,)) for first in (0, 1)]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join()
    settle(careful.note)
    assert careful.met == 0
    fences = [one.fence for one in careful.told if isinstance(one, Released)]
    assert sorted(fences) == list(range(4000))
    assert [fence for fence in fences if fence % 2] == list(range(1, 4000, 2))


def test_event_that_comes_as_its_thread_finds_nothing_more_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that has told everything looks once more after it has said so: what came in between is not left."""
    recorder, late = Recorder(), [event(2)]
    notifier, say_dropped = Notifier(recorder), delivery.Delivery._say_dropped

    def between(delivery: delivery.Delivery, loop: asyncio.AbstractEventLoop | None) -> None:
        say_dropped(delivery, loop)
        while late:
            notifier.tell(late.pop())

    monkeypatch.setattr(delivery.Delivery, "_say_dropped", between)
    notifier.tell(event(1))
    assert recorder.events == [event(1), event(2)]


def test_work_that_comes_as_an_idle_thread_gives_up_is_done() -> None:
    """A thread that somebody counted on while its time ran out waits for the work that it was counted on for."""
    first, second = threading.Event(), threading.Event()

    class Raced(SimpleQueue[Callable[[], None]]):
        def get(self, block: bool = True, timeout: float | None = None) -> Callable[[], None]:
            if timeout is not None and not second.is_set():
                pool._idle.get_nowait()
                threading.Timer(0.1, self.put, [second.set]).start()
                raise Empty
            return super().get(block, timeout)

    pool = delivery._Threads()
    pool._work = Raced()
    pool.run(first.set)
    assert first.wait(5)
    assert second.wait(5)


@pytest.mark.usefixtures("few_threads")
async def test_thread_of_observers_that_is_idle_ends_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread serves all observers that do not block, ends when there is nothing to tell, and is begun again."""
    monkeypatch.setattr(delivery, "IDLE_LIMIT", 0.2)
    before = threads()
    recorders = [Recorder() for _ in range(5)]
    for number, recorder in enumerate(recorders):
        Notifier(recorder).tell(event(number))
        assert recorder.events
        await asyncio.sleep(0.02)
    assert len(threads() - before) == 1
    await until(lambda: threads() <= before)
    Notifier(recorders[0]).tell(event(9))
    assert recorders[0].events == [event(0), event(9)]


async def test_thousand_leases_with_an_observer_each_leave_none_behind(pool: Pool, table: LeaseTable) -> None:
    """What was made for one lease is gone with it: the observer, and what leads to it."""
    assert table.name
    observers: list[weakref.ref[Recorder]] = []
    before, threads_before, most = len(delivery._deliveries), threads(), 0
    for _ in range(20):
        async with AsyncExitStack() as stack:
            for number in range(50):
                recorder = Recorder()
                observers.append(weakref.ref(recorder))
                observer = lambda event, to=recorder: to(event)  # noqa: E731 - a fresh one for each lease
                await stack.enter_async_context(lease(pool, f"k{number}", observer=observer))
                del recorder, observer
        most = max(most, len(threads() - threads_before))
    assert len(observers) == 1000
    await until(lambda: gc.collect() >= 0 and not any(one() for one in observers), within=2)
    assert len(delivery._deliveries) <= before
    assert most < 50


@pytest.mark.usefixtures("few_threads")
async def test_lease_goes_on_where_no_thread_can_be_had(
    table: LeaseTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The want of a thread is logged, and the observer is told with the next event for which there is one."""

    def refuse(_: threading.Thread) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    recorder = Recorder()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        held = await acquire(table, KEY, observer=recorder)
        assert held.is_held
    assert len(logged(caplog, "lease observer failed")) == 1
    assert recorder._told == []
    await held.release()
    assert [type(event) for event in recorder.events] == [Acquired, Released]
