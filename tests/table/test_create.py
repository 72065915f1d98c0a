"""LeaseTable.create(): any number at once, whatever is there already, and no more rights than needed."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, LeaseTableError, acquire
from tests.conftest import MakePool
from tests.support.inside import bind
from tests.support.observe import Observer
from tests.support.processes import Child, Spawn, emit, receive
from tests.support.rings import quick_few
from tests.support.typing import Pool
from tests.table.roles import MakeRole

ROUNDS = 6


async def create_when_told(dsn: str) -> None:
    """Be a replica that creates whatever table its parent names, as often as that does."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        emit(ready=True)
        while name := (told := await receive())["name"]:
            try:
                schema = told["schema"]
                await LeaseTable(pool, str(name), schema=None if schema is None else str(schema)).create()
            except Exception as error:  # noqa: BLE001 - reported
                emit(error=repr(error))
            else:
                emit(error=None)


@pytest.mark.slow("eight processes of their own")
async def test_create_by_eight_processes_at_once_succeeds_in_all(spawn: Spawn, dsn: str, observe: Observer) -> None:
    """8 replicas at one barrier, round after round, every other one with a new schema: all succeed, one table each."""
    children: list[Child] = [await spawn(create_when_told, dsn) for _ in range(8)]
    for child in children:
        await child.event(within=60)
    for number in range(ROUNDS):
        schema = f"schema_{number}" if number % 2 else None
        await asyncio.gather(*(child.send(name=f"table_{number}", schema=schema) for child in children))
        answers = await asyncio.gather(*(child.event(within=60) for child in children))
        assert [answer["error"] for answer in answers] == [None] * 8
    for child in children:
        await child.send(name=None)
        assert await child.wait() == 0
    made = await observe.connection.fetch(
        "SELECT relnamespace::regnamespace::text, relname FROM pg_class WHERE relname ~ '^table_[0-9]+$'"
    )
    expected = [(f"schema_{number}" if number % 2 else "public", f"table_{number}") for number in range(ROUNDS)]
    assert sorted(map(tuple, made)) == sorted(expected)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_create_by_many_connections_at_once_succeeds_in_all(make_pool: MakePool, isolation: str) -> None:
    """8 connections that create one table, and its schema, under any default isolation."""
    settings = {"default_transaction_isolation": isolation}
    pools = [await make_pool(min_size=1, max_size=1, server_settings=settings) for _ in range(8)]
    for number in range(3):
        tables = [LeaseTable(pool, f"t{number}", schema=f"s{number % 2}") for pool in pools]
        await asyncio.gather(*(table.create() for table in tables))
        await tables[number].verify()
        assert {table.name for table in tables} == {f'"s{number % 2}"."t{number}"'}


@pytest.mark.parametrize("takes_the_lock", [True, False], ids=["with our lock", "without"])
@pytest.mark.parametrize("end", quick_few(["COMMIT", "ROLLBACK", "killed"], 1))
@pytest.mark.parametrize("schema", [None, "new"])
async def test_create_beside_an_open_migration_succeeds_in_all(
    make_pool: MakePool, observe: Observer, schema: str | None, end: str, takes_the_lock: bool
) -> None:
    """Whoever makes the table in a transaction of his own, with our lock or without, and whatever comes of it."""
    pools = [await make_pool(min_size=1, max_size=1) for _ in range(3)]
    other = await asyncpg.connect(observe.dsn)
    await other.execute("BEGIN")
    if takes_the_lock:
        await other.execute("SELECT pg_advisory_xact_lock(hashtext('asyncpg_lease'), hashtext('create'))")
    if schema is not None:
        await other.execute(f"CREATE SCHEMA {schema}")
    await other.execute(bind("table", "lease" if schema is None else f"{schema}.lease"))
    creations = [asyncio.create_task(LeaseTable(pool, schema=schema).create()) for pool in pools]
    await observe.until_waiting(len(pools))
    assert not any(creation.done() for creation in creations)
    if end == "killed":
        await observe.connection.execute("SELECT pg_terminate_backend($1)", other.get_server_pid())
        other.terminate()
    else:
        await other.execute(end)
        await other.close()
    async with asyncio.timeout(10):
        await asyncio.gather(*creations)
    await LeaseTable(pools[0], schema=schema).verify()


