"""What tests of leases share: an observer that keeps what it is told, warm connections, bounded polls."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import TypeVar

from asyncpg_lease import Event, LeaseTable, Observer, acquire
from tests.support.inside import delivery_to, pool_of
from tests.support.typing import Pool

E = TypeVar("E", bound=Event)


def settle(observer: Observer, *, within: float = 5) -> None:
    """Wait, in this thread, until an observer has been told of all that has happened.

    Raises:
        TimeoutError: If it has not after `within` seconds.
    """
    delivery, until = delivery_to(observer), time.monotonic() + within
    while delivery.is_behind:
        if time.monotonic() > until:
            message = f"{observer!r} is still being told"
            raise TimeoutError(message)
        time.sleep(0.0002)


class Recorder:
    """An observer that keeps every event in the order it was told; it is told in another thread."""

    def __init__(self) -> None:
        self._told: list[Event] = []

    def __call__(self, event: Event, /) -> None:
        """Keep the event."""
        self._told.append(event)

    @property
    def so_far(self) -> list[Event]:
        """What it was told so far."""
        return self._told

    @property
    def events(self) -> list[Event]:
        """Everything that has happened, and not only what it was told so far."""
        settle(self)
        return self._told

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]


async def until(condition: Callable[[], object], *, within: float = 5) -> None:
    """Wait until a condition is true.

    Raises:
        TimeoutError: If it is not after `within` seconds.
    """
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.005)


async def warm(target: Pool | LeaseTable) -> None:
    """Run claim and release, so that the next ones are one round trip each; the connection is back after it.

    Twice: the first one finds out the table's schema, and the next one's SQL has it in it.
    """
    for _ in range(2):
        held = await acquire(target, "warm-up")
        await held.release()
    pool = pool_of(target) if isinstance(target, LeaseTable) else target
    await until(lambda: pool.get_idle_size() == pool.get_size())


async def spin(turns: int) -> None:
    """Let the event loop take so many turns."""
    for _ in range(turns):
        await asyncio.sleep(0)


def here() -> asyncio.Task[object]:
    """Return the running task."""
    task = asyncio.current_task()
    assert task is not None
    return task


def assert_child_is_fine(pid: int, *, within: float = 20) -> None:
    """Reap a forked child and see that it ended with exit code 0; kill it if it does not end in so many seconds."""
    end = time.monotonic() + within
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            ended = os.waitpid(pid, 0)
            break
        time.sleep(0.005)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
