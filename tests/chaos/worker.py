"""A process that acquires keys, works and writes, and says all that the library tells it.

Its parent makes the other faults. Every line that it emits has the time of the host's monotonic clock.
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

from asyncpg_lease import Event, Lease, LeaseError, LeaseLostError, LeaseTable, LeaseUnavailableError, lease
from asyncpg_lease.events import (
    Acquired,
    Late,
    Lost,
    Released,
    ReleaseFailed,
    Renewed,
    RenewFailed,
    Revoked,
    WaitingFailed,
)
from tests.chaos.rules import LABEL
from tests.chaos.selfharm import Selfharm
from tests.support.job import STALE
from tests.support.processes import emit
from tests.support.typing import Pool

TASKS = 4
CONNECTIONS = 4
TTLS = (1.0, 2.0)
TICK = 0.02
STALL = 0.03
"""A tick that comes so late is worth a line."""

ALIVE = 0.25
"""Seconds from one sign of life to the next."""

SLOW = 0.1
"""A claim, a renewal, or a write, that took so long was slow."""

EXPECTED = (LeaseError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""What may come out of a call while the server, the network and the pool have faults."""

READ_ONLY = "the transaction is read-only"
"""In the RuntimeError of a guard on a server that has become so."""

# asyncpg leaves the first behind where a connection is given up while it asks for TLS, see conftest; and the second
# where whoever gives a connection back is cancelled, and the link is then lost: it shields that task, and forgets it.
ABANDONED = ("unexpected connection_lost() call", "coro=<PoolConnectionHolder.release()")

# The number is taken when the page's row is locked, and that stays so until the write is committed.
WRITE = """
WITH accepted AS (
    INSERT INTO page VALUES ($1, $2)
    ON CONFLICT (key) DO UPDATE SET last_fence = EXCLUDED.last_fence RETURNING key, last_fence
)
INSERT INTO written (key, fence, guarded) SELECT key, last_fence, $3 FROM accepted
"""


@dataclass(slots=True, eq=False)
class Turn:
    """One use of a lease: what is done, and how far it has come.

    Attributes:
        phase: "acquire", "body", "exit", or "after".
        cancelled: In which phase it was cancelled on purpose; empty: it was not.
        task: Whose it is.
    """

    phase: str = ""
    cancelled: str = ""
    task: asyncio.Task[None] | None = None


class Worker:
    """What the tasks of one process share."""

    def __init__(
        self, table: LeaseTable, pool: Pool, harm: Selfharm, keys: list[str], *, number: int, seed: str
    ) -> None:
        self._table = table
        self._pool = pool
        self._harm = harm
        self._keys = keys
        self._number = number
        self._random = random.Random(seed)  # noqa: S311 - for tests
        self._numbers = itertools.count()
        self._turns: set[Turn] = set()
        self._stopping = False

    async def run(self) -> None:
        """Take one turn after the other."""
        while not self._stopping:
            turn = Turn()
            turn.task = asyncio.create_task(self._take(turn))
            self._turns.add(turn)
            await asyncio.wait([turn.task])
            self._turns.discard(turn)
            self._conclude(turn, turn.task)
            await asyncio.sleep(self._random.uniform(0, 0.02))

    def stop(self) -> None:
        """Cancel the turns that are under way, as a service does that ends, and begin no other ones."""
        self._stopping = True
        for turn in self._turns:
            if turn.task is not None and not turn.task.done():
                turn.cancelled = "stop"
                turn.task.cancel()

    def _conclude(self, turn: Turn, task: asyncio.Task[None]) -> None:
        """Say what came out of a turn, where it is worth it."""
        if task.cancelled():
            if turn.cancelled:
                emit(notice=f"Cancelled {turn.cancelled}")
            else:
                emit(wrong="a cancellation that nobody asked for")
            return
        error = task.exception()
        if error is None and turn.cancelled:
            emit(wrong=f"a cancellation in {turn.cancelled} was swallowed")
        elif error is not None and not isinstance(error, EXPECTED) and READ_ONLY not in str(error):
            emit(wrong=f"an error of no known kind in {turn.phase}", detail=repr(error))
        elif error is not None and not isinstance(error, (LeaseUnavailableError, LeaseLostError)):
            emit(notice="error", detail=f"{turn.phase}: {error!r}"[:200])

    async def _take(self, turn: Turn) -> None:
        choose = self._random
        key, ttl = choose.choice(self._keys), choose.choice(TTLS)
        lasts = choose.uniform(0, 0.3) if choose.random() < 0.6 else choose.uniform(0.3, 2.5)
        wait = choose.choice([0, 0.5, 2 * ttl])
        context = lease(self._table, key, ttl=ttl, wait=wait, label=f"{LABEL}{self._number}")
        self._harm.enter(turn, "acquire")
        asked = time.monotonic()
        async with context as held:
            self._harm.enter(turn, "body")
            took = time.monotonic() - asked
            if wait == 0 and took >= SLOW:
                emit(notice="Slow claim", key=key, holder=held.holder, detail=f"{took:.3f} s")
            try:
                async with self._noted(held, ttl):
                    await self._work(held, lasts)
            finally:
                self._harm.enter(turn, "exit")
        self._harm.enter(turn, "after")
        if choose.random() < 0.2:
            await self._write_late(held)

    @asynccontextmanager
    async def _noted(self, held: Lease, ttl: float) -> AsyncIterator[None]:
        """Report a body's first line, when it is told to stop, and its last line."""
        number, outcome = next(self._numbers), "failed"
        emit(began=number, key=held.key, holder=held.holder, fence=held.fence, ttl=ttl, grace=ttl / 10)
        self._harm.held.append(held)
        try:
            yield
            outcome = "done"
        except asyncio.CancelledError:
            emit(told=number)
            outcome = "cancelled"
            raise
        finally:
            self._harm.held.remove(held)
            emit(ended=number, outcome=outcome if held.lost is None else f"lost: {held.lost.reason}")

    async def _work(self, held: Lease, lasts: float) -> None:
        """Write in guarded transactions, and think for a while in them and between them."""
        until = time.monotonic() + lasts
        while time.monotonic() < until:
            await self._write(held)
            await asyncio.sleep(self._random.uniform(0, 0.3))

    async def _write(self, held: Lease) -> None:
        pause = self._random.choice([0, 0.05, 0.3])
        async with self._pool.acquire() as connection:
            try:
                with _timed(held, connection.get_server_pid(), pause) as doing:
                    async with held.transaction(
                        connection, idle_timeout=self._random.choice(["ttl", "ttl", "ttl", None])
                    ):
                        await connection.execute(WRITE, held.key, held.fence, True)
                        await asyncio.sleep(pause)
                        await connection.execute(WRITE, held.key, held.fence, True)
                        doing.append("at its end: ")
            except asyncio.CancelledError:
                # A body that has been told to stop does not wait for a server that does not answer.
                with suppress(asyncpg.InterfaceError):
                    connection.terminate()
                raise
            except asyncpg.PostgresError as error:
                if error.sqlstate == STALE:
                    emit(wrong="a guarded write was refused by its fence", key=held.key, detail=str(error))
                raise

    async def _write_late(self, held: Lease) -> None:
        """Write once more after the block, as a paused process would: a successor may have written."""
        await asyncio.sleep(self._random.uniform(0, 0.2))
        try:
            await self._pool.execute(WRITE, held.key, held.fence, False)
        except asyncpg.PostgresError as error:
            if error.sqlstate != STALE:
                raise
            emit(refused="late", key=held.key)


