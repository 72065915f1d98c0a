"""Observers whose repr raises or blocks, a log that raises, and what is meant for the program: none harms a lease."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from asyncpg_lease import Event, LeaseTable, lease
from asyncpg_lease.events import Late, Notifier, Observer, Renewed
from tests.support.inside import delivery, label_of
from tests.support.leasing import Recorder, settle
from tests.support.loops import run
from tests.support.observers import Stuck, event, logged
from tests.support.travel import Travel

KEY = "observed"
LOGGER = "asyncpg_lease"


class Unspeakable(Stuck):
    """One that blocks, then raises, and whose repr raises."""

    def __repr__(self) -> str:
        """Raise."""
        message = "no repr"
        raise ValueError(message)

    def __call__(self, event: Event, /) -> None:
        """Block, then raise."""
        super().__call__(event)
        raise KeyError


@contextmanager
def handler_that_raises(error: BaseException) -> Iterator[list[str]]:
    """Have the library's log raise for each record, whose templates are kept."""
    kept: list[str] = []

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.msg)
            raise error

    handler, logger = Raising(), logging.getLogger(LOGGER)
    logger.addHandler(handler)
    try:
        yield kept
    finally:
        logger.removeHandler(handler)


@pytest.fixture
def unspeakable() -> Iterator[Unspeakable]:
    """One that is let go at the end at the latest."""
    observer = Unspeakable()
    yield observer
    observer.let_go.set()
    settle(observer)


