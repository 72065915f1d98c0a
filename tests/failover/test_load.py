"""Services under load while their primary is lost and a synchronous standby is promoted."""

from __future__ import annotations

import asyncio

from asyncpg_lease import LeaseTable, acquire
from tests.conftest import MakePool
from tests.failover.load import KEYS, PATIENCE, TTL, Seen, serve
from tests.machine.long_run_history import Write, faults
from tests.machine.long_run_worker import WRITTEN
from tests.support.cluster import Pair, connecting
from tests.support.job import JOB
from tests.support.processes import Spawn

PROCESSES = 3
FAILOVERS = 2
"""To the standby, and back to the node that was lost first."""


async def test_synchronous_failover_under_load_loses_nothing_and_lets_no_two_in(
    pair: Pair, make_pool: MakePool, spawn: Spawn
) -> None:
    """Fences rise through it, bodies never overlap, what was confirmed is there, and every call comes through."""
    seen = Seen()
    async with connecting(pair.primary) as connection:
        await LeaseTable(await make_pool(pair.dsn)).create()
        await connection.execute(JOB)
        await connection.execute(WRITTEN)
    children = [await spawn(serve, pair.dsn, seed) for seed in range(PROCESSES)]
    listening = [asyncio.create_task(seen.listen(child, number)) for number, child in enumerate(children)]
    for _ in range(FAILOVERS):
        await pair.cluster.restore()
        await pair.cluster.set_synchronous(True)
        await seen.until_bodies(KEYS)
        await pair.cluster.fail_over()
    await seen.until_bodies(KEYS)
    for child in children:
        await child.send(stop=True)
    await asyncio.gather(*listening)
    async with connecting(pair.primary) as connection:
        rows = await connection.fetch("SELECT number, key, fence FROM written")
    history = seen.history
    history.writes = [Write(*row) for row in rows]
    pool = await make_pool(pair.dsn)
    for key in KEYS:
        held = await acquire(LeaseTable(pool, poll=0.05), key, ttl=TTL, wait=PATIENCE)
        history.last[key] = held.fence
        await held.release()
    assert list(faults(history)) == []
    assert seen.confirmed <= {write.number for write in history.writes}
