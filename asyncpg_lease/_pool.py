"""Jobs on a pool's connections: done by tasks of their own, each with a bound."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from asyncpg_lease._tasks import TaskOwner, require_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeAlias

    Connection: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]

__all__ = ["RETRIED", "Connections", "Job", "deliver", "fetch_again", "is_passing", "may_have_been_done"]

T = TypeVar("T")

HAND_BACK_LIMIT = 5.0
"""Seconds for the pool's reset query; past that the connection is closed instead."""

LINGERING_TURNS = 2

JOBS_IN_A_ROW = 10
"""Jobs on one connection before others who wait for the pool have their turn."""

SERIALIZATION_TRIES = 20
RETRIED = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)

logger = logging.getLogger("asyncpg_lease")


def deliver(answer: asyncio.Future[T], value: T) -> bool:
    """Give the answer to whoever waits for it; False where nobody does any more."""
    if answer.done():
        return False
    answer.set_result(value)
    return True


def may_have_been_done(error: BaseException) -> bool:
    """Tell whether the server may have carried out the statement that ended with this error.

    Where the server itself answered with an error it has rolled the statement back. Everything else,
    a broken link above all, says nothing of what became of it.
    """
    answered = isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.PostgresConnectionError)
    return not answered


async def fetch_again(connection: Connection, sql: str, *args: object) -> Sequence[asyncpg.Record]:
    """Run a statement, again where somebody else's commit made it fail.

    Under READ COMMITTED none of ours does; a default isolation above it lets every contended one.

    Raises:
        SerializationError: still so after many tries.
        DeadlockDetectedError: the same.
    """
    for attempt in range(SERIALIZATION_TRIES):
        try:
            return await connection.fetch(sql, *args)
        except RETRIED:
            await asyncio.sleep(random.uniform(0.0, 0.002) * attempt)  # noqa: S311 - jitter
    return await connection.fetch(sql, *args)


def is_passing(error: BaseException) -> bool:
    """Tell whether the error may be gone at a later try: a lost link, a restart, a failover, no answer."""
    return isinstance(
        error,
        (
            OSError,  # TimeoutError is one
            asyncpg.PostgresConnectionError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
            asyncpg.InsufficientResourcesError,
            asyncpg.OperatorInterventionError,
            asyncpg.ReadOnlySQLTransactionError,
            asyncpg.LockNotAvailableError,
            *RETRIED,
        ),
    )


class Job:
    """Work for one connection, within bounds.

    The bounds hold whatever the network does: past them the connection is terminated, which ends a
    statement at once. Neither a driver's timeout nor a cancellation does on a frozen link, since both wait
    for the server's part in it.

    Args:
        work: what to do with the connection.
        failed: told the error that the work, or the wait for a connection, ended with.
        limit: seconds for all of it. If it waits still for a connection then, it is not done at all.
        extension: seconds for which work that has begun may go on after the limit.
        on_limit: called where the limit is reached while the work is under way.
    """

    __slots__ = ("connection", "extension", "failed", "limit", "on_limit", "overdue", "timer", "work")

    def __init__(
        self,
        work: Callable[[Connection], Awaitable[None]],
        failed: Callable[[BaseException], None],
        limit: float,
        *,
        extension: float = 0.0,
        on_limit: Callable[[], None] | None = None,
    ) -> None:
        self.work = work
        self.failed = failed
        self.limit = limit
        self.extension = extension
        self.on_limit = on_limit
        self.overdue = False
        self.connection: Connection | None = None
        self.timer: asyncio.TimerHandle | None = None

    async def do(self, connection: Connection) -> None:
        """Do the work; only the cancellation of the task that does it comes out."""
        self.connection = connection
        try:
            await self.work(connection)
        except asyncio.CancelledError as error:
            self.failed(error)
            raise
        except BaseException as error:  # noqa: BLE001 - told, whatever it is
            self.failed(self._overdue_error() if self.overdue else error)
        finally:
            self.connection = None
            self.settle()

    def fail(self, error: BaseException) -> None:
        """End a job that has not begun."""
        self.settle()
        self.failed(error)

    def settle(self) -> None:
        """Take note that no limit is to be kept any more."""
        if self.timer is not None:
            self.timer.cancel()

    def reach_limit(self) -> None:
        """End the work, or let it go on for its extension."""
        if self.on_limit is not None:
            self.on_limit()
        self.timer = asyncio.get_running_loop().call_later(self.extension, self._give_up)

    def _give_up(self) -> None:
        if self.connection is not None:
            self.overdue = True
            self.connection.terminate()

    def _overdue_error(self) -> TimeoutError:
        return TimeoutError(f"the server did not answer within {self.limit:.3f} s; the statement was given up")


