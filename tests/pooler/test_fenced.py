"""Guarded transactions through PgBouncer in transaction mode."""

from __future__ import annotations

import asyncio

import pytest

from asyncpg_lease import Isolation, LeaseTable, acquire, lease, try_acquire
from tests.support.observe import Observer
from tests.support.typing import Pool

KEY = "job"
ISOLATIONS: list[Isolation] = ["read_committed", "repeatable_read", "serializable"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_guarded_transaction_keeps_the_key_shut_and_renewals_pass(
    table: LeaseTable, pool: Pool, observe: Observer, isolation: Isolation
) -> None:
    """A transaction has a server connection to itself, and everything else goes by way of the others."""
    await observe.connection.execute("CREATE TABLE journal (fence bigint)")
    held = await acquire(table, KEY, ttl=30)
    async with pool.acquire() as connection, held.transaction(connection, isolation):
        await connection.execute("INSERT INTO journal VALUES ($1)", held.fence)
        await held.renew()
        await observe.expire(KEY)
        assert await try_acquire(table, KEY) is None
    successor = await acquire(table, KEY)
    assert successor.fence == held.fence + 1
    await successor.release()
    await held.release()
    assert await observe.connection.fetchval("SELECT count(*) FROM journal") == 1


async def test_idle_timeout_of_a_guard_is_its_own_transactions(table: LeaseTable, pool: Pool) -> None:
    """A setting that stayed with the server connection would end other clients' transactions."""
    limits: list[str] = []

    both = asyncio.Barrier(2)

    async def look() -> None:
        async with pool.acquire() as connection, connection.transaction():
            limits.append(await connection.fetchval("SHOW idle_in_transaction_session_timeout"))
            # So that all of the pooler's server connections are asked: each of two at once has one.
            await both.wait()

    async with lease(table, KEY, ttl=60) as held:
        for _ in range(3):
            async with pool.acquire() as connection, held.transaction(connection, idle_timeout=5):
                assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "5s"
    await asyncio.gather(*(look() for _ in range(2)))
    assert set(limits) == {"0"}
