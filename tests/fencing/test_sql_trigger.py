"""sql/fencing.sql: the trigger that refuses a lower fence on any table."""

from __future__ import annotations

import asyncpg
import pytest

from tests.fencing.test_sql_functions import STALE, functions, state_of
from tests.support.observe import Observer
from tests.support.typing import Connection

__all__ = ["functions"]

FENCED = (
    "CREATE TRIGGER fenced BEFORE INSERT OR UPDATE ON {} FOR EACH ROW EXECUTE FUNCTION lease_reject_stale_fence({})"
)


async def expect_refusal(connection: Connection, statement: str, *arguments: object) -> asyncpg.PostgresError:
    """Run a statement that the trigger must refuse, and return its error."""
    with pytest.raises(asyncpg.PostgresError) as caught:
        await connection.execute(statement, *arguments)
    assert state_of(caught.value) == STALE
    return caught.value


@pytest.fixture
async def fenced(observe: Observer) -> Connection:
    """A table whose rows have a fence, one row with fence 5."""
    await observe.connection.execute(
        "CREATE TABLE page (id int PRIMARY KEY, body text, last_fence bigint,"
        " length int GENERATED ALWAYS AS (length(body)) STORED);"
        + FENCED.format("page", "'last_fence', 'id'")
        + "; INSERT INTO page VALUES (1, 'five', 5)"
    )
    return observe.connection


async def test_trigger_refuses_a_lower_fence_and_no_other(fenced: Connection) -> None:
    """One tenure writes many times, a later one after it, an earlier one never again."""
    await fenced.execute("UPDATE page SET body = 'again', last_fence = 5")
    await fenced.execute("UPDATE page SET body = 'later', last_fence = 6")
    error = await expect_refusal(fenced, "UPDATE page SET body = 'stale', last_fence = 5")
    assert str(error).startswith("stale fence 5 for page: fence 6 has written already")
    assert error.detail == "Key (id)=(1)."
    (row,) = await fenced.fetch("SELECT body, last_fence, length FROM page")
    assert tuple(row) == ("later", 6, 5)


async def test_trigger_refuses_a_write_without_a_fence(fenced: Connection) -> None:
    """A null would let everybody in after it."""
    error = await expect_refusal(fenced, "UPDATE page SET last_fence = NULL")
    assert (str(error).splitlines()[0], error.hint) == (
        "no fence for page: last_fence is not set",
        "Set it to the fence of the lease.",
    )
    await expect_refusal(fenced, "INSERT INTO page VALUES (2, 'none', NULL)")
    await fenced.execute("ALTER TABLE page DISABLE TRIGGER fenced; UPDATE page SET last_fence = NULL")
    await fenced.execute("ALTER TABLE page ENABLE TRIGGER fenced; UPDATE page SET last_fence = 1")


async def test_trigger_with_key_columns_refuses_a_stale_upsert_and_copy(fenced: Connection) -> None:
    """Each way in passes the trigger: an upsert, a COPY, a new row beside an old one of the same key."""
    upsert = (
        "INSERT INTO page VALUES (1, $1, $2) ON CONFLICT (id) DO UPDATE"
        " SET body = excluded.body, last_fence = excluded.last_fence"
    )
    await expect_refusal(fenced, upsert, "stale", 4)
    await fenced.execute(upsert, "later", 6)
    with pytest.raises(asyncpg.PostgresError) as caught:
        await fenced.copy_records_to_table("page", records=[(1, "stale", 5)], columns=["id", "body", "last_fence"])
    assert state_of(caught.value) == STALE
    await fenced.copy_records_to_table("page", records=[(2, "new", 1)], columns=["id", "body", "last_fence"])
    rows = await fenced.fetch("SELECT id, last_fence FROM page ORDER BY id")
    assert [tuple(row) for row in rows] == [(1, 6), (2, 1)]


async def test_trigger_without_key_columns_refuses_a_stale_upsert(observe: Observer) -> None:
    """An upsert that meets its row is an update of it."""
    connection = observe.connection
    await connection.execute(
        "CREATE TABLE page (id int PRIMARY KEY, last_fence int);" + FENCED.format("page", "'last_fence'")
    )
    upsert = "INSERT INTO page VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET last_fence = excluded.last_fence"
    await connection.execute(upsert, 5)
    await expect_refusal(connection, upsert, 4)
    await connection.execute(upsert, 5)