class Connections:
    """A pool, and the workers that do jobs on its connections.

    A worker takes a connection when there is a job, and gives it back when there is none. A job that comes
    in the turns of the loop in which another is finished is done on the same connection: between the
    statements of this library nothing needs the pool's reset query, which costs a round trip.
    """

    def __init__(self, pool: Pool, translate: Callable[[BaseException], BaseException]) -> None:
        self.pool = pool
        self.tasks = TaskOwner()
        self._translate = translate
        self._jobs: deque[Job] = deque()
        self._workers = 0
        self._lingering = 0
        self._queueing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Connections {self.pool!r}, {self._workers} workers, {len(self._jobs)} jobs waiting>"

    def check_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop where it is the pool's.

        Raises:
            RuntimeError: no asyncio loop runs here, or the pool belongs to another one.
        """
        loop = require_loop()
        # asyncpg has no public name for it; where it has none at all, its own errors must do.
        if getattr(self.pool, "_loop", loop) is not loop:
            msg = (
                f"the pool {self.pool!r} belongs to another event loop;"
                " create the pool in the loop that uses it, one pool a loop"
            )
            raise RuntimeError(msg)
        return loop

    def submit(self, job: Job) -> None:
        """Have a job done."""
        job.timer = asyncio.get_running_loop().call_later(job.limit, self._reach_limit, job)
        self._jobs.append(job)
        self._staff()

    def withdraw(self, job: Job) -> bool:
        """Take back a job that has not begun; False where it has."""
        try:
            self._jobs.remove(job)
        except ValueError:
            return False
        job.settle()
        self._staff()
        return True

    def fail(self, answer: asyncio.Future[T], error: BaseException) -> None:
        """Give the error, in this library's words where it has any, to whoever waits for the answer."""
        if answer.done():
            return
        if isinstance(error, asyncio.CancelledError):
            # The worker was cancelled from outside, as at the end of asyncio.run: so is who waits for it.
            answer.cancel()
        else:
            answer.set_exception(self._translate(error))

    async def run(self, work: Callable[[Connection], Awaitable[T]], limit: float) -> T:
        """Do work on a connection, within `limit` seconds, and return its answer."""
        answer: asyncio.Future[T] = self.check_loop().create_future()

        async def answering(connection: Connection) -> None:
            deliver(answer, await work(connection))

        job = Job(answering, partial(self.fail, answer), limit)
        self.submit(job)
        try:
            return await answer
        except asyncio.CancelledError:
            self.withdraw(job)
            raise

    async def fetch(self, sql: str, *args: object, limit: float) -> Sequence[asyncpg.Record]:
        """Run one statement, within `limit` seconds, and return its rows."""

        async def work(connection: Connection) -> Sequence[asyncpg.Record]:
            return await connection.fetch(sql, *args)

        return await self.run(work, limit)

    def _reach_limit(self, job: Job) -> None:
        if self.withdraw(job):
            busy = self.pool.get_size() - self.pool.get_idle_size()
            state = f"{busy} of the pool's {self.pool.get_max_size()} connections are in use"
            job.failed(TimeoutError(f"no connection was to be had within {job.limit:.3f} s: {state}"))
        else:
            job.reach_limit()

    def _staff(self) -> None:
        """Have as many workers look for work as there are jobs, and none wait for a connection in vain."""
        ready = len(self._queueing) + self._lingering
        if len(self._jobs) > ready and self._workers < self.pool.get_max_size():
            self._workers += 1
            self._queueing.add(self.tasks.start(self._work(), "worker"))
        elif len(self._jobs) < len(self._queueing):
            self._queueing.pop().cancel()

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of this class runs in a task
        try:
            connection = await self.pool.acquire()
        except BaseException as error:  # noqa: BLE001 - told to the job
            wanted = task in self._queueing
            self._queueing.discard(task)
            self._workers -= 1
            if wanted and self._jobs:
                self._jobs.popleft().fail(error)
            self._staff()
            return
        self._queueing.discard(task)
        try:
            await self._do_jobs(connection)
        finally:
            try:
                await self._hand_back(connection)
            finally:
                self._workers -= 1
                self._staff()

    async def _do_jobs(self, connection: Connection) -> None:
        for _ in range(JOBS_IN_A_ROW):
            await self._linger()
            if not self._jobs or connection.is_closed():
                return
            job = self._jobs.popleft()
            self._staff()
            await job.do(connection)

    async def _linger(self) -> None:
        """Wait for another job, for as many turns as an answer takes to its caller and the next call back."""
        self._lingering += 1
        try:
            for _ in range(LINGERING_TURNS):
                if self._jobs:
                    return
                await asyncio.sleep(0)
        finally:
            self._lingering -= 1

    async def _hand_back(self, connection: Connection) -> None:
        fuse = asyncio.get_running_loop().call_later(HAND_BACK_LIMIT, connection.terminate)
        try:
            await self.pool.release(connection)
        except Exception:
            # The pool has closed the connection. What the jobs answered stands all the same.
            logger.debug("connection not reset, closed instead", exc_info=True)
        finally:
            fuse.cancel()
