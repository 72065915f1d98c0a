"""What a process at work writes down: one line of JSON for each event of `history`, with the host's monotonic clock.

`Worker` takes one turn after the other: it acquires a key, works, and writes. What a turn is a subclass says.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import asyncpg

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, LeaseUnavailableError
from asyncpg_lease.events import Observer
from tests.history.judge import LABEL
from tests.support.job import STALE
from tests.support.leftovers import library_tasks
from tests.support.processes import emit, receive
from tests.support.typing import Pool

TICK = 0.02
STALL = 0.03
"""A tick that comes so late is worth a line."""

ALIVE = 0.25
"""Seconds from one sign of life to the next."""

AFTERWARDS = 12.0
"""Seconds in which the library's tasks have to end when their table is closed; see `leftovers`."""

# The number is taken when the page's row is locked, and that stays so until the write is committed.
WRITE = """
WITH accepted AS (
    INSERT INTO page VALUES ($1, $2)
    ON CONFLICT (key) DO UPDATE SET last_fence = EXCLUDED.last_fence RETURNING key, last_fence
)
INSERT INTO written (key, fence, guarded) SELECT key, last_fence, $3 FROM accepted RETURNING number
"""

# asyncpg leaves the first behind if a connection is given up while it asks for TLS, see conftest; and the second if
# whoever gives a connection back is cancelled, and the link is then lost: it shields that task, and forgets it.
ABANDONED = ("unexpected connection_lost() call", "coro=<PoolConnectionHolder.release()")


@dataclass(slots=True, eq=False)
class Turn:
    """One use of a lease, and how far it has come.

    Attributes:
        number: Its number in this process.
        phase: "acquire", "body", "exit", or "after".
        cancelled: Whether it was cancelled on purpose.
        task: Whose it is.
    """

    number: int
    phase: str = ""
    cancelled: bool = False
    task: asyncio.Task[None] | None = None

    def cancel(self, why: str) -> None:
        """Cancel it on purpose, and write that down."""
        assert self.task is not None
        self.cancelled = True
        self.task.cancel()
        emit(what="asked", turn=self.number, phase=why)


class Worker:
    """What the tasks of one process share.

    Attributes:
        expected: What may come out of a turn beside LeaseUnavailableError and LeaseLostError.
        pause: Seconds from one turn to the next, at most.
        table: The lease table.
        pool: What its tasks write by.
        label: Of its leases.
        random: What its choices are made by.
    """

    expected: tuple[type[BaseException], ...] = ()
    pause = 0.02

    def __init__(self, table: LeaseTable, pool: Pool, number: int, seed: object) -> None:
        self.table = table
        self.pool = pool
        self.label = f"{LABEL}{number}"
        self.random = random.Random(f"{seed} {number}")  # noqa: S311 - for tests
        self.stopping = False
        self._numbers = itertools.count(1)
        self._turns: set[Turn] = set()

    async def take(self, turn: Turn) -> None:
        """Take one turn."""
        raise NotImplementedError

    async def run(self) -> None:
        """Take one turn after the other."""
        while not self.stopping:
            turn = Turn(next(self._numbers))
            turn.task = asyncio.create_task(self.take(turn))
            self._turns.add(turn)
            await asyncio.wait([turn.task])
            self._turns.discard(turn)
            self._conclude(turn, turn.task)
            await asyncio.sleep(self.random.uniform(0, self.pause))

    def cancel_turns(self) -> None:
        """Cancel the turns that are under way, as a service does that ends, and begin no other ones."""
        self.stopping = True
        for turn in self._turns:
            if turn.task is not None and not turn.task.done():
                turn.cancel("stop")

    def _conclude(self, turn: Turn, task: asyncio.Task[None]) -> None:
        """Write down what came out of a turn."""
        error = None if task.cancelled() else task.exception()
        outcome = "cancelled" if task.cancelled() else "done" if error is None else "failed"
        emit(what="left", turn=turn.number, outcome=outcome)
        if error is None or isinstance(error, (LeaseUnavailableError, LeaseLostError)):
            return
        if self.is_expected(error):
            emit(what="notice", name="error", detail=f"{turn.phase}: {error!r}"[:200])
        else:
            emit(what="wrong", name=f"an error of no known kind in {turn.phase}", detail=repr(error))

    def is_expected(self, error: BaseException) -> bool:
        """Tell whether a turn may end so."""
        return isinstance(error, self.expected)

    @asynccontextmanager
    async def body(self, held: Lease, ttl: float) -> AsyncIterator[None]:
        """Write down a body's first line, when it is told to stop, and its last line."""
        number, outcome = next(self._numbers), "failed"
        fields = {"key": held.key, "holder": held.holder, "fence": held.fence}
        emit(what="began", body=number, ttl=ttl, grace=ttl / 10, **fields)
        try:
            yield
            outcome = "done"
        except asyncio.CancelledError:
            emit(what="told", body=number)
            outcome = "cancelled"
            raise
        finally:
            outcome = outcome if held.stop_reason is None else f"lost: {held.stop_reason}"
            emit(what="ended", body=number, outcome=outcome)

    async def write(self, held: Lease, timeout: float | None = None) -> int:  # noqa: ASYNC109 - the pool's own
        """Write in a guarded transaction, and return the write's number; wait so long for a connection."""
        async with self.pool.acquire(timeout=timeout) as connection:
            with noting_refusals(held):
                async with held.transaction(connection):
                    number = await connection.fetchval(WRITE, held.key, held.fence, True)
        return int(number)

    async def write_late(self, held: Lease, within: float) -> None:
        """Write once more after the block, as a paused process would: a successor may have written."""
        await asyncio.sleep(self.random.uniform(0, within))
        try:
            await self.pool.execute(WRITE, held.key, held.fence, False)
        except asyncpg.PostgresError as error:
            if error.sqlstate != STALE:
                raise
            emit(what="refused", name="late", key=held.key)


