"""A process that acquires keys, works and writes, and says all that the library tells it.

Its parent makes the other faults.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import asyncpg

from asyncpg_lease import Event, Lease, LeaseError, lease
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
from tests.chaos.selfharm import Selfharm
from tests.history.record import WRITE, Turn, Worker, noting_refusals, recording
from tests.support.processes import emit

TASKS = 4
CONNECTIONS = 4
TTLS = (1.0, 2.0)

SLOW = 0.1
"""A claim, a renewal, or a write, that took so long was slow."""

READ_ONLY = "the transaction is read-only"
"""In the RuntimeError of a guard on a server that has become so."""


class Troubled(Worker):
    """What the tasks of one process share, which has faults of all kinds."""

    expected = (LeaseError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
    harm: Selfharm
    keys: list[str]

    def is_expected(self, error: BaseException) -> bool:
        """Tell whether a turn may end so while the server, the network and the pool have faults."""
        return super().is_expected(error) or READ_ONLY in str(error)

    async def take(self, turn: Turn) -> None:
        """Acquire a key, write in guarded transactions for a while, and maybe once more after the block."""
        choose = self.random
        key, ttl = choose.choice(self.keys), choose.choice(TTLS)
        lasts = choose.uniform(0, 0.3) if choose.random() < 0.6 else choose.uniform(0.3, 2.5)
        wait = choose.choice([0, 0.5, 2 * ttl])
        context = lease(self.table, key, ttl=ttl, wait=wait, label=self.label)
        self.harm.enter(turn, "acquire")
        asked = time.monotonic()
        async with context as held:
            self.harm.enter(turn, "body")
            took = time.monotonic() - asked
            if wait == 0 and took >= SLOW:
                emit(what="notice", name="Slow claim", key=key, holder=held.holder, detail=f"{took:.3f} s")
            try:
                async with self.body(held, ttl):
                    await self._work(held, lasts)
            finally:
                self.harm.enter(turn, "exit")
        self.harm.enter(turn, "after")
        if choose.random() < 0.2:
            await self.write_late(held, 0.2)

    async def _work(self, held: Lease, lasts: float) -> None:
        """Write in guarded transactions, and think for a while in them and between them."""
        until = time.monotonic() + lasts
        with self.harm.holding(held):
            while time.monotonic() < until:
                await self._write(held)
                await asyncio.sleep(self.random.uniform(0, 0.3))

    async def _write(self, held: Lease) -> None:
        pause = self.random.choice([0, 0.05, 0.3])
        async with self.pool.acquire() as connection:
            try:
                with noting_refusals(held), _timed(held, connection.get_server_pid(), pause) as doing:
                    async with held.transaction(
                        connection, idle_timeout=self.random.choice(["ttl", "ttl", "ttl", None])
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


@contextmanager
def _timed(held: Lease, session: int, pause: float) -> Iterator[list[str]]:
    """Report a guarded write that the server or the network held up, or broke; yield where to say how far it is."""
    doing, began = [f"session {session} "], time.monotonic()
    whose = {"key": held.key, "holder": held.holder}
    try:
        yield doing
    except Troubled.expected as error:
        emit(what="notice", name="Write failed", detail=f"{''.join(doing)}{error!r}"[:300], **whose)
        raise
    finally:
        took = time.monotonic() - began - pause
        if took >= SLOW:
            emit(what="notice", name="Slow write", detail=f"{took:.3f} s, session {session}", **whose)


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
    emit(what="notice", name=name, key=event.key, holder=event.holder, detail=detail)


async def work(dsn: str, keys: list[str], number: int, seed: int) -> None:
    """Acquire, work and write in several tasks, until the parent says stop or kills this process."""
    async with recording(dsn, number, connections=CONNECTIONS, observer=tell) as (table, pool):
        worker = Troubled(table, pool, number, seed)
        worker.harm, worker.keys = Selfharm(pool), keys
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(worker.run())
            emit(what="ready")
            await worker.harm.obey()
            worker.cancel_turns()
