"""The process that is stopped: it holds many tenures at once, each of which writes by its own path.

Each tenure goes on to its point and waits there. When all are there, and the parent says so, the process stops
itself: a signal from outside would come anywhere, this one comes between two statements. After it each tenure's
next statement is the next thing that the process does, as if it had not been away.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
from sqlalchemy import pool as engine_pools
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from asyncpg_lease import Lease, LeaseLostError, LeaseSnapshotError, lease
from asyncpg_lease.contrib import sqlalchemy
from tests.fencing.paused_tenures import AT_ONCE, GUARDED, PARTS, Tenure, writing
from tests.support.processes import emit, receive
from tests.support.typing import Pool

if TYPE_CHECKING:
    from tests.support.typing import PooledConnection

IDLE_LIMIT = 500
"""Milliseconds after which the server ends a paused transaction, where it is to do so."""

NO_LIMIT = 60_000

STUCK = 5.0
"""Seconds after the stop for a transaction that the library does not end itself."""

Send = Callable[[int | None], Awaitable[int]]
"""Write a part, after waiting for a lock where one is named; return how many rows that made."""

CHECK = (
    "SELECT FROM lease WHERE key = $1 AND holder = $2 AND fence = $3"
    " AND released_at IS NULL AND expires_at > clock_timestamp()"
)


class StaleError(Exception):
    """The job has found out that its fence, or its tenure, is over."""


class Gate:
    """Where all tenures of a batch meet before the process is stopped.

    Those that the server is to end while it is stopped come last, or it could end them while they wait.
    """

    def __init__(self, tenures: Sequence[Tenure]) -> None:
        self._missing = len(tenures)
        self._last = sum(tenure.ends == "server" for tenure in tenures)
        self.last_may_come = asyncio.Event()
        self.full = asyncio.Event()
        self.opened = asyncio.Event()
        self._look()

    def arrive(self) -> None:
        """Count one that is there, or that will never be."""
        self._missing -= 1
        self._look()

    def _look(self) -> None:
        if self._missing <= self._last:
            self.last_may_come.set()
        if self._missing == 0:
            self.full.set()


@dataclass(slots=True)
class Tools:
    """What the process connects by."""

    leases: Pool
    writers: Pool
    engine: AsyncEngine


class Job:
    """One tenure's work, up to its point and on from there."""

    def __init__(self, tenure: Tenure, gate: Gate) -> None:
        self.tenure = tenure
        self.outcome = "broken off"
        self.fence = 0
        self.reached = False
        self._gate = gate

    @property
    def idle(self) -> int:
        """Milliseconds for which its transaction may be idle."""
        return IDLE_LIMIT if self.tenure.ends == "server" else NO_LIMIT

    async def at(self, point: str) -> None:
        """Wait for the stop, where it is to come at this point."""
        if point == self.tenure.point and not self.reached:
            self._reach()
            await self._gate.opened.wait()

    async def write(self, send: Send) -> None:
        """Write all parts."""
        await self.at("checked")
        for part in range(PARTS):
            lock = self.tenure.waits_at if part == 0 else None
            if lock is not None and not self.reached:
                # The statement itself waits; the parent looks whether it has come to the server.
                self._reach()
            if not await send(lock):
                message = "no row was written"
                raise StaleError(message)
            if part == 0:
                await self.at("batch")
        await self.at("written")

    def _reach(self) -> None:
        self.reached = True
        self._gate.arrive()

    async def run(self, tools: Tools) -> None:
        """Hold the lease as users do, write, and note what came of it."""
        options: Any = {"ttl": self.tenure.ttl, "heartbeat": self.tenure.heartbeat}
        try:
            # After a loss what the body has come to stands, whatever it was.
            with suppress(LeaseLostError):
                async with lease(tools.leases, self.tenure.key, **options) as held:
                    self.fence = held.fence
                    if self.tenure.ends == "server":
                        await self._gate.last_may_come.wait()
                    while not await self._try(tools, held):
                        pass
        finally:
            if not self.reached:
                self._gate.arrive()

    async def _try(self, tools: Tools, held: Lease) -> bool:
        """Write; return whether that is all, or is to be begun again, as for a renewal that came in between."""
        path = {"transaction": _in_guarded_transaction, "sqlalchemy": _in_engine}
        try:
            await path.get(self.tenure.path, _in_own_transaction)(self, tools, held)
        except Exception as error:
            outcome = _judge(error)
            if outcome is None:
                raise
            if outcome == "refused" and not self.reached and held.lost is None:
                return False
            self.outcome = outcome
        else:
            self.outcome = "committed"
        return True


