"""Jobs on a pool's connections, done by workers: tasks of the table's own."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from asyncpg_lease._clock import local_time
from asyncpg_lease._driver import is_usable, terminate
from asyncpg_lease._jobs import Job, deliver
from asyncpg_lease._tasks import TaskOwner, let_out, require_loop, start_timer
from asyncpg_lease._words import describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncpg_lease._driver import Connection, Pool

__all__ = ["Connections"]

T = TypeVar("T")

HAND_BACK_LIMIT = 5.0
"""Seconds for the pool's reset query; past that the connection is closed instead."""

JOBS_IN_A_ROW = 10
"""Jobs on one connection before others who wait for the pool have their turn."""

DISMISSAL_DELAY = 0.25
"""Seconds for which a worker may wait for a connection without a job."""

STUCK_AFTER = 1.0
"""Seconds after which a worker that waits for a connection, though the pool has one to spare, is not counted on."""

LINGERING_TURNS = 2
"""Turns of the loop from an answer to the caller's next call."""

logger = logging.getLogger("asyncpg_lease")


class Connections:
    """A pool, and the workers that do jobs on its connections.

    A worker takes a connection when there is a job, and gives it back when there is none. A job that comes
    in the turns of the loop in which another is finished is done on the same connection: between the
    statements of this library nothing needs the pool's reset query, which costs a round trip.
    """

    def __init__(self, pool: Pool, translate: Callable[[BaseException], BaseException]) -> None:
        self.pool = pool
        self.tasks: TaskOwner = TaskOwner()
        self._translate = translate
        self._jobs: deque[Job] = deque()
        self._workers: set[asyncio.Task[None]] = set()
        self._lingering = 0
        # When each began to wait for a connection, in that order.
        self._queueing: dict[asyncio.Task[None], float] = {}
        self._at_work: set[asyncio.Task[None]] = set()
        self._dismissal: asyncio.TimerHandle | None = None
        self._recount: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Connections {self.pool!r}, {len(self._workers)} workers, {len(self._jobs)} jobs waiting>"

    @property
    def state(self) -> str:
        """Say how busy the pool is."""
        busy = self.pool.get_size() - self.pool.get_idle_size()
        waiting = f", {len(self._queueing)} wait in its acquire()" if self._queueing else ""
        return f"{busy} of the pool's {self.pool.get_max_size()} connections are in use{waiting}"

    def check_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop where it is the pool's.

        Raises:
            RuntimeError: no asyncio loop runs here, the pool belongs to another one, or is not ready.
        """
        loop = require_loop()
        # asyncpg has no public names for these two; where it has none at all, its own errors must do.
        if not getattr(self.pool, "_initialized", True):
            msg = f"the pool {self.pool!r} is not initialized: await asyncpg.create_pool(...)"
            raise RuntimeError(msg)
        if getattr(self.pool, "_loop", loop) is not loop:
            msg = (
                f"the pool {self.pool!r} belongs to another event loop;"
                " create the pool in the loop that uses it, one pool a loop"
            )
            raise RuntimeError(msg)
        return loop

    def submit(self, job: Job, *, urgent: bool = False) -> None:
        """Have a job done, an urgent one before those that wait already."""
        job.timer = start_timer(job.limit, self._reach_limit, job)
        if urgent:
            self._jobs.appendleft(job)
        else:
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
        if not isinstance(error, Exception):
            # Of the worker, not of whoever waits: at the end of asyncio.run that one is cancelled itself.
            error = ConnectionError(f"given up: the task that was at it was ended from outside, by {describe(error)}")
        answer.set_exception(self._translate(error))

    async def run(self, what: str, work: Callable[[Connection], Awaitable[T]], limit: float) -> T:
        """Do work on a connection, within `limit` seconds, and return its answer."""
        answer: asyncio.Future[T] = self.check_loop().create_future()

        async def answering(connection: Connection) -> None:
            deliver(answer, await work(connection))

        job = Job(what, answering, partial(self.fail, answer), limit, stint=limit)
        self.submit(job)
        try:
            return await answer
        except asyncio.CancelledError:
            self.withdraw(job)
            raise
        except Exception as error:
            error.add_note(f"in {what}")
            raise

    def _reach_limit(self, job: Job) -> None:
        if self.withdraw(job):
            job.failed(TimeoutError(f"no connection for {job.what} within {job.limit:.3f} s: {self.state}"))
        else:
            job.reach_limit()

    def finishing(self) -> list[asyncio.Task[None]]:
        """Return the workers without a job, for whoever wants to see them end; those in vain are dismissed."""
        self._dismiss()
        return [task for task in self._workers if task not in self._queueing and task not in self._at_work]

    def _staff(self) -> None:
        """Have as many workers look for work as there are jobs, and none wait for a connection in vain."""
        if not self._jobs and self._recount is not None:
            self._recount.cancel()
            self._recount = None
        elif self._jobs and self._recount is None:
            self._recount = start_timer(STUCK_AFTER, self._count_again)
        ready = len(self._queueing) - self._stuck() + self._lingering
        if len(self._jobs) > ready and len(self._workers) < self.pool.get_max_size():
            worker = self.tasks.start(self._work(), "worker")
            self._workers.add(worker)
            self._queueing[worker] = local_time()
            worker.add_done_callback(self._retire)
        elif len(self._jobs) < len(self._queueing) and self._dismissal is None:
            # Not at once: it may be about to get a connection, or in the middle of making one.
            self._dismissal = start_timer(DISMISSAL_DELAY, self._dismiss)

    def _stuck(self) -> int:
        """Count the workers that wait for a connection which the pool could have given them.

        A hook of the pool's may not come back, on a dead link above all, and asyncpg bounds none.
        """
        if not self._queueing or not self.pool.get_idle_size():
            return 0
        since = local_time() - STUCK_AFTER
        return sum(began <= since for began in self._queueing.values())

    def _count_again(self) -> None:
        self._recount = None
        self._staff()

    def _dismiss(self) -> None:
        if self._dismissal is not None:
            self._dismissal.cancel()
            self._dismissal = None
        # Those that came last: the first have the best place in the pool's queue.
        for worker in tuple(self._queueing)[len(self._jobs) :]:
            del self._queueing[worker]
            worker.cancel()

    def _retire(self, worker: asyncio.Task[None]) -> None:
        # A callback, since a worker that is cancelled before its first step runs no line of its own.
        self._workers.discard(worker)
        self._queueing.pop(worker, None)
        self._staff()

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine of this class runs in a task
        try:
            connection = await self._acquire(task)
        except GeneratorExit:
            # The loop was closed: there is nobody to tell.
            raise
        except BaseException as error:  # noqa: BLE001 - told to the job
            let_out(error)
            # In a frame that is closed after its loop asyncpg's clean-up raises an error of its own over GeneratorExit.
            if task in self._queueing and self._jobs and not task.get_loop().is_closed():
                self._jobs.popleft().fail(error)
            return
        self._queueing.pop(task, None)
        try:
            await self._do_jobs(connection, task)
        except GeneratorExit:
            # The loop was closed: there is nothing to await on any more.
            raise
        except BaseException:
            await self._hand_back(connection)
            raise
        await self._hand_back(connection)

    async def _acquire(self, task: asyncio.Task[None]) -> Connection:
        try:
            return await self.pool.acquire()
        except asyncio.CancelledError:
            if task not in self._queueing or not self._jobs:
                raise
            # A loop that is being closed cancels every task, once; what is to be released must be all the same.
            for job in tuple(self._jobs):
                job.hurry(partial(self._reach_limit, job))
            return await self.pool.acquire()

    async def _do_jobs(self, connection: Connection, task: asyncio.Task[None]) -> None:
        for _ in range(JOBS_IN_A_ROW):
            await self._linger()
            if not self._jobs or not is_usable(connection):
                return
            job = self._jobs.popleft()
            self._staff()
            if connection.is_in_transaction():
                msg = (
                    f"the pool {self.pool!r} gives out connections with an open transaction, in which nothing lasts:"
                    " look at its hooks, init=, setup= and reset="
                )
                job.fail(RuntimeError(msg))
                return
            self._at_work.add(task)
            try:
                await job.do(connection)
            finally:
                self._at_work.discard(task)

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
        if not is_usable(connection):
            # The server may have closed it before the pool gave it out. Up to 0.31 asyncpg's release() passes over one
            # that is closed, and its place in the pool would be lost for good.
            terminate(connection)
            return
        fuse = start_timer(HAND_BACK_LIMIT, terminate, connection)
        try:
            await self.pool.release(connection, timeout=HAND_BACK_LIMIT)
        except Exception:
            # The pool has closed the connection. What the jobs answered stands all the same.
            logger.debug("connection not reset, closed instead", exc_info=True)
        finally:
            fuse.cancel()
