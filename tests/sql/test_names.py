"""Any name of a table and a schema is safe: a lease lives its whole life in it."""

from __future__ import annotations

import pytest

from asyncpg_lease import LeaseTable, LeaseUnavailableError, acquire
from tests.support.inside import quote_name
from tests.support.observe import observing
from tests.support.typing import Pool

NAMES = [
    "lease",
    'a"b',
    '"',
    "x'y",
    "my lease table",
    "lease.lease",
    "lease-lease",
    "LEASE",
    "select",
    "ünïcödé→😀",
    "n" * 63,
    "é" * 31,
    r"\g<0>\1$1 %s {}",
    '"; DROP TABLE lease; --',
    "-- lease",
    "new\nline",
]


async def live(table: LeaseTable, key: str) -> None:
    """Create, verify, acquire, renew, verify, list, refuse, release and acquire again."""
    await table.create()
    await table.create()
    await table.verify()
    held = await acquire(table, key)
    async with held:
        await held.renew()
        await held.confirm()
        with pytest.raises(LeaseUnavailableError):
            await acquire(table, key)
        assert [info.key for info in await table.leases()] == [key]
        info = await table.get(key)
        assert info is not None
        assert (info.holder, info.fence, info.state) == (held.holder, 1, "held")
    again = await acquire(table, key)
    assert again.fence == 2
    await again.release()


async def made(pool: Pool) -> list[tuple[str, str]]:
    """Return schema and name of each table there is."""
    records = await pool.fetch(
        "SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE relkind = 'r' AND nspname <> 'information_schema' AND nspname NOT LIKE 'pg\\_%'"
    )
    return [(record[0], record[1]) for record in records]


@pytest.mark.parametrize("name", NAMES)
async def test_name_of_a_table_is_safe_whatever_it_is(pool: Pool, dsn: str, name: str) -> None:
    """A table of each name is made under exactly this name, and holds a lease."""
    table = LeaseTable(pool, name)
    await live(table, "lease")
    assert table.name == quote_name("public", name)
    async with observing(dsn, table.name) as observe:
        assert await observe.fence("lease") == 2
    assert await made(pool) == [("public", name)]


@pytest.mark.parametrize(
    "name", ['a"b', "LEASE", "ünïcödé→😀", "n" * 63, r"\g<0>\1$1 %s {}", '"; DROP TABLE lease; --']
)
async def test_name_of_a_schema_is_safe_whatever_it_is(pool: Pool, name: str) -> None:
    """A schema of each name is made with the table in it, and nothing is made anywhere else."""
    table = LeaseTable(pool, name, schema=name)
    await live(table, name)
    assert table.name == quote_name(name, name)
    assert await made(pool) == [(name, name)]


async def test_tables_of_two_names_know_nothing_of_each_other(pool: Pool) -> None:
    """One key can be held in two tables at once: the table is part of what is leased."""
    tables = [LeaseTable(pool), LeaseTable(pool, "Lease"), LeaseTable(pool, "lease", schema="other")]
    for table in tables:
        await table.create()
    held = [await acquire(table, "k") for table in tables]
    assert [one.fence for one in held] == [1, 1, 1]
    for one in held:
        await one.release()
