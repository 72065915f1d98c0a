"""sql/fencing.sql: the functions for users' own statements and tables."""

from __future__ import annotations

import re
from importlib.resources import files

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseTable, acquire, lease
from tests.fencing.writing import HARMS, ISOLATIONS, KEY, SNAPSHOT_ISOLATIONS, is_shut, run_out_while_waited
from tests.support.observe import Observer
from tests.support.typing import Connection, Pool

SQL = files("asyncpg_lease").joinpath("sql/fencing.sql").read_text()
ASSERT = "SELECT lease_assert_held($1, $2, $3)"
NOT_HELD, STALE = "AL001", "AL002"


@pytest.fixture(autouse=True)
async def functions(journal: None, observe: Observer) -> None:  # noqa: ARG001 - the lease table is there
    """Both functions, installed as a migration would."""
    await observe.connection.execute(SQL)


def state_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of a driver's error."""
    return getattr(error, "sqlstate", None)


# lease_assert_held -------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_assertion_finds_a_table_of_another_name_where_the_file_says_so(
    pool: Pool, observe: Observer, isolation: str
) -> None:
    """The name after FROM and INTO is the lease table's."""
    table = LeaseTable(pool, "jobs", schema="public")
    await table.create()
    await observe.connection.execute(re.sub(r"\b(FROM|INTO) lease\b", r"\1 jobs", SQL))
    held = await acquire(table, KEY)
    async with observe.connection.transaction(isolation=isolation):  # type: ignore[arg-type]
        await observe.connection.execute(ASSERT, KEY, held.holder, held.fence)
    await held.release()
    with pytest.raises(asyncpg.PostgresError, match="is not held") as caught:
        await observe.connection.execute(ASSERT, KEY, held.holder, held.fence)
    assert state_of(caught.value) == NOT_HELD


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_assertion_of_a_live_tenure_passes_and_keeps_the_successor_out(
    pool: Pool, connection: Connection, observe: Observer, isolation: str
) -> None:
    """It is the guard in SQL, until the end of the transaction."""
    held = await acquire(pool, KEY, ttl=30)
    async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
        await connection.execute(ASSERT, KEY, held.holder, held.fence)
        await connection.execute(ASSERT, KEY, held.holder, held.fence)
        await observe.expire(KEY)
        assert await is_shut(pool)
    assert not await is_shut(pool)
    await held.release()


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("harm", HARMS)
async def test_assertion_of_a_tenure_that_is_over_fails(
    pool: Pool, connection: Connection, observe: Observer, harm: str, isolation: str
) -> None:
    """The SQLSTATE tells it from every other error; the message has the tenure, and the detail what the row has."""
    act, reason, taken_by = HARMS[harm]
    held = await acquire(pool, KEY, ttl=30)
    await act(observe)
    row = await observe.row(KEY)
    with pytest.raises(asyncpg.PostgresError) as caught:
        async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
            await connection.execute(ASSERT, KEY, held.holder, held.fence)
    assert state_of(caught.value) == NOT_HELD
    assert str(caught.value).startswith(f"lease 'job' of '{held.holder}' with fence 1 is not held")
    holder = "NULL" if reason == "deleted" else f"'{taken_by or held.holder}'"
    fence = "none" if row is None else row["fence"]
    assert caught.value.detail == f"The row has holder {holder} and fence {fence}."
    # What it tried with a row that was not there is undone.
    assert await observe.row(KEY) == row
    await held.release()


@pytest.mark.parametrize(
    "arguments",
    [(None, "h", 1), (KEY, None, 1), (KEY, "h", None), (KEY, "another", 1), (KEY, "h", 7), ("never", "h", 1)],
)
async def test_assertion_of_what_is_no_tenure_fails(
    connection: Connection, pool: Pool, arguments: tuple[object, ...]
) -> None:
    """A null in place of the key, the holder or the fence is no tenure either."""
    states = {}
    async with lease(pool, KEY, holder="h"):
        for isolation in ISOLATIONS:
            with pytest.raises(asyncpg.PostgresError) as caught:
                async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
                    await connection.execute(ASSERT, *arguments)
            states[isolation] = state_of(caught.value)
    assert states == dict.fromkeys(ISOLATIONS, NOT_HELD)


