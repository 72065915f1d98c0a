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
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from types import BuiltinMethodType, MethodType
from typing import Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

from asyncpg_lease._clock import local_time

__all__ = ["Delivery", "call", "delivery_to", "running_loop", "settle"]

logger: logging.Logger = logging.getLogger("asyncpg_lease")

LIMIT = 10_000
"""Events that may wait for one observer."""

SLOW = 1.0
"""Seconds after which an event that was not taken note of makes its observer a slow one."""

IDLE_LIMIT = 5.0
"""Seconds for which a thread waits for another event."""

EXIT_LIMIT = 1.0
"""Seconds for which the interpreter's exit is held up for what is not told yet."""

POLL = 0.005

HARMLESS = (Exception, asyncio.CancelledError)
"""What may come out of the log while something else is the matter: it may be the log that failed."""


class _Told(Protocol):
    @property
    def key(self) -> str: ...


_Observer: TypeAlias = Callable[[Any], object]
_Handed: TypeAlias = tuple[_Told, float, asyncio.AbstractEventLoop | None]


class Delivery:
    """The way to one observer, which is told one event at a time, in the order in which they were handed over."""

    __slots__ = ("__weakref__", "_at_work", "_began", "_dropped", "_events", "_said_slow", "observer")

    def __init__(self, observer: _Observer) -> None:
        self.observer = observer
        self.begin_anew()

    def __repr__(self) -> str:
        return f"<Delivery to {self.observer!r}>"

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

    def hand_over(self, event: _Told) -> None:
        """Have the observer told of an event, or drop it where too many wait already."""
        now = local_time()
        if self._events.qsize() < LIMIT:
            self._events.put((event, now, running_loop()))
        else:
            self._dropped += 1
        if (began := self._began) is not None:
            self._say_slow(now - began)
        if self._at_work.acquire(blocking=False):
            try:
                _threads.run(self._work)
            except Exception as error:  # noqa: BLE001 - where no thread is to be had the lease goes on
                self._at_work.release()
                _complain(event, self.observer, error)

    def _work(self) -> None:
        """Tell the observer all that there is to tell."""
        while True:
            while (handed := self._next()) is not None:
                event, since, loop = handed
                self._began = local_time()
                call(self.observer, event, loop)
                self._began = None
                self._say_slow(local_time() - since)
            self._say_dropped()
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

    def _say_slow(self, seconds: float) -> None:
        """Log it once until the observer has caught up."""
        if seconds >= SLOW and not self._said_slow:
            self._said_slow = True
            self._warn("lease observer is slow", lease_seconds=seconds)

    def _say_dropped(self) -> None:
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._warn("lease observer was too slow, events were dropped", lease_dropped=dropped)

    def say_untold(self) -> None:
        """Log how many events nobody will be told of."""
        self._warn("lease observer was not told of all events", lease_untold=self.waiting + self._dropped)

    def _warn(self, message: str, **fields: object) -> None:
        extra = {"lease_observer": repr(self.observer), **fields}
        with suppress(*HARMLESS):
            logger.warning("%s: %s", message, _said(extra), extra=extra)


def _said(extra: dict[str, object]) -> str:
    return " ".join(f"{name.removeprefix('lease_')}={value!r}" for name, value in extra.items())


def call(told: _Observer, event: _Told, loop: asyncio.AbstractEventLoop | None) -> None:
    """Tell somebody of an event; whatever that raises harms nobody.

    KeyboardInterrupt and SystemExit come out of the loop's next turn, where it has one.
    """
    try:
        told(event)
    except (KeyboardInterrupt, SystemExit) as error:
        if not _raise_in_loop(error, loop):
            _complain(event, told, error)
    # A CancelledError too: it would pass for a cancellation of whoever tells.
    except BaseException as error:  # noqa: BLE001 - as said
        _complain(event, told, error)


def _raise_in_loop(error: BaseException, loop: asyncio.AbstractEventLoop | None) -> bool:
    def throw() -> None:
        raise error

    if loop is not None:
        # It may be closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(throw)
            return True
    return False


def _complain(event: _Told, told: _Observer, error: BaseException) -> None:
    with suppress(*HARMLESS):
        extra = {"lease_key": event.key, "lease_observer": repr(told)}
        logger.error("lease observer failed", extra=extra, exc_info=error)


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


def delivery_to(observer: _Observer) -> Delivery:
    """Return the one way to an observer, whoever has events for it: two threads must not call it at once."""
    name = _identity(observer)
    with _registering:
        delivery = _deliveries.get(name)
        if delivery is None:
            delivery = _deliveries[name] = Delivery(observer)
        return delivery


def _identity(observer: _Observer) -> tuple[int, object]:
    # Each look at a method makes another object.
    if isinstance(observer, MethodType):
        return id(observer.__self__), id(observer.__func__)
    if isinstance(observer, BuiltinMethodType):
        return id(observer.__self__), observer.__name__
    return id(observer), None


async def settle(deliveries: Iterable[Delivery], limit: float) -> None:
    """Wait until observers are done with what there is to tell, at most `limit` seconds."""
    until = local_time() + limit
    while local_time() < until and any(delivery.is_behind for delivery in tuple(deliveries)):  # noqa: ASYNC110 - in threads
        await asyncio.sleep(POLL)


def _behind() -> list[Delivery]:
    deliveries = [reference() for reference in _deliveries.valuerefs()]
    return [delivery for delivery in deliveries if delivery is not None and delivery.is_behind]


@atexit.register
def _finish() -> None:
    until = local_time() + EXIT_LIMIT
    while local_time() < until and _behind():
        time.sleep(POLL)
    for delivery in _behind():
        delivery.say_untold()


def _begin_anew() -> None:
    global _registering, _threads
    _registering, _threads = Lock(), _Threads()
    for reference in _deliveries.valuerefs():
        if (delivery := reference()) is not None:
            delivery.begin_anew()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_begin_anew)
