"""Services that acquire, write and leave without a pause, in processes of their own, while their servers change."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, lease
from tests.machine.long_run_history import Body, History
from tests.machine.long_run_worker import WRITE, Clock
from tests.support.leasing import until
from tests.support.processes import Child, emit, receive
from tests.support.typing import Pool

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


async def serve(dsn: str, seed: int) -> None:
    """Acquire, write and leave in several tasks, until the parent says stop; for `spawn`."""
    # Every failure of a server that is lost would be told; they are the subject.
    logging.disable(logging.CRITICAL)
    choose, clock, stopping = random.Random(seed), Clock(), asyncio.Event()  # noqa: S311 - for tests
    numbers = itertools.count()
    # No connection at once: a process that is slow to start may do so while there is no server.
    async with asyncpg.create_pool(dsn, min_size=0, max_size=TASKS) as pool:
        table = LeaseTable(pool, poll=0.05)

        async def work() -> None:
            while not stopping.is_set():
                with suppress(LeaseLostError):
                    async with lease(table, choose.choice(KEYS), ttl=TTL, wait=PATIENCE) as held:
                        await _have_a_body(pool, held, next(numbers), clock)

        ticking = asyncio.create_task(clock.tick())
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(work())
            await receive()
            stopping.set()
        ticking.cancel()
        await table.aclose()


async def _have_a_body(pool: Pool, held: Lease, number: int, clock: Clock) -> None:
    loop = asyncio.get_running_loop()
    started, outcome = loop.time(), "done"
    emit(began=number, key=held.key, fence=held.fence, acquired_at=held.acquired_at.timestamp(), ttl=TTL)
    try:
        for _ in range(2):
            await _write(pool, held)
            await asyncio.sleep(0.01)
    finally:
        if held.lost is not None:
            outcome = f"lost: {held.lost.reason}"
        emit(ended=number, outcome=outcome, stood_still=clock.longest(started))


async def _write(pool: Pool, held: Lease) -> None:
    """Write in a guarded transaction, again where the server is lost in it, and report what was confirmed."""
    while True:
        try:
            async with pool.acquire(timeout=TTL) as connection, held.transaction(connection):
                row = await connection.fetchval(f"{WRITE} RETURNING number", held.key, held.fence)
        except LOST_SERVER:
            await asyncio.sleep(0.05)
        else:
            emit(confirmed=row)
            return


@dataclass(slots=True)
class Seen:
    """What the processes have reported: bodies as in a long run, and the numbers of confirmed writes."""

    history: History = field(default_factory=History)
    confirmed: set[int] = field(default_factory=set)

    async def until_bodies(self, keys: Iterable[str], least: int = 20) -> None:
        """Wait until each key has had a body from now on, and all together so many.

        A key whose last claim was lost with its answer is shut for a ttl at most.
        """
        before = len(self.history.bodies)

        def enough() -> bool:
            later = self.history.bodies[before:]
            return len(later) >= least and {body.key for body in later} >= {*keys}

        await until(enough, within=PATIENCE)

    async def listen(self, child: Child, process: int) -> None:
        """Note what a process reports until it ends."""
        running: dict[int, Body] = {}
        while True:
            try:
                event: dict[str, Any] = await child.event(within=2 * PATIENCE)
            except EOFError:
                break
            at = event.pop("at")
            if "began" in event:
                number = event.pop("began")
                body = running[number] = Body(process=process, started=at, **event)
                self.history.bodies.append(body)
            elif "ended" in event:
                body = running.pop(event["ended"])
                body.ended, body.outcome, body.stood_still = at, event["outcome"], event["stood_still"]
            else:
                self.confirmed.add(event["confirmed"])
        assert (await child.wait(), running) == (0, {})
