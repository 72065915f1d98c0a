"""The body of a block: the task that runs it, and the cancellations that a lease may ask of it."""

from __future__ import annotations

import asyncio
from weakref import ref

from asyncpg_lease._tasks import wait_turn

__all__ = ["Body"]


class Body:
    """Cancels the task that entered a block, and takes exactly those requests back.

    The edge semantics of asyncio.timeout: each reason to stop cancels the body once, so its clean-up can await, and
    what others asked of the task meanwhile stays asked.
    """

    __slots__ = ("_asked", "_before", "_ended", "_said", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            msg = "a lease must be entered inside a task: only a task can be cancelled when the lease is lost"
            raise RuntimeError(msg)
        # Weakly: the timer of all leases knows the body, and must not keep a task that is over, nor its context.
        self._task = ref(task)
        self._before = task.cancelling()
        self._asked = 0
        self._said: set[str] = set()
        self._ended = False

    def __repr__(self) -> str:
        task = self._task()
        return "<Body of a task that is gone>" if task is None else f"<Body in {task.get_name()!r}>"

    def cancel(self, message: str) -> None:
        """Cancel the body, unless it has ended."""
        task = self._task()
        if not self._ended and task is not None and task.cancel(message):
            self._asked += 1
            self._said.add(message)

    def has_asked(self, error: asyncio.CancelledError) -> bool:
        """Tell whether it was a request of this one's that came as this error."""
        return bool(error.args) and error.args[0] in self._said

    def end(self) -> None:
        """Take note that the body has ended: nothing is to be cancelled any more."""
        self._ended = True

    async def settle(self, *, shielded: bool) -> tuple[bool, asyncio.CancelledError | None]:
        """Take the requests back, and with them a cancellation that the body never met.

        Shielded, where a scope of anyio's has nothing to deliver: another error than a cancellation comes out.

        Returns:
            Whether others ask for this task's cancellation as well, and a cancellation that came just now.
            Where the block is left from another task than the body's, whatever cancelled that one was
            not this library.
        """
        pending: asyncio.CancelledError | None = None
        task = asyncio.current_task()
        own = self._task() is task
        if own and self._asked:
            # A request that the body never met would come out of the next await after the block. A body that ends
            # cancelled need not have met it: it may have awaited what somebody else had cancelled.
            pending = await wait_turn(shielded=shielded)
        self.abandon()
        return task is None or not own or task.cancelling() > self._before, pending

    def abandon(self) -> None:
        """Take the requests back where nothing may be awaited."""
        task = self._task()
        while self._asked and task is not None:
            task.uncancel()
            self._asked -= 1