def _judge(error: Exception) -> str | None:
    """Say what an error means for the transaction: refused for certain, or broken off; None: neither."""
    state = getattr(getattr(error, "orig", error), "sqlstate", None)
    if isinstance(error, (LeaseLostError, LeaseSnapshotError, StaleError)) or state in {"40001", "AL001", "AL002"}:
        return "refused"
    ended = (asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.PostgresConnectionError, OSError)
    if state == "25P03" or isinstance(error, ended) or (isinstance(error, DBAPIError) and error.connection_invalidated):
        return "broken off"
    return None


# The paths ---------------------------------------------------------------------------------------


def _sender(job: Job, connection: PooledConnection) -> Send:
    statement = writing(job.tenure.path)

    async def send(lock: int | None) -> int:
        status = await connection.execute(statement, job.tenure.key, job.fence, job.tenure.path in GUARDED, lock)
        return int(status.rpartition(" ")[2])

    return send


async def _in_guarded_transaction(job: Job, tools: Tools, held: Lease) -> None:
    async with tools.writers.acquire() as connection:
        await job.at("before")
        async with held.transaction(connection, job.tenure.isolation, idle_timeout=job.idle / 1000):
            await job.write(_sender(job, connection))


async def _in_own_transaction(job: Job, tools: Tools, held: Lease) -> None:
    async with tools.writers.acquire() as connection, connection.transaction(isolation=job.tenure.isolation):
        await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = {job.idle}")
        if job.tenure.snapshot:
            await connection.execute("SELECT 1")
        await job.at("before")
        await _check(job, connection, held)
        await job.write(_sender(job, connection))


async def _check(job: Job, connection: PooledConnection, held: Lease) -> None:
    """Do what comes before the write; nothing, where the write itself compares the fence."""
    if job.tenure.path == "guard":
        await held.guard(connection)
    elif job.tenure.path == "assertion":
        await connection.execute("SELECT lease_assert_held($1, $2, $3)", held.key, held.holder, held.fence)
    elif job.tenure.path == "raise_if_stopping":
        held.raise_if_stopping()
    elif job.tenure.path == "select" and not await connection.fetch(CHECK, held.key, held.holder, held.fence):
        message = "the row is another's"
        raise StaleError(message)


async def _in_engine(job: Job, tools: Tools, held: Lease) -> None:
    level: Any = job.tenure.isolation.replace("_", " ").upper()
    statement = writing(job.tenure.path)
    async with tools.engine.execution_options(isolation_level=level).connect() as connection, connection.begin():

        async def send(lock: int | None) -> int:
            done = await connection.exec_driver_sql(statement, (held.key, held.fence, True, lock))
            return done.rowcount

        await connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {job.idle}")
        if job.tenure.snapshot:
            await connection.exec_driver_sql("SELECT 1")
        await job.at("before")
        await sqlalchemy.guard(held, connection)
        await job.write(send)


# The process -------------------------------------------------------------------------------------


async def hold(dsn: str) -> None:
    """Hold one batch of tenures after the other, as the parent sends them, until it kills this process."""
    # Every loss would be told; they are the subject.
    logging.disable(logging.CRITICAL)
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"), poolclass=engine_pools.NullPool)
    async with (
        asyncpg.create_pool(dsn, min_size=2, max_size=4) as leases,
        asyncpg.create_pool(dsn, min_size=1, max_size=AT_ONCE) as writers,
    ):
        tools = Tools(leases, writers, engine)
        while True:
            batch = (await receive())["batch"]
            assert isinstance(batch, list)
            await _hold_batch([Tenure(**each) for each in batch], tools)


async def _hold_batch(tenures: list[Tenure], tools: Tools) -> None:
    gate = Gate(tenures)
    jobs = [Job(tenure, gate) for tenure in tenures]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(job.run(tools)) for job in jobs]
        await gate.full.wait()
        emit(what="reached", tenures=[job.tenure.number for job in jobs if job.reached])
        await receive()
        # To this very thread: it goes no further before the process is stopped.
        signal.raise_signal(signal.SIGSTOP)
        gate.opened.set()
        await asyncio.wait(tasks, timeout=STUCK)
        for job, task in zip(jobs, tasks, strict=True):
            # With asyncpg before 0.32 a rollback of the user's own may never end; the library's has to.
            if job.tenure.path != "transaction":
                task.cancel()
    emit(what="outcomes", outcomes={job.tenure.number: [job.fence, job.outcome] for job in jobs})
