"""A lease's whole life through PgBouncer in transaction mode."""

from __future__ import annotations

import asyncio

import pytest

from asyncpg_lease import (
    LeaseLostError,
    LeaseTable,
    LeaseTimeoutError,
    LeaseUnavailableError,
    acquire,
    lease,
    try_acquire,
)
from asyncpg_lease.events import Waiting
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer
from tests.support.pgbouncer import PgBouncer
from tests.support.typing import Pool

KEY = "job"


async def expect_a_life(table: LeaseTable, pool: Pool) -> None:
    """Use every verb once."""
    await table.create()
    await table.verify()
    async with lease(table, KEY, ttl=30, holder="me") as held:
        with pytest.raises(LeaseUnavailableError):
            await acquire(pool, KEY)
        joined = await acquire(pool, KEY, holder="me")
        assert joined.joined
        await held.renew()
        await held.confirm()
        info = await table.get(KEY)
        assert info is not None
        assert (info.holder, info.fence, info.state) == ("me", held.fence, "held")
        assert await try_acquire(pool, KEY) is None
        await joined.release()
    assert [info.state for info in await table.leases("jo")] == ["free"]


async def test_every_verb_works_through_pgbouncer(table: LeaseTable, pool: Pool) -> None:
    """Create, verify, acquire, join, renew, read, refuse and release go through a pooler of transactions."""
    await expect_a_life(table, pool)


async def test_life_leaves_nothing_in_the_sessions(
    table: LeaseTable, pool: Pool, pgbouncer: PgBouncer, make_pool: MakePool
) -> None:
    """After a whole life no session has a statement, a lock, a channel, a cursor, a table or a setting of ours."""
    await expect_a_life(table, pool)
    looking = await make_pool(pgbouncer.dsn, statement_cache_size=0, min_size=2, max_size=2)
    async with looking.acquire() as one, looking.acquire() as other, one.transaction(), other.transaction():
        # In transactions at once, so each has one of the two server connections.
        pids = {await connection.fetchval("SELECT pg_backend_pid()") for connection in (one, other)}
        assert len(pids) == 2
        for connection in (one, other):
            assert await connection.fetch("SELECT name FROM pg_prepared_statements") == []
            assert await connection.fetch("SELECT name FROM pg_cursors WHERE name <> ''") == []
            assert await connection.fetch("SELECT pg_listening_channels()") == []
            assert await connection.fetch("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'") == []
            assert await connection.fetch("SELECT 1 FROM pg_class WHERE relpersistence = 't'") == []
            changed = await connection.fetch("SELECT name FROM pg_settings WHERE source = 'session'")
            # What PgBouncer sets to the client's own values.
            assert {row[0] for row in changed} <= {
                "application_name",
                "client_encoding",
                "DateStyle",
                "standard_conforming_strings",
                "TimeZone",
                "transaction_isolation",
                "transaction_read_only",
                "transaction_deferrable",
            }


async def test_loss_is_noticed_through_pgbouncer(table: LeaseTable, observe: Observer) -> None:
    """A tenure that was taken over is a loss at the next renewal, with the name of who has the key."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=30, heartbeat=0.05):
            await observe.hand_over(KEY)
            await asyncio.sleep(30)
    assert (caught.value.reason, caught.value.taken_by) == ("taken_over", "other")


@pytest.mark.usefixtures("table")
async def test_waiting_through_pgbouncer_ends_with_the_key_or_in_time(pool: Pool) -> None:
    """A waiter has the key soon after its release, and gives up in time where it is not released."""
    patient, told = LeaseTable(pool, poll=0.05), Recorder()
    async with lease(patient, KEY, ttl=30) as held:
        with pytest.raises(LeaseTimeoutError):
            await acquire(patient, KEY, wait=0.3)
        waiter = asyncio.create_task(acquire(patient, KEY, wait=30, observer=told))
        await until(lambda: told.of(Waiting))
        assert not waiter.done()
    got = await waiter
    assert got.fence == held.fence + 1
    await got.release()


async def test_create_by_many_clients_at_once_through_pgbouncer_makes_one_table(
    pgbouncer: PgBouncer, make_pool: MakePool
) -> None:
    """Its lock is the transaction's: eight clients that create on two server connections all succeed."""
    pools = [await make_pool(pgbouncer.dsn, statement_cache_size=0) for _ in range(8)]
    tables = [LeaseTable(pool) for pool in pools]
    await asyncio.gather(*(table.create() for table in tables))
    await tables[0].verify()
    assert [table.name for table in tables] == ['"public"."lease"'] * 8
    await until(lambda: all(pool.get_idle_size() == pool.get_size() for pool in pools))
