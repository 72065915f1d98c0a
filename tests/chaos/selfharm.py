"""What a process does to itself when its parent asks for it: block, fork, exhaust its pool, cancel its own calls."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import asyncpg

from asyncpg_lease import Lease
from tests.faults.means import exhausted
from tests.history.record import Turn
from tests.support.leasing import assert_child_is_fine
from tests.support.processes import emit, receive
from tests.support.typing import Pool

PAUSE = 0.005


class Selfharm:
    """Obeys the parent, and says when it has: `did` with the number of the order."""

    def __init__(self, pool: Pool) -> None:
        self._held: list[Lease] = []
        self._pool = pool
        self._orders: dict[str, deque[tuple[int, float]]] = defaultdict(deque)
        self._tasks: set[asyncio.Task[None]] = set()

    async def obey(self) -> None:
        """Do what the parent sends, until it sends stop."""
        while True:
            match await receive():
                case {"do": "block", "order": int(order), "seconds": float(seconds)}:
                    time.sleep(seconds)
                    emit(what="did", order=order)
                case {"do": "exhaust", "order": int(order), "seconds": float(seconds)}:
                    self._start(self._exhaust(order, seconds))
                case {"do": "fork", "order": int(order)}:
                    self._start(self._fork(order))
                case {"do": "cancel", "order": int(order), "phase": str(phase), "seconds": float(seconds)}:
                    self._orders[phase].append((order, seconds))
                case {"do": "explain", "kind": kind}:
                    emit(what="wrong", name=f"{kind}: not met", detail=f"{self._pool.get_idle_size()} idle {stacks()}")
                case _:
                    break
        for task in self._tasks:
            task.cancel()

    @contextmanager
    def holding(self, held: Lease) -> Iterator[None]:
        """Know a lease for as long as its body runs."""
        self._held.append(held)
        try:
            yield
        finally:
            self._held.remove(held)

    def enter(self, turn: Turn, phase: str) -> None:
        """Take note of how far a turn has come, and cancel it in this phase where that was ordered."""
        turn.phase = phase
        if self._orders[phase] and not turn.cancelled:
            order, seconds = self._orders[phase].popleft()
            asyncio.get_running_loop().call_later(seconds, self._cancel, turn, phase, order, seconds)

    def _cancel(self, turn: Turn, phase: str, order: int, seconds: float) -> None:
        assert turn.task is not None
        if turn.phase != phase or turn.task.done():
            # It was quicker: the next one, and sooner.
            self._orders[phase].append((order, seconds / 2))
            return
        turn.cancel(phase)
        emit(what="did", order=order)

    def _start(self, harm: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(harm)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exhaust(self, order: int, seconds: float) -> None:
        taken = False
        while not taken:
            # A connection may fail when it is made, or be gone when it is given back.
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                async with exhausted(self._pool):
                    taken = True
                    emit(what="did", order=order)
                    await asyncio.sleep(seconds)

    async def _fork(self, order: int) -> None:
        while not self._held:
            await asyncio.sleep(PAUSE)
        held = self._held[0]
        with warnings.catch_warnings():
            # From Python 3.12 on, since observers have threads.
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            code = 1
            # os._exit, whatever happens: the child has a copy of everything, the event loop included.
            with suppress(BaseException):
                use_copy(held)
                code = 0
            os._exit(code)
        emit(what="did", order=order)
        await asyncio.to_thread(assert_child_is_fine, pid)


def stacks() -> str:
    """Return where each task of this process stands: all that it awaits, and not its outermost call alone."""
    told = []
    for task in asyncio.all_tasks():
        told.append(f"{task.get_name()}:")
        awaited: Any = task.get_coro()
        while awaited is not None:
            if (frame := getattr(awaited, "cr_frame", None)) is not None:
                told.append(f" {frame.f_code.co_name} {frame.f_code.co_filename}:{frame.f_lineno}")
            awaited = getattr(awaited, "cr_await", None)
        told.append("\n")
    return "".join(told)


def use_copy(held: Lease) -> None:
    """Use the copy of a lease as if it were the lease, in a forked child; say whether all was refused."""
    refused = not held.is_held
    for call in (held.raise_if_stopping, lambda: held.renew().send(None), lambda: held.confirm().send(None)):
        try:
            call()
        except RuntimeError:
            continue
        refused = False
    if refused:
        emit(what="notice", name="Copy refused", key=held.key, holder=held.holder)
    else:
        emit(what="wrong", name="a forked child's copy of a lease is held", key=held.key, detail=repr(held))