async def test_create_of_two_tables_in_one_new_schema_at_once_succeeds(make_pool: MakePool) -> None:
    """Tables of different names race for their schema, and all of them get it."""
    pools = [await make_pool(min_size=1, max_size=1) for _ in range(5)]
    for number in range(2):
        tables = [LeaseTable(pool, f"t{at}", schema=f"s{number}") for at, pool in enumerate(pools)]
        await asyncio.gather(*(table.create() for table in tables))
        for table in tables:
            await table.verify()
        assert [table.name for table in tables] == [f'"s{number}"."t{at}"' for at in range(len(pools))]


async def test_create_where_the_table_is_there_needs_no_right_to_create(
    table: LeaseTable, make_role: MakeRole, observe: Observer
) -> None:
    """A role that may use the table and create nothing has create() say yes, and the table is not touched."""
    held = await acquire(table, "k")
    role = await make_role("GRANT SELECT, INSERT, UPDATE ON lease TO {role}")
    before = await observe.connection.fetchval("SELECT 'lease'::regclass::oid")
    for other in (LeaseTable(role), LeaseTable(role, schema="public")):
        await other.create()
        await other.verify()
    assert await observe.connection.fetchval("SELECT 'lease'::regclass::oid") == before
    assert await observe.fence("k") == 1
    await held.release()


async def test_create_where_the_table_is_there_waits_for_nobody(table: LeaseTable, observe: Observer) -> None:
    """A table that is there needs no lock: not the one that serialises creators, not one on the table."""
    transaction = observe.connection.transaction()
    await transaction.start()
    await observe.connection.execute("LOCK TABLE lease IN ACCESS EXCLUSIVE MODE")
    await observe.connection.execute("SELECT pg_advisory_xact_lock(hashtext('asyncpg_lease'), hashtext('create'))")
    creating = asyncio.create_task(table.create())
    await asyncio.wait([creating], timeout=5)
    assert creating.done()
    await transaction.rollback()
    await creating


async def test_create_in_the_first_schema_of_the_search_path(make_pool: MakePool, observe: Observer) -> None:
    """Without schema= the table is made where an unqualified CREATE TABLE would make it, and that is its name."""
    await observe.connection.execute('CREATE SCHEMA "Mine"')
    pool = await make_pool(server_settings={"search_path": '"Mine", public'})
    table = LeaseTable(pool)
    await table.create()
    assert table.name == '"Mine"."lease"'


async def test_create_without_any_schema_says_what_to_pass(make_pool: MakePool) -> None:
    """A search_path without any schema is an error of its own that names the argument to pass."""
    pool = await make_pool(server_settings={"search_path": "nowhere"})
    with pytest.raises(LeaseTableError, match="pass schema="):
        await LeaseTable(pool).create()


async def test_create_where_another_table_has_the_name_says_to_use_another(pool: Pool, observe: Observer) -> None:
    """A table that was never one of leases is refused at start-up, and left as it is."""
    await observe.connection.execute("CREATE TABLE lease (id bigint PRIMARY KEY, tenant text, rent numeric)")
    for verb in (LeaseTable.create, LeaseTable.verify):
        with pytest.raises(LeaseTableError) as caught:
            await verb(LeaseTable(pool))
        assert caught.value.table == '"public"."lease"'
        assert caught.value.problem == (
            'this is another table, not one of leases: use another name, such as LeaseTable(pool, "job_lease")'
        )
    await LeaseTable(pool, "job_lease").create()
    await (await acquire(LeaseTable(pool, "job_lease"), "k")).release()
    assert await observe.connection.fetch("SELECT id, tenant, rent FROM lease") == []


async def test_create_where_an_older_lease_table_is_there_leaves_it_to_verify(pool: Pool, observe: Observer) -> None:
    """One of the columns that make a table one of leases is enough for create(); verify() says what to run."""
    await observe.connection.execute("CREATE TABLE lease (key text, fence bigint)")
    await LeaseTable(pool).create()
    with pytest.raises(LeaseTableError) as caught:
        await LeaseTable(pool).verify()
    assert caught.value.problem.startswith("it has another shape; run: ")


async def test_create_that_fails_leaves_no_schema_behind(pool: Pool, observe: Observer) -> None:
    """Schema and table are made together or not at all."""
    # An event trigger is the one way to have the second statement of a creation fail for sure.
    await observe.connection.execute(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no tables today'; END $$;"
        "CREATE EVENT TRIGGER refuse ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(asyncpg.RaiseError, match="no tables today"):
        await LeaseTable(pool, schema="s").create()
    assert await observe.connection.fetchval("SELECT to_regnamespace('s')") is None
