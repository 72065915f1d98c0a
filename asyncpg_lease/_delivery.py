"""How events reach an observer: in a thread, in order, so that nothing that it does holds up an event loop.

Whoever hands an event over waits for nothing but, now and then, the start of a thread. That may be the garbage
collector, in the middle of anything, this module included: so no lock is ever waited for on that way.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TypeAlias
from weakref import WeakValueDictionary

from asyncpg_lease._clock import local_time
from asyncpg_lease._listener import Callee, Listener, Told, identity_of, label_of

__all__ = ["Delivery", "delivery_to", "running_loop", "settle"]

LIMIT = 10_000
"""Events that may wait for one observer."""

SLOW = 1.0
"""Seconds after which an event that was not taken note of makes its observer a slow one."""

IDLE_LIMIT = 5.0
"""Seconds for which a thread waits for another event."""

EXIT_LIMIT = 1.0
"""Seconds for which the interpreter's exit is held up for what is not told yet."""

POLL = 0.005

_Handed: TypeAlias = tuple[Told, float, asyncio.AbstractEventLoop | None]


class Delivery:
    """The way to one observer, which is told one event at a time, in the order in which they were handed over."""

    __slots__ = ("__weakref__", "_at_work", "_began", "_dropped", "_events", "_listener", "_said_slow")

    def __init__(self, observer: Callee) -> None:
        self._listener = Listener(observer, label_of(observer))
        self.begin_anew()

    def __repr__(self) -> str:
        return f"<Delivery to {self.label}>"

    @property
    def label(self) -> str:
        """What the log calls the observer."""
        return self._listener.label

    def begin_anew(self) -> None:
        """Forget what is under way: in a forked child that is its parent's, and so is the thread."""
        self._events: SimpleQueue[_Handed] = SimpleQueue()
        # Locked while a thread sees to this observer; it is tried, and never waited for.
        self._at_work = Lock()
        self._began: float | None = None
        self._dropped = 0
        self._said_slow = False

    @property
    def waiting(self) -> int:
        """How many events wait until the observer is done with the one before."""
        return self._events.qsize()

    @property
    def is_behind(self) -> bool:
        """Whether there is an event that the observer is not done with."""
        return self._at_work.locked() or not self._events.empty()

    def hand_over(self, event: Told) -> None:
        """Have the observer told of an event, or drop it where too many wait already."""
        now, loop = local_time(), running_loop()
        if self._events.qsize() < LIMIT:
            self._events.put((event, now, loop))
        else:
            self._dropped += 1
        if (began := self._began) is not None:
            self._say_slow(now - began, loop)
        if self._at_work.acquire(blocking=False):
            try:
                _threads.run(self._work)
            except Exception as error:  # noqa: BLE001 - where no thread is to be had the lease goes on
                self._at_work.release()
                self._listener.complain(event, error, loop)

    def _work(self) -> None:
        """Tell the observer all that there is to tell."""
        loop: asyncio.AbstractEventLoop | None = None
        while True:
            while (handed := self._next()) is not None:
                event, since, loop = handed
                self._began = local_time()
                self._listener.tell(event, loop)
                self._began = None
                self._say_slow(local_time() - since, loop)
            self._say_dropped(loop)
            self._said_slow = False
            self._at_work.release()
            # Handed over since the queue was found empty, by somebody who found it being seen to.
            if self._events.empty() or not self._at_work.acquire(blocking=False):
                return

    def _next(self) -> _Handed | None:
        try:
            return self._events.get_nowait()
        except Empty:
            return None

    def _say_slow(self, seconds: float, loop: asyncio.AbstractEventLoop | None) -> None:
        """Log it once until the observer has caught up."""
        if seconds >= SLOW and not self._said_slow:
            self._said_slow = True
            self._warn("lease observer is slow", {"seconds": seconds}, loop)

    def give_up(self) -> None:
        """Log that nobody waits any longer for an observer that is being told."""
        if (began := self._began) is not None and not self._said_slow:
            self._said_slow = True
            self._warn("lease observer is slow", {"seconds": local_time() - began}, None)

    def _say_dropped(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._warn("lease observer was too slow, events were dropped", {"dropped": dropped}, loop)

    def say_untold(self) -> None:
        """Log how many events nobody will be told of, the one that is under way too."""
        untold = self.waiting + self._dropped + (self._began is not None)
        self._warn("lease observer was not told of all events", {"untold": untold}, None)

    def _warn(self, message: str, fields: Mapping[str, object], loop: asyncio.AbstractEventLoop | None) -> None:
        self._listener.say(logging.WARNING, message, fields, loop)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _Threads:
    """As many threads as there are observers that are being told something: one, unless one of them blocks."""

    def __init__(self) -> None:
        # One entry for each thread that waits for work and that nobody has counted on.
        self._idle: SimpleQueue[None] = SimpleQueue()
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run(self, work: Callable[[], None]) -> None:
        """Do some work in a thread that is idle, or in a new one."""
        try:
            self._idle.get_nowait()
        except Empty:
            # A daemon: an observer that blocks for ever must not keep the interpreter from its exit.
            Thread(target=self._serve, name="asyncpg_lease:observers", daemon=True).start()
        self._work.put(work)

    def _serve(self) -> None:
        work = self._work.get()
        while True:
            work()
            # What was done must not keep its observer alive while this waits.
            del work
            self._idle.put(None)
            try:
                work = self._work.get(timeout=IDLE_LIMIT)
            except Empty:
                try:
                    self._idle.get_nowait()
                except Empty:
                    # Somebody has just counted on this thread.
                    work = self._work.get()
                else:
                    return


_threads = _Threads()
# As long as somebody has events for the observer, or some wait.
_deliveries: WeakValueDictionary[tuple[int, object], Delivery] = WeakValueDictionary()
_registering = Lock()


def delivery_to(observer: Callee) -> Delivery:
    """Return the one way to an observer, whoever has events for it: two threads must not call it at once."""
    name = identity_of(observer)
    with _registering:
        delivery = _deliveries.get(name)
        if delivery is None:
            delivery = _deliveries[name] = Delivery(observer)
        return delivery


async def settle(deliveries: Iterable[Delivery], limit: float) -> None:
    """Wait until observers are done with what there is to tell, at most `limit` seconds; name those that are not."""
    until = local_time() + limit
    while (behind := _behind(deliveries)) and local_time() < until:  # noqa: ASYNC110 - in threads
        await asyncio.sleep(POLL)
    for delivery in behind:
        delivery.give_up()


def _known() -> list[Delivery]:
    # In one step: in a thread one may be added meanwhile.
    return [delivery for reference in _deliveries.valuerefs() if (delivery := reference()) is not None]


def _behind(deliveries: Iterable[Delivery]) -> list[Delivery]:
    return [delivery for delivery in tuple(deliveries) if delivery.is_behind]


@atexit.register
def _finish() -> None:
    until = local_time() + EXIT_LIMIT
    while (behind := _behind(_known())) and local_time() < until:
        time.sleep(POLL)
    for delivery in behind:
        delivery.give_up()
        delivery.say_untold()


def _begin_anew() -> None:
    global _registering, _threads
    _registering, _threads = Lock(), _Threads()
    for delivery in _known():
        delivery.begin_anew()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_begin_anew)
