"""What a job writes in these tests, and who else is in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from asyncpg_lease import Lease, acquire, try_acquire
from tests.support.harms import harms
from tests.support.observe import Observer
from tests.support.typing import Connection, Pool, PooledConnection

KEY = "job"
ISOLATIONS = ("read_committed", "repeatable_read", "serializable")
SNAPSHOT_ISOLATIONS = ISOLATIONS[1:]

HARMS = harms(KEY)


async def write(connection: Connection | PooledConnection, who: str) -> None:
    """Write a line of the job's journal."""
    await connection.execute("INSERT INTO journal VALUES ($1)", who)


async def written(observe: Observer) -> list[str]:
    """Return who has written, as everybody sees it."""
    return [record[0] for record in await observe.connection.fetch("SELECT who FROM journal ORDER BY who")]


async def is_shut(pool: Pool) -> bool:
    """Tell whether a claim of KEY is refused, and see that the answer comes at once; a lease is given back."""
    async with asyncio.timeout(10):
        held = await try_acquire(pool, KEY)
    if held is not None:
        await held.release()
    return held is None


async def run_out_while_waited(
    pool: Pool, observe: Observer, check: Callable[[Lease], Awaitable[None]]
) -> tuple[Lease, asyncio.Task[None]]:
    """Have a check wait for the row of a lease, which runs out meanwhile; return the lease, and the check's task.

    The server's clock cannot be moved, and nobody may change the row, so this takes real time: as little as the machine
    allows. Where the row runs out before the check waits for it, there is another try, with more time.
    """

    async def checked(held: Lease) -> None:
        await check(held)

    for left in (0.4, 2.0, 10.0):
        held = await acquire(pool, KEY, ttl=60)
        await observe.shift(KEY, left - 60)
        async with observe.locked(KEY):
            task = asyncio.create_task(checked(held))
            waiting = asyncio.create_task(observe.until_waiting())
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waited = not task.done() and not await observe.is_free(KEY)
            waiting.cancel()
            await asyncio.wait({waiting})
            if waited:
                await observe.until_free(KEY, within=left + 10)
        if waited:
            return held, task
        await asyncio.gather(task, return_exceptions=True)
        await held.release()
    pytest.fail("the check began too late to wait for the row")
