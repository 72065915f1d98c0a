"""The first prune waits for claims alone: not for reports, sleeps, dumps, fenced transactions or other databases."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire
from tests.conftest import MakePool
from tests.floor.calls import DAY, asleep, is_settled, slow_write, use
from tests.sql.calls import sessions, until_blocked
from tests.support.databases import Database, Server
from tests.support.observe import Observer, observing
from tests.support.typing import Pool

KEY = "k"


async def test_settled_floor_is_waited_for_no_more(table: LeaseTable, observe: Observer, dsn: str) -> None:
    """The wait is for the first prune alone: later ones are done at once, beside whatever transaction."""
    await use(table, KEY)
    await table.prune(0)
    await use(table, KEY)
    async with sessions(dsn, 1) as (session,), asleep(observe, session, slow_write()), asyncio.timeout(10):
        assert (await table.prune(0)).deleted == 1
    assert await is_settled(observe)


async def test_first_prune_does_not_wait_for_a_transaction_between_two_statements(table: LeaseTable, dsn: str) -> None:
    """A transaction that was guarded in the middle has the lock that a claim has, and an old snapshot, but is none."""
    await use(table, KEY)
    held = await acquire(table, "guarded")
    async with sessions(dsn, 1) as (session,), session.transaction(isolation="repeatable_read"), asyncio.timeout(10):
        await held.guard(session)
        assert (await table.prune(0)).deleted == 1
    await held.release()


@pytest.mark.slow("a prune looks again after real time")
@pytest.mark.parametrize("verb", ["prune", "advance_fences"])
async def test_first_prune_does_not_wait_for_statements_that_do_not_write_the_table(
    table: LeaseTable, pool: Pool, observe: Observer, dsn: str, verb: str
) -> None:
    """A sleep, a wait for a lock of the application's own, a dump and a fenced transaction's report take their time.

    That of the fenced transaction is guarded as ever, so it is over before an advance is.
    """
    await use(table, KEY)
    await observe.shift(KEY, -DAY)
    await observe.connection.execute("CREATE TABLE sale AS SELECT 1 AS n")
    await observe.connection.execute("SELECT pg_advisory_lock(4713)")
    held = await acquire(table, "guarded")
    async with (
        sessions(dsn, 3, default_transaction_isolation="repeatable read") as (sleeper, waiter, dump),
        pool.acquire() as fenced,
        asleep(observe, sleeper),
        asleep(observe, dump, "SELECT pg_sleep(60) FROM lease"),
        asyncio.timeout(20),
    ):
        waiting = asyncio.create_task(waiter.execute("SELECT pg_advisory_lock(4713)"))
        await until_blocked(observe.connection, waiter)
        async with held.transaction(fenced):
            report = asyncio.create_task(fenced.fetch("SELECT pg_sleep(2) FROM sale"))
            steering = asyncio.create_task(getattr(table, verb)(1))
            async with asyncio.timeout(1.8):
                while not await is_settled(observe):
                    await asyncio.sleep(0.05)
            assert not report.done()
            await report
        await steering
        await observe.connection.execute("SELECT pg_advisory_unlock(4713)")
        await waiting
    await held.release()


@pytest.mark.slow("a prune looks again after real time")
async def test_first_prune_does_not_wait_for_another_database(
    database: Database, server: Server, make_pool: MakePool, observe: Observer
) -> None:
    """In a copy of the database the table has the same number: its writers are none of this one's."""
    # Nobody may be in a database that is copied.
    await observe.connection.close()
    dsn = database.dsn
    async with asyncpg.create_pool(dsn, min_size=0, max_size=1) as before:
        await LeaseTable(before).create()
    database.close()
    ours = urlsplit(dsn).path.lstrip("/")
    async with sessions(server.dsn, 1) as (owner,):
        await owner.execute(f"CREATE DATABASE {ours}_copy TEMPLATE {ours}")
        try:
            copy = urlsplit(dsn)._replace(path=f"/{ours}_copy").geturl()
            table = LeaseTable(await make_pool())
            await use(table, KEY)
            async with (
                sessions(copy, 1) as (slow,),
                observing(copy) as beside,
                asleep(beside, slow, slow_write()),
                asyncio.timeout(10),
            ):
                assert (await table.prune(0)).deleted == 1
        finally:
            await owner.execute(f"DROP DATABASE {ours}_copy WITH (FORCE)")


@pytest.mark.slow("a prune looks again after real time")
async def test_first_prune_beside_a_long_write_does_not_wait_for_whoever_comes_later(
    table: LeaseTable, observe: Observer, dsn: str, make_pool: MakePool
) -> None:
    """While a long write keeps all snapshots old, new transactions begin all the time, and none is waited for."""
    await use(table, KEY)
    await observe.connection.execute("CREATE TABLE sale (n int)")
    pool = await make_pool(min_size=4)

    async def write() -> None:
        while True:
            await pool.execute(slow_write(seconds=0.05))

    async with sessions(dsn, 1) as (writer,), writer.transaction():
        await writer.execute("INSERT INTO sale VALUES (1)")
        writers = [asyncio.create_task(write()) for _ in range(3)]
        async with asyncio.timeout(10):
            assert (await table.prune(0)).deleted == 1
        for one in writers:
            one.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
