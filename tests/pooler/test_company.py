"""Many leases of many processes on two server connections."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, lease
from asyncpg_lease.events import Lost, RenewFailed
from tests.support.leasing import Recorder
from tests.support.observe import Observer
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Spawn, emit
from tests.support.typing import Pool


async def hold_five(dsn: str, number: int, seconds: float) -> None:
    """Hold five leases for so long and report what came of it (in a process of its own)."""
    recorder = Recorder()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=3, statement_cache_size=0) as pool:
        async with AsyncExitStack() as stack:
            leases = [
                await stack.enter_async_context(lease(pool, f"k{number}-{index}", ttl=5, observer=recorder))
                for index in range(5)
            ]
            await asyncio.sleep(seconds)
            held = sum(one.is_held for one in leases)
        emit(
            held=held,
            lost=[event.reason for event in recorder.of(Lost)],
            failed=[event.error for event in recorder.of(RenewFailed)],
        )


@pytest.mark.slow("four processes hold their leases for 10 s")
async def test_leases_of_four_processes_through_pgbouncer_are_all_kept(
    table: LeaseTable, pgbouncer: PgBouncer, spawn: Spawn
) -> None:
    """Twenty leases of 5 s, five a process, are held for 10 s over two server connections, without one error."""
    children = [await spawn(hold_five, pgbouncer.dsn, number, 10.0) for number in range(4)]
    for child in children:
        event = await child.event(within=40)
        assert (event["held"], event["lost"], event["failed"]) == (5, [], [])
        assert await child.wait() == 0
    assert {info.state for info in await table.leases()} == {"free"}
    assert len(await table.leases()) == 20


@pytest.mark.slow("acquires and renews a thousand leases")
async def test_thousand_leases_share_two_server_connections(table: LeaseTable, pool: Pool, observe: Observer) -> None:
    """A thousand leases are renewed in batches: none is lost, and the server has two sessions."""
    recorder = Recorder()
    async with AsyncExitStack() as stack:
        for index in range(1000):
            await stack.enter_async_context(lease(pool, f"k{index:03}", ttl=30, heartbeat=2, observer=recorder))
        before = {info.key: info.expires_at for info in await table.leases()}
        waiting = set(before)
        async with asyncio.timeout(30):
            while waiting:
                await asyncio.sleep(0.5)
                waiting -= {info.key for info in await table.leases() if info.expires_at > before[info.key]}
        assert len(await observe.backends()) <= 2
    assert recorder.of(Lost) == []
    assert {info.state for info in await table.leases()} == {"free"}
