"""Every task that runs has its owner here, and every wait that must outlast a cancellation."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from asyncpg_lease._clock import local_time
from asyncpg_lease._unwinding import time_to_unwind

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

__all__ = [
    "CANCELLED_LIMIT",
    "TaskOwner",
    "let_out",
    "load_backend",
    "require_loop",
    "start_timer",
    "wait_shielded",
    "wait_turn",
]

T = TypeVar("T")


class TaskOwner:
    """A set of named tasks, each kept until it ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        """Name the tasks that are under way."""
        return f"<TaskOwner {sorted(task.get_name() for task in self._tasks)}>"

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start a task that this owner keeps.

        Not by the loop's task factory: an eager one would run the first steps inside the caller, and
        hold the caller up to where the work first waits. The context is a new one: what the
        caller has in its own must not live on in ours.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            # In a frame that is closed after its loop.
            work.close()
            raise
        task = asyncio.Task(work, name=f"asyncpg_lease:{name}", context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)

    async def wait(self) -> None:
        """Wait for the tasks that are under way now, not for those that start meanwhile."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))


def require_loop() -> asyncio.AbstractEventLoop:
    """Return the running asyncio loop.

    Raises:
        RuntimeError: none runs here, as under trio.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        msg = "asyncpg_lease needs a running asyncio event loop, as asyncpg does; there is none here (is this trio?)"
        raise RuntimeError(msg) from None


def let_out(error: BaseException) -> None:
    """Raise a Ctrl-C or an exit in the event loop's next turn.

    They hit whichever task just runs. One of ours still has to tell whoever waits for it, and to clean up.
    """
    if isinstance(error, (KeyboardInterrupt, SystemExit)):

        def throw() -> None:
            raise error

        asyncio.get_running_loop().call_soon(throw, context=Context())


def start_timer(delay: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
    """Call back in `delay` seconds, in a context of its own.

    A cancelled timer stays in asyncio's heap until its time has come, unless it is the next one; and what the
    caller's context has in it, a lease or a request, would stay alive with it.
    """
    return asyncio.get_running_loop().call_later(delay, callback, *args, context=Context())


_backend_loaded = False


def load_backend() -> None:
    """Load anyio's backend, which its first cancel scope does: tens of milliseconds, so not in mid-claim."""
    global _backend_loaded  # noqa: PLW0603 - the import happens once a process
    if not _backend_loaded:
        anyio.CancelScope()
        _backend_loaded = True


CANCELLED_LIMIT = 0.5
"""Seconds for which a shielded wait goes on once it is cancelled."""

SHARE = 8
"""One wait takes at most this part of the time that a body has to unwind: there may be many, and its own clean-up."""


async def wait_shielded(waits: Sequence[asyncio.Future[Any]], limit: float) -> asyncio.CancelledError | None:
    """Wait for futures, at most `limit` seconds, and half a second once a cancellation has come.

    Inside a lease that is lost it waits less: the body must be over before the server lets others in.

    anyio cancels a scope's tasks again and again until they leave it; the shield keeps that out. A plain
    task.cancel() comes once each; it is noted, and the wait goes on.

    Returns:
        The first cancellation that came, for the caller to raise when it is done; its request is not
        taken back (`Task.uncancel`), so that whoever made it can still tell.
    """
    until = _until(limit)
    cancelled = await _wait(waits, until)
    if cancelled is not None:
        with anyio.CancelScope(shield=True):
            # Whoever cancels has its reason, and what is waited for goes on by itself.
            while local_time() < (until := min(until, _until(CANCELLED_LIMIT))) and not all(w.done() for w in waits):
                # It ends with each cancellation: the next one may be a loss, and leave less time.
                await _wait(waits, until)
    return cancelled


def _until(limit: float) -> float:
    left = time_to_unwind()
    return local_time() + (limit if left is None else min(limit, left / SHARE))


async def _wait(waits: Sequence[asyncio.Future[Any]], until: float) -> asyncio.CancelledError | None:
    """Wait until all are done, it is time, or a cancellation comes; asyncio.wait, at a third of its cost."""
    pending = [wait for wait in waits if not wait.done()]
    if not pending:
        return None
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: asyncio.Future[Any] | None = None) -> None:
        if not waiter.done() and (_ is None or all(wait.done() for wait in pending)):
            waiter.set_result(None)

    timer = start_timer(max(until - local_time(), 0.0), wake)
    for wait in pending:
        wait.add_done_callback(wake)
    try:
        await waiter
    except asyncio.CancelledError as error:
        return error
    finally:
        timer.cancel()
        for wait in pending:
            wait.remove_done_callback(wake)
    return None


async def wait_turn(*, shielded: bool) -> asyncio.CancelledError | None:
    """Wait one turn of the event loop; return the cancellation that was waiting to be delivered.

    A scope of anyio's that is cancelled delivers its own at every await, unless shielded.
    """
    with anyio.CancelScope(shield=shielded):
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            return error
    return None
