"""What waits for another session's lock keeps no connection for as long as that: renewals come in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, Renewed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer

KEY = "waited-for"
Wait: TypeAlias = Callable[[], Coroutine[None, None, object]]
pytestmark = pytest.mark.usefixtures("table")


@asynccontextmanager
async def _revocations(table: LeaseTable, observe: Observer) -> AsyncIterator[Wait]:
    """Yield revocations of a row that somebody has locked."""

    async def revoke() -> object:
        return (await table.revoke(KEY)).outcome

    held = await acquire(table, KEY, ttl=60)
    async with observe.locked(KEY):
        yield revoke
    await held.release()


@pytest.mark.slow("PostgreSQL's lock_timeout is real time")
@pytest.mark.parametrize("connections", [1, 3])
async def test_revocations_that_wait_for_a_lock_on_every_connection_cost_no_other_lease(
    make_pool: MakePool, observe: Observer, connections: int
) -> None:
    """As many as there are connections, again and again: a lease beside them is renewed, and they are done at last."""
    pool = await make_pool(max_size=connections)
    table = LeaseTable(pool, poll=0.02)
    told = Recorder()
    async with _revocations(table, observe) as wait:
        async with lease(table, "other", ttl=9, heartbeat=1, observer=told):
            waiting = [asyncio.create_task(wait()) for _ in range(connections)]
            await until(lambda: told.of(Lost) or len(told.of(Renewed)) > 1, within=10)
            assert not any(task.done() for task in waiting)
        assert not told.of(Lost)
    await asyncio.gather(*waiting)
