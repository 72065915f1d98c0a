"""Services that acquire, write and leave without a pause, in processes of their own, while their servers change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import asyncpg

from asyncpg_lease import Lease, LeaseUnavailableError, lease
from tests.history.history import History
from tests.history.record import Turn, Worker, recording, working
from tests.support.leasing import until
from tests.support.processes import emit

KEYS = ("a", "b", "c")
TASKS = 4
TTL = 5.0
LOST_SERVER = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
)
"""What a server that is lost makes of a statement, and one that nobody has promoted yet of a connection."""

PATIENCE = 30.0
"""Seconds for which a call waits: longer than any failover of the tests takes."""


class Service(Worker):
    """Waits for each key, writes twice, and says which writes were confirmed."""

    async def take(self, turn: Turn) -> None:
        """Acquire a key, write twice and leave."""
        turn.phase = "turn"
        key = self.random.choice(KEYS)
        try:
            async with lease(self.table, key, ttl=TTL, wait=PATIENCE, label=self.label) as held, self.body(held, TTL):
                for _ in range(2):
                    await self._write_through(held)
                    await asyncio.sleep(0.01)
        except LeaseUnavailableError as error:
            emit(what="wrong", name="a call did not come through", key=key, detail=str(error))

    async def _write_through(self, held: Lease) -> None:
        """Write in a guarded transaction, again if the server is lost in it, and say which write was confirmed."""
        while True:
            try:
                number = await self.write(held, timeout=TTL)
            except LOST_SERVER:
                await asyncio.sleep(0.05)
            else:
                emit(what="confirmed", numbers=[number])
                return


async def serve(dsn: str, number: int, seed: int) -> None:
    """Acquire, write and leave in several tasks, until the parent says stop; for `spawn`."""
    async with recording(dsn, number, connections=TASKS) as (table, pool):
        await working(Service(table, pool, number, seed), TASKS)


async def until_bodies(history: History, keys: Iterable[str], least: int = 20) -> None:
    """Wait until each key has had a body from now on, and all together so many.

    A key whose last claim was lost with its answer is shut for a ttl at most.
    """
    before = len(history.bodies)

    def enough() -> bool:
        later = history.bodies[before:]
        return len(later) >= least and {body.key for body in later} >= {*keys}

    await until(enough, within=PATIENCE)
