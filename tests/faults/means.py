"""What is done to a lease beside the proxy's faults: processes that stand still, pools without connections, rivals.

The network's faults are those of `tests.support.proxy`, a locked row and ended sessions those of `observe`, a crash of
the server is `own_server.restart_immediately()`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress

import asyncpg

from asyncpg_lease import LeaseLostError, LeaseTable, lease
from tests.support.bodies import Bodies
from tests.support.processes import emit
from tests.support.typing import Pool

POLL = 0.02
"""Seconds between the tries of a rival."""


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """Stop processes, such as the server's backends, and let them go on at the end of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            # It may have been killed meanwhile.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def exhausted(pool: Pool) -> AsyncIterator[None]:
    """Keep every connection of a pool."""
    async with AsyncExitStack() as stack:
        for _ in range(pool.get_max_size()):
            await stack.enter_async_context(pool.acquire())
        yield


@asynccontextmanager
async def open_insert(dsn: str, key: str, ttl: float = 60) -> AsyncIterator[None]:
    """Insert a row for the key in a foreign session and do not commit it, until the block ends: rolled back."""
    connection = await asyncpg.connect(dsn)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "INSERT INTO lease (key, holder, acquired_at, expires_at)"
            " VALUES ($1, 'foreign', clock_timestamp(), clock_timestamp() + make_interval(secs => $2))",
            key,
            ttl,
        )
        yield
        await transaction.rollback()
    finally:
        await connection.close()


@asynccontextmanager
async def rival(
    dsn: str, key: str, bodies: Bodies, *, ttl: float = 30, wait: float = 30
) -> AsyncIterator[asyncio.Task[float]]:
    """Try for the key every 20 ms from now on; the task returns the time (`time.monotonic`) of its body's first line.

    It notes its body, of 50 ms, as that of "rival", and is cancelled where it has not come to it when the block ends.
    """

    async def compete() -> float:
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
            table = LeaseTable(pool, poll=POLL)
            async with lease(table, key, ttl=ttl, wait=wait):
                entered = time.monotonic()
                with bodies.running("rival"):
                    await asyncio.sleep(0.05)
        return entered

    task = asyncio.create_task(compete(), name="rival")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def hold(dsn: str, key: str, ttl: float, seconds: float, unwind: float = 0) -> None:
    """Hold the key in this process, until it is lost or the seconds are over; for `spawn`.

    Emits fence and holder, then `stopping` where the body is cancelled, and at last `ended`: "done", or the reason
    of the loss.

    Args:
        dsn: the database, or a proxy's.
        key: the key.
        ttl: the lease's.
        seconds: for how long the body has work.
        unwind: seconds that it needs to end in once it is cancelled.
    """
    outcome = "done"
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        try:
            async with lease(LeaseTable(pool, poll=POLL), key, ttl=ttl, wait=30) as held:
                emit(fence=held.fence, holder=held.holder)
                try:
                    await asyncio.sleep(seconds)
                except asyncio.CancelledError:
                    emit(stopping=True)
                    await asyncio.sleep(unwind)
                    raise
        except LeaseLostError as error:
            outcome = error.reason
        emit(ended=outcome)