@pytest.mark.parametrize("isolation", SNAPSHOT_ISOLATIONS)
@pytest.mark.parametrize("change", ["renewal", "release", "take-over", "deletion", "first claim", "expiry in it alone"])
async def test_assertion_in_an_old_snapshot_fails_as_a_conflict(
    pool: Pool, connection: Connection, observe: Observer, isolation: str, change: str
) -> None:
    """What changed since the snapshot is a serialization failure: neither a pass, nor a loss."""
    held = None if change == "first claim" else await acquire(pool, KEY, ttl=30)
    if change == "expiry in it alone":
        await observe.shift(KEY, -31)
    with pytest.raises(asyncpg.SerializationError):
        async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
            await connection.fetch("SELECT 1")
            held = held or await acquire(pool, KEY, ttl=30)
            if change == "renewal":
                await held.renew()
            elif change == "release":
                await observe.connection.execute("UPDATE lease SET released_at = clock_timestamp()")
            elif change == "take-over":
                await observe.hand_over(KEY)
            elif change == "deletion":
                await observe.connection.execute("DELETE FROM lease")
            elif change == "expiry in it alone":
                # As if it had run out in the snapshot only after it was renewed.
                await observe.shift(KEY, 31)
                await held.renew()
            await connection.execute(ASSERT, KEY, held.holder, held.fence)
    assert held is not None
    await held.release()


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_assertion_that_waited_past_the_expiry_fails(
    pool: Pool, connection: Connection, observe: Observer, isolation: str
) -> None:
    """What was live before the wait for a lock may have run out after it."""

    async def guarded(held: Lease) -> None:
        async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
            await connection.execute(ASSERT, KEY, held.holder, held.fence)

    held, task = await run_out_while_waited(pool, observe, guarded)
    with pytest.raises(asyncpg.PostgresError) as caught:
        await task
    assert state_of(caught.value) == NOT_HELD
    await held.release()


async def test_assertion_serves_in_a_function_of_ones_own(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """A function that writes can begin with it; what it had written before is rolled back with it."""
    await observe.connection.execute(
        "CREATE FUNCTION file_report(key text, holder text, fence bigint) RETURNS void LANGUAGE plpgsql AS $$"
        " BEGIN INSERT INTO journal VALUES (holder); PERFORM lease_assert_held(key, holder, fence); END $$"
    )
    held = await acquire(pool, KEY)
    call = "SELECT file_report($1, $2, $3)"
    await connection.execute(call, KEY, held.holder, held.fence)
    await held.release()
    with pytest.raises(asyncpg.PostgresError) as caught:
        await connection.execute(call, KEY, held.holder, held.fence)
    assert state_of(caught.value) == NOT_HELD
    assert await observe.connection.fetchval("SELECT count(*) FROM journal") == 1


async def test_functions_find_the_table_where_they_were_made(connection: Connection, observe: Observer) -> None:
    """The search_path of their making is theirs: that of whoever calls leads nowhere else."""
    await observe.connection.execute(
        "CREATE SCHEMA jobs; CREATE TABLE jobs.lease (LIKE public.lease INCLUDING ALL);"
        " INSERT INTO jobs.lease VALUES ('job', 'h', 3, now(), 'infinity');"
        f" SET search_path = jobs; {SQL}"
    )
    states = {}
    for path in ("public", "pg_catalog", "jobs"):
        await connection.execute(f"SET search_path = {path}")
        await connection.execute("SELECT jobs.lease_assert_held('job', 'h', 3)")
        with pytest.raises(asyncpg.PostgresError) as caught:
            await connection.execute("SELECT public.lease_assert_held('job', 'h', 3)")
        states[path] = state_of(caught.value)
    assert states == dict.fromkeys(("public", "pg_catalog", "jobs"), NOT_HELD)
