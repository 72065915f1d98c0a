"""An unqualified name is resolved once: two search_paths must not become two tables."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from asyncpg_lease import Lease, LeaseTable, LeaseTableError, LeaseUnavailableError, acquire, lease
from tests.conftest import MakePool
from tests.support.leasing import until
from tests.support.observe import Observer, observing
from tests.support.typing import Pool, PooledConnection

SCHEMAS = ["left", "right"]


@pytest.fixture
async def two_tables(pool: Pool) -> list[LeaseTable]:
    """A table `lease` in each of two schemas."""
    tables = [LeaseTable(pool, schema=schema) for schema in SCHEMAS]
    for table in tables:
        await table.create()
    return tables


@pytest.fixture
async def torn(two_tables: list[LeaseTable], make_pool: MakePool) -> Pool:  # noqa: ARG001
    """A pool of two connections, each of which searches another of the two schemas first."""
    numbers = count()
    paths: dict[int, str] = {}

    async def set_path(connection: PooledConnection) -> None:
        # At every acquire, since the pool's reset undoes it.
        pid = connection.get_server_pid()
        if pid not in paths:
            paths[pid] = SCHEMAS[next(numbers) % 2]
        await connection.execute(f'SET search_path = "{paths[pid]}"')

    return await make_pool(min_size=2, max_size=2, setup=set_path)


async def path_of_next(pool: Pool) -> str:
    """Return the schema that the pool's next connection to be used searches."""
    # One that is still on its way back would be the next one then.
    await until(lambda: pool.get_idle_size() == pool.get_size())
    async with pool.acquire() as connection:
        return str(await connection.fetchval("SELECT current_schema()"))


@pytest.mark.parametrize("verb", ["acquire", "create", "verify"])
async def test_name_is_resolved_by_the_first_statement(torn: Pool, two_tables: list[LeaseTable], verb: str) -> None:
    """Whichever connection comes next, the table stays the one that the first statement found."""
    table = LeaseTable(torn)
    assert table.name == '"lease"'
    schema = await path_of_next(torn)
    if verb == "acquire":
        await (await acquire(table, "first")).release()
    else:
        await getattr(table, verb)()
    assert table.name == f'"{schema}"."lease"'
    mine, other = two_tables if schema == SCHEMAS[0] else reversed(two_tables)
    async with torn.acquire():
        # Not on the connection that resolved the name, where the pool would have given that one.
        held = await acquire(table, "k")
    for _ in range(2):
        async with torn.acquire():
            with pytest.raises(LeaseUnavailableError):
                await acquire(table, "k")
        await asyncio.sleep(0)
    assert await mine.get("k") is not None
    assert await other.get("k") is None
    await held.release()
    assert table.name == f'"{schema}"."lease"'


async def test_name_that_two_first_claims_look_up_at_once_leads_both_to_one_table(
    torn: Pool, two_tables: list[LeaseTable]
) -> None:
    """Of two first claims on two search_paths one has the key: what the quicker one found is the table of both."""
    for number in range(10):
        table = LeaseTable(torn)
        key = f"k{number}"
        results = await asyncio.gather(acquire(table, key), acquire(table, key), return_exceptions=True)
        for result in results:
            if isinstance(result, Lease):
                await result.release()
        assert sorted(type(result).__name__ for result in results) == ["Lease", "LeaseUnavailableError"]
        assert [await one.get(key) is not None for one in two_tables] == [one.name == table.name for one in two_tables]


async def test_name_of_a_pool_s_default_table_is_resolved_once_too(torn: Pool, two_tables: list[LeaseTable]) -> None:
    """Claims by the pool alone stay in one table for as long as one of them is alive."""
    first = await acquire(torn, "first")
    for number in range(6):
        async with torn.acquire():
            await (await acquire(torn, f"k{number}")).release()
        await (await acquire(torn, f"l{number}")).release()
    listed = [len(await table.leases()) for table in two_tables]
    assert sorted(listed) == [0, 13]
    await first.release()


async def test_name_that_is_not_resolved_yet_leads_the_release_where_the_claim_went(torn: Pool, dsn: str) -> None:
    """A lease that is released or entered as soon as it was acquired is released in its own table."""
    for number in range(10):
        table = LeaseTable(torn)
        await (await acquire(table, f"released-{number}")).release()
        table = LeaseTable(torn)
        async with lease(table, f"left-{number}"):
            pass
        await table.aclose()
    for schema in SCHEMAS:
        async with observing(dsn, f'"{schema}".lease') as observe:
            assert [row["key"] for row in await observe.rows() if row["released_at"] is None] == []


async def test_name_with_its_schema_is_not_looked_up(torn: Pool, two_tables: list[LeaseTable]) -> None:
    """schema= leaves nothing to any search_path, and may name a table that was made anew meanwhile."""
    table = LeaseTable(torn, schema="right")
    for _ in range(3):
        results = await asyncio.gather(acquire(table, "k"), acquire(table, "l"))
        for held in results:
            await held.release()
    assert await two_tables[0].leases() == []
    await torn.execute('DROP TABLE "right".lease')
    await table.create()
    await (await acquire(table, "k")).release()


async def test_name_stays_open_while_nothing_was_found(pool: Pool, observe: Observer) -> None:
    """A failed first statement settles nothing: the table may come to be in another schema."""
    await observe.connection.execute("CREATE SCHEMA later")
    table = LeaseTable(pool)
    with pytest.raises(LeaseTableError):
        await acquire(table, "k")
    assert table.name == '"lease"'
    await table.create()
    assert table.name == '"public"."lease"'