async def test_trigger_on_a_history_refuses_a_new_row_of_a_stale_fence(observe: Observer) -> None:
    """Where rows are only added, the key columns say which of them belong together."""
    connection = observe.connection
    await connection.execute(
        'CREATE TABLE history ("the Key" text, part int, fence numeric);'
        + FENCED.format("history", "'fence', 'the Key', 'part'")
        + "; INSERT INTO history VALUES ('a', 1, 5), ('b', 1, 9), ('a', 2, 9)"
    )
    await expect_refusal(connection, "INSERT INTO history VALUES ('a', 1, 4)")
    await connection.execute("INSERT INTO history VALUES ('a', 1, 5), ('a', 1, 6)")
    await expect_refusal(connection, "INSERT INTO history VALUES ('a', 1, 5)")


async def test_trigger_on_a_partitioned_table_works_in_each_partition(observe: Observer) -> None:
    """A row that moves to another partition is a new row there."""
    connection = observe.connection
    await connection.execute(
        "CREATE TABLE page (id int, last_fence bigint, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        " CREATE TABLE low PARTITION OF page FOR VALUES FROM (0) TO (10);"
        " CREATE TABLE high PARTITION OF page FOR VALUES FROM (10) TO (20);"
        + FENCED.format("page", "'last_fence', 'id'")
        + "; INSERT INTO page VALUES (1, 5), (11, 5)"
    )
    await expect_refusal(connection, "UPDATE page SET last_fence = 4 WHERE id = 11")
    await expect_refusal(connection, "INSERT INTO page VALUES (1, 4)")
    await connection.execute("UPDATE page SET id = 12, last_fence = 6 WHERE id = 1")
    await expect_refusal(connection, "UPDATE page SET id = 2, last_fence = 5 WHERE id = 12")


async def test_trigger_passes_an_update_that_leaves_the_fence_alone(fenced: Connection) -> None:
    """It is the last writer's, as far as the trigger can tell: every writer has to set it."""
    await fenced.execute("UPDATE page SET body = 'anybody'")
    assert await fenced.fetchval("SELECT last_fence FROM page") == 5


async def test_trigger_that_is_told_a_wrong_column_says_so(observe: Observer) -> None:
    """No argument, no row to look at, and a column that there is not, are errors of the first write."""
    connection = observe.connection
    await connection.execute("CREATE TABLE page (id int);" + FENCED.format("page", ""))
    with pytest.raises(asyncpg.RaiseError, match=r"trigger fenced on page: .* takes the column of the fence"):
        await connection.execute("INSERT INTO page VALUES (1)")
    await connection.execute(
        "CREATE TRIGGER whole BEFORE UPDATE ON page EXECUTE FUNCTION lease_reject_stale_fence('id');"
        " CREATE TRIGGER gone BEFORE DELETE ON page FOR EACH ROW EXECUTE FUNCTION lease_reject_stale_fence('id');"
        " ALTER TABLE page DISABLE TRIGGER fenced; INSERT INTO page VALUES (1)"
    )
    with pytest.raises(asyncpg.RaiseError, match="trigger whole on page: it is for each row"):
        await connection.execute("UPDATE page SET id = 2")
    with pytest.raises(asyncpg.RaiseError, match=r"trigger gone on page: .* on INSERT or UPDATE"):
        await connection.execute("DELETE FROM page")
    await connection.execute("DROP TRIGGER fenced ON page;" + FENCED.format("page", "'missing'"))
    with pytest.raises(asyncpg.UndefinedColumnError, match="missing"):
        await connection.execute("INSERT INTO page VALUES (1)")


async def test_trigger_names_the_row_by_its_key_and_shows_nothing_else(observe: Observer) -> None:
    """The columns that it was given, or the primary key's: a row may be long, and is not for everybody's eyes."""
    connection = observe.connection
    await connection.execute(
        "CREATE TABLE page (secret text, site text, id int, last_fence bigint, PRIMARY KEY (site, id));"
        + FENCED.format("page", "'last_fence'")
        + "; INSERT INTO page VALUES ('s', 'a', 1, 5)"
    )
    error = await expect_refusal(connection, "UPDATE page SET last_fence = 4")
    assert error.detail == "Key (site, id)=(a, 1)."
    await connection.execute("ALTER TABLE page DROP CONSTRAINT page_pkey")
    error = await expect_refusal(connection, "UPDATE page SET last_fence = 4")
    assert error.detail == "Key ()=()."


async def test_trigger_works_under_any_search_path_of_the_writer(fenced: Connection) -> None:
    """It finds the table that it is on by number, not by name."""
    await fenced.execute("SET search_path = pg_catalog")
    error = await expect_refusal(fenced, "INSERT INTO public.page VALUES (1, 'stale', 4)")
    assert "page" in str(error)
