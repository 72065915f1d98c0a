"""search_paths under which a table is found, is not, or seems to be."""

from __future__ import annotations

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, LeaseTableError, LeaseUnavailableError, acquire
from tests.conftest import MakePool
from tests.pools.kinds import settings
from tests.pools.life import expect_a_whole_life
from tests.support.observe import Observer
from tests.support.typing import Connection


async def test_path_with_another_schema_first_leads_a_whole_life_there(make_pool: MakePool, observe: Observer) -> None:
    """Schemas that do not exist are passed over, and the first one that does is where the table is made."""
    await observe.connection.execute('CREATE SCHEMA "Der Erste"; CREATE SCHEMA zweite')
    observe.table = '"Der Erste".lease'
    table = LeaseTable(await make_pool(**settings(search_path='missing, "Der Erste", zweite, public')), poll=0.05)
    await expect_a_whole_life(table, observe)
    assert table.name == '"Der Erste"."lease"'


async def test_path_that_is_empty_is_a_clear_error_and_a_schema_by_name_works(
    make_pool: MakePool, observe: Observer
) -> None:
    """Without a search_path an unqualified name leads nowhere, as each verb says; `schema=` needs none."""
    pool = await make_pool(**settings(search_path=""))
    with pytest.raises(LeaseTableError, match="pass schema="):
        await LeaseTable(pool).create()
    for question in (LeaseTable(pool).verify(), acquire(pool, "k")):
        with pytest.raises(LeaseTableError, match="there is no such table"):
            await question
    await expect_a_whole_life(LeaseTable(pool, schema="public", poll=0.05), observe)


@pytest.mark.parametrize("like", ["(LIKE public.lease INCLUDING ALL)", "(id bigint)"])
async def test_temporary_table_of_the_same_name_hides_nothing(
    table: LeaseTable, make_pool: MakePool, like: str
) -> None:
    """A table that one session alone sees is never the one that replicas lease in."""

    async def make_temporary(connection: Connection) -> None:
        await connection.execute(f"CREATE TEMPORARY TABLE lease {like}")

    other = LeaseTable(await make_pool(init=make_temporary))
    await other.create()
    await other.verify()
    held = await acquire(other, "k")
    with pytest.raises(LeaseUnavailableError):
        await acquire(table, "k")
    assert other.name == table.name == '"public"."lease"'
    await held.release()


@pytest.mark.parametrize("path", ["pg_temp, app, public", "missing, pg_temp, app"])
async def test_path_with_the_temporary_schema_first_makes_a_lasting_table(
    make_pool: MakePool, observe: Observer, path: str
) -> None:
    """create() makes no table that would be gone with its session, whatever the search_path begins with."""
    await observe.connection.execute("CREATE SCHEMA app")

    async def make_temporary(connection: Connection) -> None:
        # From here on the session has a schema for temporary tables, and one of our name in it.
        await connection.execute("CREATE TEMPORARY TABLE lease ()")

    table = LeaseTable(await make_pool(init=make_temporary, **settings(search_path=path)))
    await table.create()
    assert table.name == '"app"."lease"'
    await table.verify()
    await (await acquire(table, "k")).release()


async def test_path_of_the_temporary_schema_alone_is_a_clear_error(make_pool: MakePool) -> None:
    """Where there is nothing but the session's own schema, create() asks for one."""
    with pytest.raises(LeaseTableError, match="pass schema="):
        await LeaseTable(await make_pool(**settings(search_path="pg_temp"))).create()


async def test_path_that_changes_with_every_loan_leads_to_one_table(make_pool: MakePool, observe: Observer) -> None:
    """A pool whose `setup` sends each loan to a schema of its own has one lease table all the same."""
    paths = iter(["left", "right"] * 100)
    await observe.connection.execute('CREATE SCHEMA "left"; CREATE SCHEMA "right"')

    async def set_path(connection: asyncpg.pool.PoolConnectionProxy[asyncpg.Record]) -> None:
        await connection.execute(f'SET search_path = "{next(paths)}"')

    table = LeaseTable(await make_pool(setup=set_path), poll=0.05)
    observe.table = '"left".lease'
    await expect_a_whole_life(table, observe)
    assert table.name == '"left"."lease"'