@contextmanager
def _timed(held: Lease, session: int, pause: float) -> Iterator[list[str]]:
    """Report a guarded write that the server or the network held up, or broke; yield where to say how far it is."""
    doing, began = [f"session {session} "], time.monotonic()
    try:
        yield doing
    except EXPECTED as error:
        emit(notice="Write failed", key=held.key, holder=held.holder, detail=f"{''.join(doing)}{error!r}"[:300])
        raise
    finally:
        took = time.monotonic() - began - pause
        if took >= SLOW:
            emit(notice="Slow write", key=held.key, holder=held.holder, detail=f"{took:.3f} s, session {session}")


def tell(event: Event) -> None:
    """Report what the library tells, as far as it says something of a fault."""
    name, detail = type(event).__name__, ""
    match event:
        case RenewFailed() | WaitingFailed() | ReleaseFailed():
            detail = event.error[:200]
        case Late():
            detail = f"blocked for {event.blocked:.3f} s"
        case Lost():
            name, detail = f"Lost {event.reason}", f"taken by {event.taken_by}, {event.error}"[:200]
        case Acquired(how="taken_over"):
            name, detail = "Taken over", str(event.before)
        case Renewed() if event.took >= SLOW:
            name, detail = "Slow", f"{event.took:.3f} s"
        case Released() | Revoked():
            pass
        case _:
            return
    emit(notice=name, key=event.key, holder=event.holder, detail=detail)


async def tick() -> None:
    """Look at the clock again and again; say for how long this process did nothing, and that it is alive."""
    before = said = time.monotonic()
    while True:
        await asyncio.sleep(TICK)
        now = time.monotonic()
        if now - before >= STALL:
            emit(stall=now - before)
            said = now
        elif now - said >= ALIVE:
            emit(stall=0)
            said = now
        before = now


class _Complaints(logging.Handler):
    """Reports what asyncio complains of: an error that nobody has heard of, a task that was forgotten."""

    def emit(self, record: logging.LogRecord) -> None:
        """Report one."""
        message = self.format(record)
        if not any(known in message for known in ABANDONED):
            emit(wrong="asyncio complains", detail=message[:2000])


async def work(dsn: str, keys: list[str], number: int, seed: str) -> None:
    """Acquire, work and write in several tasks, until the parent says stop or kills this process."""
    # Every loss would be told; they are the subject.
    logging.getLogger("asyncpg_lease").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addHandler(_Complaints(logging.ERROR))
    ticking = asyncio.create_task(tick())
    # No connection is made before it is needed: the server may be down.
    pool = asyncpg.create_pool(
        dsn, min_size=0, max_size=CONNECTIONS, server_settings={"application_name": f"chaos-{number}"}
    )
    async with pool:
        table = LeaseTable(pool, poll=0.05, observer=tell)
        harm = Selfharm(pool)
        worker = Worker(table, pool, harm, keys, number=number, seed=seed)
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(worker.run())
            emit(ready=True)
            await harm.obey()
            worker.stop()
        await table.aclose()
    ticking.cancel()
