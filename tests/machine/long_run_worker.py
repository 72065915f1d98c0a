"""A process that acquires keys, works and writes, until it is told to stop or is killed in the middle of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, LeaseUnavailableError, lease
from tests.support.job import STALE
from tests.support.processes import emit, receive
from tests.support.typing import Pool

QUICK = tuple(f"quick-{number}" for number in range(12))
SLOW = tuple(f"slow-{number}" for number in range(6))
"""The keys: most bodies take milliseconds, the others long enough to hear of a revoke from a renewal."""

KEYS = (*QUICK, *SLOW)
TASKS = 6
TTL = 1.0
TICK = 0.02

WRITTEN = "CREATE TABLE written (number bigserial PRIMARY KEY, key text NOT NULL, fence bigint NOT NULL)"

# The number is taken when the page's row is locked, and that stays so until the write is committed.
WRITE = """
WITH accepted AS (
    INSERT INTO page VALUES ($1, $2)
    ON CONFLICT (key) DO UPDATE SET last_fence = EXCLUDED.last_fence RETURNING key, last_fence
)
INSERT INTO written (key, fence) SELECT key, last_fence FROM accepted
"""


class Clock:
    """Notes for how long this process did nothing: a frozen machine, a loop that is blocked."""

    def __init__(self) -> None:
        self._gaps: list[tuple[float, float]] = []

    async def tick(self) -> None:
        """Look at the clock again and again."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            self._gaps.append((now, now - before))
            before = now

    def longest(self, since: float) -> float:
        """Return the longest time without a tick since then, the one that is under way included."""
        later = itertools.takewhile(lambda gap: gap[0] >= since, reversed(self._gaps))
        now = time.monotonic()
        last = self._gaps[-1][0] if self._gaps else now
        return max([now - last, *(gap for _, gap in later)])


class Worker:
    """What the tasks of one process share."""

    def __init__(self, table: LeaseTable, pool: Pool, random_: random.Random) -> None:
        self._table = table
        self._pool = pool
        self._random = random_
        self._numbers = itertools.count()
        self.stopping = asyncio.Event()
        self.clock = Clock()

    async def run(self) -> None:
        """Acquire one key after the other."""
        while not self.stopping.is_set():
            slow = self._random.random() < 0.1
            key = self._random.choice(SLOW if slow else QUICK)
            wait = self._random.choice([0, 0.5])
            rest = 1.5 * TTL if slow and self._random.random() < 0.2 else 0
            held: Lease | None = None
            try:
                async with lease(self._table, key, ttl=TTL, wait=wait, min_hold=rest) as held, self._noted(held):
                    await self._write(held)
                    await asyncio.sleep(self._random.uniform(0.2, 0.8) if slow else self._random.uniform(0, 0.01))
                    await self._write(held)
            except LeaseUnavailableError:
                await asyncio.sleep(0.01)
            except LeaseLostError:
                pass
            if held is not None and self._random.random() < 0.1:
                await self._write_late(held)

    @asynccontextmanager
    async def _noted(self, held: Lease) -> AsyncIterator[None]:
        """Report a body's first line and its last one."""
        number = next(self._numbers)
        emit(began=number, key=held.key, fence=held.fence, acquired_at=held.acquired_at.timestamp(), ttl=TTL)
        started = time.monotonic()
        try:
            yield
        finally:
            outcome = "done" if held.lost is None else f"lost: {held.lost.reason}"
            emit(ended=number, outcome=outcome, stood_still=self.clock.longest(started))

    async def _write(self, held: Lease) -> None:
        async with self._pool.acquire() as connection:
            try:
                async with held.transaction(connection):
                    await connection.execute(WRITE, held.key, held.fence)
            except asyncpg.PostgresError as error:
                if error.sqlstate != STALE:
                    raise
                emit(refused="guarded", key=held.key, fence=held.fence)

    async def _write_late(self, held: Lease) -> None:
        """Write once more after the block, as a paused process would: a successor may have written."""
        await asyncio.sleep(self._random.uniform(0, 0.1))
        try:
            await self._pool.execute(WRITE, held.key, held.fence)
        except asyncpg.PostgresError as error:
            if error.sqlstate != STALE:
                raise
            emit(refused="late", key=held.key, fence=held.fence)


async def work(dsn: str, seed: str) -> None:
    """Acquire, work and write in several tasks, until the parent says stop or kills this process."""
    # Every loss would be told; they are the subject.
    logging.disable(logging.CRITICAL)
    async with asyncpg.create_pool(dsn, min_size=2, max_size=TASKS) as pool:
        table = LeaseTable(pool, poll=0.05)
        worker = Worker(table, pool, random.Random(seed))  # noqa: S311 - for tests
        ticking = asyncio.create_task(worker.clock.tick())
        async with asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(worker.run())
            await receive()
            worker.stopping.set()
        ticking.cancel()
        await table.aclose()
