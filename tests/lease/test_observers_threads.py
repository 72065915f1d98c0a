"""The threads in which observers are called: how many there are, what each does, and that nothing falls between two."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from contextlib import AsyncExitStack

import pytest

from asyncpg_lease import Event, LeaseTable, acquire, lease
from asyncpg_lease.events import Acquired, Notifier, Released
from tests.support.inside import between_last_event_and_rest, delivery, idle_threads, observers_known, raced_threads
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
        for number in range(first, 1000, 2):
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
    assert sorted(fences) == list(range(1000))
    assert [fence for fence in fences if fence % 2] == list(range(1, 1000, 2))


def test_event_that_comes_as_its_thread_finds_nothing_more_is_told() -> None:
    """The thread that has told everything looks once more after it has said so: what came in between is not left."""
    recorder, late = Recorder(), [event(2)]
    notifier = Notifier(recorder)

    def tell_late() -> None:
        while late:
            notifier.tell(late.pop())

    with between_last_event_and_rest(tell_late):
        notifier.tell(event(1))
        assert recorder.events == [event(1), event(2)]


def test_work_that_comes_as_an_idle_thread_gives_up_is_done() -> None:
    """A thread that somebody counted on while its time ran out waits for the work that it was counted on for."""
    first, second = threading.Event(), threading.Event()
    raced_threads(first.set, second.set)
    assert first.wait(5)
    assert second.wait(5)


@pytest.mark.usefixtures("few_threads")
async def test_thread_of_observers_that_is_idle_ends_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread serves all observers that do not block, ends when there is nothing to tell, and is begun again."""
    monkeypatch.setattr(delivery, "IDLE_LIMIT", 0.3)
    before, most = threads(), 0
    recorders = [Recorder() for _ in range(5)]
    for number, recorder in enumerate(recorders):
        Notifier(recorder).tell(event(number))
        most = max(most, len(threads() - before))
        assert recorder.events
        # It has told the event, and is about to say that it is idle, or has ended already.
        await until(lambda: idle_threads() == len(threads() - before))
    assert most == 1
    await until(lambda: threads() <= before)
    Notifier(recorders[0]).tell(event(9))
    assert recorders[0].events == [event(0), event(9)]


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_hundred_leases_with_an_observer_each_leave_none_behind(pool: Pool) -> None:
    """What was made for one lease is gone with it: the observer, and what leads to it."""
    observers: list[weakref.ref[Recorder]] = []
    before, threads_before, most = observers_known(), threads(), 0
    for _ in range(4):
        async with AsyncExitStack() as stack:
            for number in range(25):
                recorder = Recorder()
                observers.append(weakref.ref(recorder))
                observer = lambda event, to=recorder: to(event)  # noqa: E731 - a fresh one for each lease
                await stack.enter_async_context(lease(pool, f"k{number}", observer=observer))
                del recorder, observer
        most = max(most, len(threads() - threads_before))
    assert len(observers) == 100
    await until(lambda: gc.collect() >= 0 and not any(one() for one in observers))
    assert observers_known() <= before
    assert most < 25


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
    assert recorder.so_far == []
    await held.release()
    assert [type(event) for event in recorder.events] == [Acquired, Released]
