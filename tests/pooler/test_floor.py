"""Pruning and lifting fences through PgBouncer in transaction mode."""

from __future__ import annotations

from asyncpg_lease import LeaseTable, Pruned, acquire, lease
from tests.support.observe import Observer


async def test_prune_and_advance_work_through_pgbouncer(table: LeaseTable, observe: Observer) -> None:
    """Each step is a statement that may go over any server connection: nothing is kept in a session."""
    for key in ("a", "b"):
        held = await acquire(table, key)
        await held.release()
    async with lease(table, "held") as held:
        assert await table.prune(0) == Pruned(deleted=2, kept=0, floor=1)
        await held.renew()
    async with lease(table, "a") as again:
        assert again.fence == 2
    assert await table.advance_fences(10) == 12
    assert [row["fence"] for row in await observe.rows()] == [12, 12, 12]
    assert await observe.connection.fetch("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'") == []
