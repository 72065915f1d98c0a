"""A rival that waits for the key in the test's own loop, where time is moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from asyncpg_lease import LeaseTable, lease
from tests.support.bodies import Bodies

POLL = 10.0
"""Seconds from one try to the next; there is one more as soon as the row has run out, and each costs real time."""


@asynccontextmanager
async def waiting_rival(dsn: str, key: str, bodies: Bodies) -> AsyncIterator[asyncio.Task[None]]:
    """Wait for the key from now on; the task is done when the rival's body is, which is noted as that of "rival".

    It is cancelled where it has not come to its body when the block ends.
    """

    async def compete() -> None:
        async with (
            asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
            lease(LeaseTable(pool, poll=POLL), key, ttl=60, wait=1000),
        ):
            with bodies.running("rival"):
                await asyncio.sleep(0)

    task = asyncio.create_task(compete(), name="rival")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