async def test_observer_whose_repr_raises_is_logged_when_it_is_slow_and_when_it_fails(
    unspeakable: Unspeakable, stall: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its repr is asked neither where an event is told nor in its thread, so it is told the next event all the same."""
    notifier = Notifier(unspeakable)
    notifier.tell(event(0))
    await asyncio.to_thread(unspeakable.entered.wait, 5)
    stall(3)
    notifier.tell(event(1))
    assert len(logged(caplog, "lease observer is slow")) == 1
    unspeakable.let_go.set()
    settle(unspeakable)
    assert unspeakable.told == [event(0), event(1)]
    failed = logged(caplog, "lease observer failed")
    label = object.__repr__(unspeakable)
    assert [(record.lease_key, record.lease_observer) for record in failed] == [("k0", label), ("k1", label)]  # type: ignore[attr-defined]
    unspeakable.let_go.clear()
    notifier.tell(event(2))
    stall(3)
    unspeakable.let_go.set()
    settle(unspeakable)
    assert len(logged(caplog, "lease observer is slow")) == 2
    assert label in repr(notifier)
    assert label in repr(delivery.delivery_to(unspeakable))


async def test_lease_is_renewed_whatever_the_repr_of_its_observer_does(
    table: LeaseTable, unspeakable: Unspeakable, travel: Travel
) -> None:
    """A slow observer is said to be slow in the midst of a renewal, and the heartbeat goes on after it."""
    async with lease(table, KEY, ttl=30, observer=unspeakable) as held:
        await travel(40)
        assert held.is_held
    unspeakable.let_go.set()
    settle(unspeakable)
    assert sum(isinstance(each, Renewed) for each in unspeakable.told) >= 3


async def test_observer_whose_repr_waits_for_its_call_does_not_stop_the_event_loop(
    stall: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its call holds a lock until the loop turns, and its repr wants the lock: nobody asks for it."""

    class Locked(Stuck):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()
            self.asked = 0

        def __repr__(self) -> str:
            self.asked += 1
            with self.lock:
                return "Locked"

        def __call__(self, event: Event, /) -> None:
            with self.lock:
                self.entered.set()
                self.let_go.wait(5)
            self.told.append(event)

    locked = Locked()
    notifier = Notifier(locked)
    notifier.tell(event(1))
    await asyncio.to_thread(locked.entered.wait, 5)
    stall(3)
    notifier.tell(event(2))
    assert locked.told == []
    assert len(logged(caplog, "lease observer is slow")) == 1
    locked.let_go.set()
    settle(locked)
    assert locked.asked == 0


class Kept(list[Event]):
    """A list that does not want to be shown."""

    __repr__ = Unspeakable.__repr__

    def note(self, event: Event, /) -> None:
        """Keep an event."""


def noted(event: Event, /) -> None:
    """Do nothing."""


kept = Kept()


@pytest.mark.parametrize(
    ("observer", "label"),
    [
        (noted, f"{__name__}.noted"),
        (kept.note, f"{__name__}.Kept.note"),
        (print, "builtins.print"),
        (kept.append, "Kept.append"),
        (kept, object.__repr__(kept)),
    ],
    # Its address is another one in each process.
    ids=["function", "method", "builtin", "builtin method", "object"],
)
def test_observer_is_called_by_its_module_and_name_or_by_its_class(observer: object, label: str) -> None:
    """What the log calls it is made without a line of its code."""
    assert label_of(observer) == label


def test_observer_whose_module_is_no_text_is_called_by_its_name() -> None:
    """Whatever was made of a function's `__module__` is not asked for its text."""

    def odd(_: Event, /) -> None: ...

    odd.__module__ = kept  # type: ignore[assignment]
    assert label_of(odd) == odd.__qualname__


@pytest.mark.parametrize("error", [ValueError(), asyncio.CancelledError(), GeneratorExit()])
async def test_log_that_raises_harms_neither_the_teller_nor_the_observers(
    error: BaseException, unspeakable: Unspeakable, stall: Callable[[float], None]
) -> None:
    """Whatever a handler makes of an event, a slow observer or a failed one: all is told, and nothing comes out."""
    with handler_that_raises(error) as said:
        recorder = Recorder()
        notifier = Notifier(unspeakable, recorder)
        late = Late(key=KEY, holder="h", fence=1, blocked=1.0, remaining=1.0)
        notifier.tell(late)
        await asyncio.to_thread(unspeakable.entered.wait, 5)
        stall(3)
        notifier.tell(late)
        unspeakable.let_go.set()
        settle(unspeakable)
    assert unspeakable.told == recorder.events == [late, late]
    assert set(said) == {
        f"{Late.message}: %s",
        "lease observer failed: %s",
        "lease observer is slow: %s",
    }


def of_the_observer(error: BaseException, told: list[Event]) -> Observer:
    """Make an observer that raises each time."""

    def end(event: Event, /) -> None:
        told.append(event)
        raise error

    return end


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_observer_that_ends_the_program_does_so_once(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """Its second error is logged: it would cut off the clean-up that the first one has begun."""
    told, ended = list[Event](), list[str]()
    observer = of_the_observer(error, told)

    async def clean_up_slowly() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            Notifier(observer).tell(event(2))
            settle(observer)
            await asyncio.sleep(0.1)
            ended.append("cleaned up")

    async def tell() -> None:
        cleaning = asyncio.create_task(clean_up_slowly())
        await asyncio.sleep(0)
        Notifier(observer).tell(event(1))
        await cleaning

    # As long as something leads to the observer its way is the same.
    notifier = Notifier(observer)
    with pytest.raises(type(error)):
        run(tell())
    assert ended == ["cleaned up"]
    assert told == [event(1), event(2)]
    (record,) = logged(caplog, "lease observer failed")
    assert record.lease_key == "k2"  # type: ignore[attr-defined]
    assert notifier.wants(Renewed)


def test_log_that_ends_the_program_does_so_once() -> None:
    """A handler that calls sys.exit() does not cut off the clean-up that it began, and comes out of no lease."""
    ended: list[str] = []
    late = Late(key=KEY, holder="h", fence=1, blocked=1.0, remaining=1.0)
    notifier = Notifier()

    async def tell() -> None:
        try:
            notifier.plus([Recorder()]).tell(late)
            await asyncio.sleep(30)
        finally:
            notifier.tell(late)
            await asyncio.sleep(0.1)
            ended.append("cleaned up")

    with handler_that_raises(SystemExit(3)), pytest.raises(SystemExit):
        run(tell())
    assert ended == ["cleaned up"]


async def test_log_that_ends_the_program_when_it_is_told_of_an_observer_ends_it(
    unspeakable: Unspeakable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a thread it would end the thread alone, and the observer would never be told again."""
    loop, thrown = asyncio.get_running_loop(), list[Callable[..., object]]()
    with handler_that_raises(SystemExit(3)), monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", thrown.append)
        notifier = Notifier(unspeakable)
        notifier.tell(event(1))
        unspeakable.let_go.set()
        settle(unspeakable)
        notifier.tell(event(2))
        settle(unspeakable)
    assert unspeakable.told == [event(1), event(2)]
    with pytest.raises(SystemExit):
        thrown.pop()()
    assert thrown == []