@contextmanager
def noting_refusals(held: Lease) -> Iterator[None]:
    """Write down that a guarded write was refused by its fence: then the guard has let a stale holder pass."""
    try:
        yield
    except asyncpg.PostgresError as error:
        if error.sqlstate == STALE:
            emit(what="wrong", name="a guarded write was refused by its fence", key=held.key, detail=str(error))
        raise


async def working(worker: Worker, tasks: int) -> None:
    """Have a worker take turns in so many tasks, until the parent says stop; a turn that has begun is finished."""
    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(worker.run())
        emit(what="ready")
        await receive()
        worker.stopping = True


@asynccontextmanager
async def recording(
    dsn: str, number: int, *, connections: int, observer: Observer | None = None
) -> AsyncIterator[tuple[LeaseTable, Pool]]:
    """Yield a lease table and its pool, and write down meanwhile what the process meets.

    Args:
        dsn: The database.
        number: The process's.
        connections: How many the pool may have.
        observer: Is told what the library tells.
    """
    # Every loss would be logged; they are the subject.
    logging.getLogger("asyncpg_lease").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addHandler(_Complaints(logging.ERROR))
    ticking = asyncio.create_task(tick())
    # No connection is made before it is needed: the server may be down.
    settings = {"application_name": f"{LABEL}{number}"}
    async with asyncpg.create_pool(dsn, min_size=0, max_size=connections, server_settings=settings) as pool:
        table = LeaseTable(pool, poll=0.05, observer=observer)
        yield table, pool
        await table.aclose()
        with suppress(TimeoutError):
            async with asyncio.timeout(AFTERWARDS):
                while library_tasks():
                    await asyncio.sleep(TICK)
        for task in library_tasks():
            emit(what="behind", name=task.get_name())
    ticking.cancel()


async def tick() -> None:
    """Look at the clock again and again; write down for how long this process did nothing, and that it is alive."""
    before = said = time.monotonic()
    while True:
        await asyncio.sleep(TICK)
        now = time.monotonic()
        if now - before >= STALL:
            emit(what="stall", length=now - before)
            said = now
        elif now - said >= ALIVE:
            emit(what="alive")
            said = now
        before = now


class _Complaints(logging.Handler):
    """Writes down what asyncio complains of: an error that nobody has heard of, a task that was forgotten."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one down."""
        message = self.format(record)
        if not any(known in message for known in ABANDONED):
            emit(what="wrong", name="asyncio complains", detail=message[:2000])
