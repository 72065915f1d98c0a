"""Work on a pool's connections: in tasks of their own, with a bound, and back in the pool after each."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, TypeVar

import asyncpg

from asyncpg_lease._clock import local_time
from asyncpg_lease._tasks import TaskOwner, require_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType
    from typing import TypeAlias

    Connection: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]

__all__ = ["RETRIED", "Borrowed", "Connections", "deliver", "fetch_again", "is_passing", "may_have_been_done"]

T = TypeVar("T")

HAND_BACK_LIMIT = 5.0
"""Seconds for the pool's reset query; past that the connection is closed instead."""

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


class Borrowed:
    """A pool's connection for a bounded time, used as ``async with``.

    The bound holds whatever the network does: past it the connection is terminated, which ends a
    statement at once. Neither a driver's timeout nor a cancellation does on a frozen link, since both wait
    for the server's part in it.
    """

    __slots__ = ("_connection", "_fuse", "_limit", "_pool", "_statement_limit", "overdue")

    def __init__(self, pool: Pool, limit: float, statement_limit: float | None) -> None:
        self._pool = pool
        self._limit = limit
        self._statement_limit = statement_limit
        self._connection: Connection | None = None
        self._fuse: asyncio.TimerHandle | None = None
        self.overdue = False

    async def __aenter__(self) -> Connection:
        """Take a connection from the pool.

        Raises:
            TimeoutError: none was to be had within the limit.
        """
        until = local_time() + self._limit
        try:
            self._connection = connection = await self._pool.acquire(timeout=self._limit)
        except TimeoutError as error:
            msg = f"no connection was to be had within {self._limit:.3f} s: {_pool_state(self._pool)}"
            raise TimeoutError(msg) from error
        left = max(until - local_time(), 0.0) if self._statement_limit is None else self._statement_limit
        self._fuse = asyncio.get_running_loop().call_later(left, self._blow, connection)
        return connection

    def _blow(self, connection: Connection) -> None:
        self.overdue = True
        connection.terminate()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the connection back; a statement that was given up comes out as a TimeoutError."""
        assert self._fuse is not None  # noqa: S101 - entered
        assert self._connection is not None  # noqa: S101 - entered
        self._fuse.cancel()
        try:
            await self._pool.release(self._connection, timeout=HAND_BACK_LIMIT)
        except Exception:
            # The pool has closed the connection. What the statement answered stands all the same.
            logger.debug("connection not reset, closed instead", exc_info=True)
        if self.overdue and isinstance(error, Exception):
            msg = "the server did not answer in time; the statement was given up and its connection terminated"
            raise TimeoutError(msg) from error


def _pool_state(pool: Pool) -> str:
    busy = pool.get_size() - pool.get_idle_size()
    return f"{busy} of the pool's {pool.get_max_size()} connections are in use"


class Connections:
    """A pool, and the owner of the tasks that use it."""

    def __init__(self, pool: Pool, translate: Callable[[BaseException], BaseException]) -> None:
        self.pool = pool
        self._translate = translate
        self.tasks = TaskOwner()

    def __repr__(self) -> str:
        """Name the pool."""
        return f"<Connections {self.pool!r}>"

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

    def borrow(self, limit: float, statement_limit: float | None = None) -> Borrowed:
        """Borrow a connection for at most `limit` seconds, the wait for it included.

        With a `statement_limit` the wait alone is bound by `limit`, and its use by that many seconds more.
        """
        return Borrowed(self.pool, limit, statement_limit)

    def fail(self, answer: asyncio.Future[T], error: BaseException) -> None:
        """Give the error, in this library's words where it has any, to whoever waits for the answer."""
        if answer.done():
            return
        if isinstance(error, asyncio.CancelledError):
            # The task was cancelled from outside, as at the end of asyncio.run: so is who waits for it.
            answer.cancel()
        else:
            answer.set_exception(self._translate(error))

    async def run(self, work: Callable[[Connection], Awaitable[T]], limit: float, name: str) -> T:
        """Run work on a connection and return its answer at once; the connection goes back meanwhile."""
        answer: asyncio.Future[T] = self.check_loop().create_future()
        self.tasks.start(self._run(work, limit, answer), name)
        return await answer

    async def _run(self, work: Callable[[Connection], Awaitable[T]], limit: float, answer: asyncio.Future[T]) -> None:
        try:
            async with self.borrow(limit) as connection:
                try:
                    deliver(answer, await work(connection))
                except asyncpg.PostgresError as error:
                    self.fail(answer, error)
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self.fail(answer, error)

    async def fetch(self, sql: str, *args: object, limit: float, name: str) -> Sequence[asyncpg.Record]:
        """Run one statement and return its rows."""

        async def work(connection: Connection) -> Sequence[asyncpg.Record]:
            return await connection.fetch(sql, *args)

        return await self.run(work, limit, name)
