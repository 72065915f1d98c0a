"""A guard is of one database: connections that lead elsewhere, tables and rights that are not there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from asyncpg_lease import LeaseError, LeaseTable, LeaseTableError, acquire
from asyncpg_lease.testing import EmbeddedServer
from tests.conftest import MakePool
from tests.fencing.test_bad_input import BOTH, around, use
from tests.fencing.writing import KEY, write, written
from tests.support.databases import Server
from tests.support.leasing import until
from tests.support.observe import Observer
from tests.support.typing import Connection, Pool


@pytest.fixture
def other_dsn(server: Server) -> Iterator[str]:
    """The DSN of a second database on the same server."""
    with server.database() as database:
        yield database.dsn


@BOTH
async def test_connection_to_another_database_is_refused(pool: Pool, other_dsn: str, by: str) -> None:
    """A lease table of the same name may be there, and a tenure in it guards nothing here."""
    held = await acquire(pool, KEY)
    connection = await asyncpg.connect(other_dsn)
    with pytest.raises(LeaseError, match="leads to database"):
        async with around(connection, by):
            await use(held, connection, by)
    await connection.close()
    assert held.lost is None
    await held.release()


@pytest.mark.slow("starts a second server")
@BOTH
async def test_connection_to_another_server_is_refused(
    make_pool: MakePool, own_server: EmbeddedServer, server: Server, by: str
) -> None:
    """Databases of two servers may have the same name, the same number, and the same table."""
    own = await make_pool(server.dsn)
    # In the database of that server that others use as well.
    table = LeaseTable(own, f"lease_{secrets.token_hex(4)}")
    await table.create()
    try:
        held = await acquire(table, KEY)
        connection = await asyncpg.connect(own_server.dsn)
        with pytest.raises(LeaseError, match="leads to database"):
            async with around(connection, by):
                await use(held, connection, by)
        await connection.close()
        assert held.lost is None
        await held.release()
    finally:
        await own.execute(f"DROP TABLE {table.name}")
    await table.aclose()


async def test_pool_that_leads_elsewhere_by_now_is_asked_again(
    table: LeaseTable, pool: Pool, connection: Connection, other_dsn: str
) -> None:
    """What was found out of the pool's database is no reason to refuse where it has failed over to another server."""
    held = await acquire(table, KEY)
    async with held.transaction(connection):
        pass
    await held.release()
    await until(lambda: pool.get_idle_size() == pool.get_size())
    pool.set_connect_args(other_dsn)
    await pool.expire_connections()
    await table.create()
    held = await acquire(table, KEY)
    there = await asyncpg.connect(other_dsn)
    async with held.transaction(there):
        assert there.is_in_transaction()
    await there.close()
    assert held.lost is None
    await held.release()


async def test_table_that_is_gone_is_told_in_its_own_words(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """The driver's error about the table is the library's, and no loss."""
    held = await acquire(pool, KEY)
    await observe.connection.execute("ALTER TABLE lease RENAME TO elsewhere")
    with pytest.raises(LeaseTableError):
        await use(held, connection, "transaction")
    assert not connection.is_in_transaction()
    assert held.lost is None
    await observe.connection.execute("ALTER TABLE elsewhere RENAME TO lease")
    async with held.transaction(connection):
        await write(connection, "A")
    assert await written(observe) == ["A"]
    await held.release()


async def test_role_that_may_not_lock_is_told_so(pool: Pool, dsn: str, observe: Observer) -> None:
    """A connection's role needs what the lease's own has: SELECT, INSERT and UPDATE on the table."""
    role = f"reader_{urlsplit(dsn).path[1:]}"
    held = await acquire(pool, KEY)
    await observe.connection.execute(f"CREATE ROLE {role}")
    try:
        await observe.connection.execute(f"GRANT SELECT ON lease TO {role}")
        async with pool.acquire() as connection:
            await connection.execute(f"SET ROLE {role}")
            with pytest.raises(LeaseTableError, match="GRANT"):
                await use(held, connection, "transaction")
            await connection.execute("RESET ROLE")
    finally:
        await observe.connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    await held.release()
