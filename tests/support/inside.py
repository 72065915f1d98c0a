"""The one door to what the library keeps private; nothing else in the tests imports a name with an underscore.

Most tests need none of it. What is here is arithmetic, parsers and statements that are tested by themselves, limits
that a test shortens, and the parts of the demo. A module that moves is followed here and nowhere else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, cast
from weakref import ref

import pytest

from asyncpg_lease import Lease, LeaseTable
from asyncpg_lease import _clock as clock
from asyncpg_lease import _delivery as delivery
from asyncpg_lease import _floor as floor
from asyncpg_lease import _revocation as revocation
from asyncpg_lease import _tasks as tasks
from asyncpg_lease._body import Body
from asyncpg_lease._delivery import delivery_to
from asyncpg_lease._driver import Statement, ask, is_usable
from asyncpg_lease._identity import fresh_holder
from asyncpg_lease._jobs import Job
from asyncpg_lease._listener import label_of
from asyncpg_lease._options import MAX_TTL, MIN_TTL, Options, fold_duration
from asyncpg_lease._pool import Connections
from asyncpg_lease._rows import ClaimRow, RenewRow, claim_row, renew_rows
from asyncpg_lease._statements import Statements, bind, key_range, quote_name
from asyncpg_lease._tasks import CANCELLED_LIMIT, TaskOwner, require_loop, wait_shielded, wait_turn
from asyncpg_lease._tenure import Tenure, Trust
from asyncpg_lease._words import describe
from asyncpg_lease.cli._board import Board, State
from asyncpg_lease.cli._chart import Chart
from asyncpg_lease.cli._crew import Event
from asyncpg_lease.cli._file import check_writable, write_whole
from asyncpg_lease.cli._glyphs import ASCII, UNICODE, Glyphs, choose_glyphs
from asyncpg_lease.cli._narrator import Lines
from asyncpg_lease.cli._picture import draw_picture
from asyncpg_lease.cli._screen import Screen, choose_narrator
from asyncpg_lease.cli._story import Story
from asyncpg_lease.cli._timeline import Ending, Scale, caption, lay_out, spread
from asyncpg_lease.cli._verdict import Attempt, Fault, FaultKind, Outcome, Records, Release, judge
from asyncpg_lease.cli._verdict import Tenure as DemoTenure
from asyncpg_lease.cli._view import View
from asyncpg_lease.testing import _keeper as keeper
from tests.support.typing import Pool

choose_clock = clock._suspend_aware_clock
free_port = keeper._free_port
Account = keeper._Account
KeeperError = keeper._KeeperError
KeptCluster = keeper._Cluster
make_server_folder = keeper._make_folder
server_account = keeper._account
say_to_owner = keeper._say


def pool_of(table: LeaseTable) -> Pool:
    """Return the pool of a table."""
    return table._store.connections.pool


def parts_of(held: Lease) -> tuple[object, ...]:
    """Return what works for a lease that is entered: its heartbeat and its table's keeper, claims and renewals."""
    heartbeat, store = held._holding._heartbeat, held._holding.store
    return heartbeat, heartbeat._keeper, store, store.claims, store.renewals


@contextmanager
def upkeep_that_fails(held: Lease) -> Iterator[None]:
    """Have each look at one lease's deadline raise a ValueError, while the block runs."""

    def fail(now: float) -> bool:
        raise ValueError(now)

    heartbeat = held._holding._heartbeat
    heartbeat.check_deadline = fail  # type: ignore[method-assign]
    try:
        yield
    finally:
        del heartbeat.check_deadline


@contextmanager
def fresh_threads() -> Iterator[None]:
    """Have no thread of observers that was begun before the block."""
    before = delivery._threads
    delivery._threads = delivery._Threads()
    try:
        yield
    finally:
        delivery._threads = before


def idle_threads() -> int:
    """Return how many threads of observers wait for work."""
    return delivery._threads._idle.qsize()


def raced_threads(work: Callable[[], None], then: Callable[[], None]) -> None:
    """Do work in a thread of observers, and then something in the same one, which is about to end for want of work.

    That is, it is counted on for `then` just as its time has run out.
    """
    is_raced = threading.Event()

    class Raced(SimpleQueue[Callable[[], None]]):
        def get(self, block: bool = True, timeout: float | None = None) -> Callable[[], None]:
            if timeout is not None and not is_raced.is_set():
                is_raced.set()
                threads._idle.get_nowait()
                threading.Timer(0.1, self.put, [then]).start()
                raise Empty
            return super().get(block, timeout)

    threads = delivery._Threads()
    threads._work = Raced()
    threads.run(work)


@contextmanager
def between_last_event_and_rest(happen: Callable[[], None]) -> Iterator[None]:
    """Have something happen, each time, between a thread's last event and where it says that it has told them all."""
    say_dropped = delivery.Delivery._say_dropped

    def between(self: delivery.Delivery, loop: asyncio.AbstractEventLoop | None) -> None:
        say_dropped(self, loop)
        happen()

    delivery.Delivery._say_dropped = between  # type: ignore[method-assign]
    try:
        yield
    finally:
        delivery.Delivery._say_dropped = say_dropped  # type: ignore[method-assign]


def observers_known() -> int:
    """Return how many observers have a way of their own."""
    return len(delivery._deliveries)


def forget_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next claim be the first of its process, which loads anyio's backend."""
    monkeypatch.setattr(tasks, "_backend_loaded", False)


def tenure_of(held: Lease) -> ref[object]:
    """Return a weak reference to what goes on behind a lease."""
    return ref(held._holding)


def tell_story(narrator: object, faults: list[Fault], event: Event) -> None:
    """Let the demo's story hear of one event after faults, with nothing else of the demo there."""
    nothing: Any = None
    story = Story(nothing, nothing, cast("Any", narrator), list(FaultKind), restart=None)
    story._faults = faults
    story._note(event)


__all__ = [
    "ASCII",
    "CANCELLED_LIMIT",
    "MAX_TTL",
    "MIN_TTL",
    "UNICODE",
    "Account",
    "Attempt",
    "Board",
    "Body",
    "Chart",
    "ClaimRow",
    "Connections",
    "DemoTenure",
    "Ending",
    "Event",
    "Fault",
    "FaultKind",
    "Glyphs",
    "Job",
    "KeeperError",
    "KeptCluster",
    "Lines",
    "Options",
    "Outcome",
    "Records",
    "Release",
    "RenewRow",
    "Scale",
    "Screen",
    "State",
    "Statement",
    "Statements",
    "TaskOwner",
    "Tenure",
    "Trust",
    "View",
    "ask",
    "between_last_event_and_rest",
    "bind",
    "caption",
    "check_writable",
    "choose_clock",
    "choose_glyphs",
    "choose_narrator",
    "claim_row",
    "delivery",
    "delivery_to",
    "describe",
    "draw_picture",
    "floor",
    "fold_duration",
    "forget_backend",
    "free_port",
    "fresh_holder",
    "fresh_threads",
    "idle_threads",
    "is_usable",
    "judge",
    "key_range",
    "label_of",
    "lay_out",
    "make_server_folder",
    "observers_known",
    "parts_of",
    "pool_of",
    "quote_name",
    "raced_threads",
    "renew_rows",
    "require_loop",
    "revocation",
    "say_to_owner",
    "server_account",
    "spread",
    "tasks",
    "tell_story",
    "tenure_of",
    "upkeep_that_fails",
    "wait_shielded",
    "wait_turn",
    "write_whole",
]
