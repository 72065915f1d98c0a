"""One job for a connection, and its bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from asyncpg_lease._driver import terminate
from asyncpg_lease._tasks import let_out, start_timer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg_lease._driver import Connection

__all__ = ["MIN_STINT", "SHUTDOWN_LIMIT", "Job", "deliver", "stint_for"]

T = TypeVar("T")

MIN_STINT = 3.0
MAX_STINT = 15.0
"""Seconds, at least and at most, for one try of what may be tried again: its connection's link may be dead."""

SHUTDOWN_LIMIT = 2.0
"""Seconds for what is still to be done once the event loop is being closed."""


def deliver(answer: asyncio.Future[T], value: T) -> bool:
    """Give the answer to whoever waits for it; False where nobody does any more."""
    if answer.done():
        return False
    answer.set_result(value)
    return True


def stint_for(ttl: float) -> float:
    """Return for how many seconds a statement on a lease of this ttl may go unanswered: a tenth, 3 to 15."""
    return min(max(ttl / 10, MIN_STINT), MAX_STINT)


class Job:
    """Work for one connection, within bounds.

    The bounds hold whatever the network does: past them the connection is terminated, which ends a
    statement at once. Neither a driver's timeout nor a cancellation does on a frozen link, since both wait
    for the server's part in it.

    Args:
        what: what it is, for messages.
        work: what to do with the connection.
        failed: told the error that the work, or the wait for a connection, ended with.
        limit: seconds for all of it. If it waits still for a connection then, it is not done at all.
        stint: seconds for the work once it has begun, so that a dead link does not hold it up for the whole limit.
        on_limit: called where the limit is reached while the work is under way, which then goes on.
    """

    __slots__ = (
        "connection",
        "failed",
        "fuse",
        "hurried",
        "limit",
        "on_limit",
        "overdue",
        "stint",
        "timer",
        "what",
        "work",
    )

    def __init__(  # noqa: PLR0913 - each is a bound or a callback of its own
        self,
        what: str,
        work: Callable[[Connection], Awaitable[None]],
        failed: Callable[[BaseException], None],
        limit: float,
        *,
        stint: float,
        on_limit: Callable[[], None] | None = None,
    ) -> None:
        self.what: str = what
        self.work: Callable[[Connection], Awaitable[None]] = work
        self.failed: Callable[[BaseException], None] = failed
        self.limit: float = limit
        self.stint: float = stint
        self.on_limit: Callable[[], None] | None = on_limit
        self.overdue: TimeoutError | None = None
        self.hurried: bool = False
        self.connection: Connection | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.fuse: asyncio.TimerHandle | None = None

    async def do(self, connection: Connection) -> None:
        """Do the work; only the cancellation of the task that does it comes out."""
        self.connection = connection
        self.bound(self.stint)
        try:
            await self.work(connection)
        except asyncio.CancelledError as error:
            self.failed(error)
            raise
        except GeneratorExit:
            # The loop was closed, and the frame is: nobody is left to be told.
            raise
        except BaseException as error:  # noqa: BLE001 - told, whatever it is
            let_out(error)
            self.failed(self.overdue or error)
        finally:
            self.connection = None
            self.settle()

    def fail(self, error: BaseException) -> None:
        """End a job that has not begun."""
        self.settle()
        self.failed(error)

    def settle(self) -> None:
        """Take note that no limit is to be kept any more."""
        for handle in (self.timer, self.fuse):
            if handle is not None:
                handle.cancel()

    def bound(self, stint: float) -> None:
        """Bound what is left of the work, which is under way."""
        if self.fuse is not None:
            self.fuse.cancel()
        self.stint = stint
        self.fuse = start_timer(stint, self._give_up, stint)

    def hurry(self, on_limit: Callable[[], None]) -> None:
        """Wait no longer than the closing of a loop may take."""
        self.settle()
        self.hurried = True
        self.limit = min(self.limit, SHUTDOWN_LIMIT)
        self.timer = start_timer(self.limit, on_limit)

    def reach_limit(self) -> None:
        """End the work, or let it go on where somebody else is to know of it."""
        if self.on_limit is None:
            self._give_up(self.limit)
        else:
            self.on_limit()

    def _give_up(self, after: float) -> None:
        if self.connection is not None:
            msg = f"no answer to {self.what} within {after:.3f} s; the statement was given up"
            self.overdue = TimeoutError(msg)
            terminate(self.connection)
