"""LeaseTable.prune(): what it deletes, what it spares, and that no fence falls by it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseTable, LeaseTableError, LeaseUnavailableError, Pruned, acquire
from tests.conftest import MakePool
from tests.floor.calls import DAY, ISOLATIONS, asleep, fill, slow_write, use
from tests.sql.calls import STATEMENTS, sessions
from tests.support.inside import ask
from tests.support.observe import Observer
from tests.support.typing import Connection
from tests.table.roles import MakeRole

KEY = "k"
ALL_RIGHTS = r'GRANT SELECT, INSERT, UPDATE, DELETE ON "public"\."lease" .*TO'


async def test_prune_deletes_what_has_been_free_that_long_and_nothing_else(
    table: LeaseTable, observe: Observer
) -> None:
    """It goes by how long ago a row ran out or was released, not by when its tenure began."""
    for key, free_for in (("long", 7201), ("crashed", 3601), ("short", 3590), ("now", 0)):
        held = await acquire(table, key, ttl=3600)
        if key == "crashed":
            await observe.expire(key)
        await held.release()
        await observe.shift(key, -free_for)
    await observe.connection.execute("UPDATE lease SET acquired_at = acquired_at - interval '1 year'")
    assert await table.prune(3600) == Pruned(deleted=2, kept=0, floor=1)
    assert [info.key for info in await table.leases()] == ["now", "short"]
    assert await table.prune(timedelta(0)) == Pruned(deleted=2, kept=0, floor=1)
    assert [row["key"] for row in await observe.rows()] == [""]


async def _resting(table: LeaseTable) -> Lease:
    held = await acquire(table, KEY, min_hold=3600)
    await held.release()
    return held


async def _live(table: LeaseTable) -> Lease:
    return await acquire(table, KEY)


@pytest.mark.parametrize("begin", [_resting, _live])
async def test_prune_spares_a_key_that_is_not_free(
    table: LeaseTable, observe: Observer, begin: Callable[[LeaseTable], Awaitable[Lease]]
) -> None:
    """A live row and one that rests under its min_hold stay, and are not touched, whatever their age."""
    held = await begin(table)
    await observe.connection.execute("UPDATE lease SET acquired_at = acquired_at - interval '9 years'")
    await use(table, "free")
    before = await observe.version(KEY)
    assert (await table.prune(0)).deleted == 1
    assert await observe.version(KEY) == before
    await held.release()


async def test_prune_spares_a_row_that_tells_what_was_completed(table: LeaseTable, observe: Observer) -> None:
    """A completed_tick says that a job was done; without it the job would be done again."""
    await use(table, KEY)
    await observe.connection.execute("UPDATE lease SET completed_tick = clock_timestamp() - interval '9 years'")
    await observe.shift(KEY, -DAY)
    assert await table.prune(0) == Pruned(deleted=0, kept=0, floor=0)
    assert await observe.row(KEY) is not None


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_key_that_was_pruned_starts_above_all_its_fences(
    table: LeaseTable,  # noqa: ARG001
    make_pool: MakePool,
    isolation: str,
) -> None:
    """A writer of a pruned tenure is still older than every later one, under every default isolation."""
    pool = await make_pool(server_settings={"default_transaction_isolation": isolation})
    steered = LeaseTable(pool)
    assert await use(steered, KEY, 5) == 5
    assert await steered.prune(0) == Pruned(deleted=1, kept=0, floor=5)
    assert await use(steered, KEY, 2) == 7
    assert await steered.prune(0) == Pruned(deleted=1, kept=0, floor=7)
    assert await use(steered, KEY) == 8


async def test_floor_is_never_lowered_by_a_prune_of_lower_fences(table: LeaseTable, observe: Observer) -> None:
    """What was pruned first may have had the higher fence."""
    await use(table, "high", 9)
    await use(table, "low", 2)
    await observe.shift("high", -DAY)
    assert (await table.prune(3600)).floor == 9
    assert await table.prune(0) == Pruned(deleted=1, kept=0, floor=9)
    assert await use(table, "low") == 10
    assert await use(table, "never seen") == 10


async def test_prune_of_nothing_writes_nothing(table: LeaseTable, observe: Observer) -> None:
    """Where there is nothing to delete, an empty table stays empty and a full one as it is."""
    assert await table.prune(0) == Pruned(deleted=0, kept=0, floor=0)
    assert await observe.rows() == []
    held = await acquire(table, KEY)
    assert await table.prune(0) == Pruned(deleted=0, kept=0, floor=0)
    assert [row["key"] for row in await observe.rows()] == [KEY]
    await held.release()


async def test_reserved_row_is_no_key(table: LeaseTable, observe: Observer) -> None:
    """The row that keeps the floor is not listed, read, claimed or pruned, and an operator's own DELETE spares it."""
    await use(table, KEY, 3)
    await table.prune(0)
    await use(table, KEY)
    assert [info.key for info in await table.leases()] == [KEY]
    with pytest.raises(ValueError, match="key must not be empty"):
        await table.get("")
    with pytest.raises(ValueError, match="key must not be empty"):
        await acquire(table, "")
    await observe.connection.execute("UPDATE lease SET acquired_at = acquired_at - interval '9 years'")
    assert (await table.prune(0)).floor == 4
    await observe.connection.execute("DELETE FROM lease WHERE expires_at < now()")
    row = await observe.row("")
    assert row is not None
    assert (row["holder"], row["fence"]) == ("floor", 4)
    await table.verify()


async def test_floor_that_an_operator_laid_is_used_and_kept(table: LeaseTable, observe: Observer) -> None:
    """A reserved row of any holder and any expiry is the floor: it is neither pruned nor counted as prunable."""
    await observe.connection.execute("INSERT INTO lease VALUES ('', 'dba', 50, '2020-01-01', '2020-01-02')")
    assert await table.prune(0) == Pruned(deleted=0, kept=0, floor=50)
    assert await use(table, KEY) == 51
    assert await table.prune(0) == Pruned(deleted=1, kept=0, floor=51)
    assert await table.advance_fences(9) == 60
    row = await observe.row("")
    assert row is not None
    assert (row["holder"], row["fence"]) == ("dba", 60)


async def test_prune_statement_spares_fences_above_the_floor(table: LeaseTable, observe: Observer) -> None:
    """The statement itself looks at the floor: a row that changed hands since the count stays for the next prune."""
    await fill(observe.connection, 3)
    await table.prune(0)
    await use(table, "low")
    await use(table, "high", 3)
    await observe.connection.execute("UPDATE lease SET fence = 2 WHERE key = ''")
    assert await ask(observe.connection, STATEMENTS.prune, "", 0.0, "10") == [(1, "low")]
    await observe.connection.execute("DELETE FROM lease WHERE key = ''")
    assert await ask(observe.connection, STATEMENTS.prune, "", 0.0, "10") == [(0, None)]
    assert await observe.fence("high") == 4


@pytest.mark.parametrize("rows", [0, 1, 999, 1000, 1001, 2000])
async def test_prune_of_any_number_of_rows_deletes_all(table: LeaseTable, observe: Observer, rows: int) -> None:
    """No row is left over where batches meet."""
    await fill(observe.connection, rows)
    assert (await table.prune(3600)).deleted == rows
    assert await table.leases() == []


@pytest.mark.slow("a prune looks again after real time")
async def test_prune_in_another_schema_and_under_any_name_keeps_to_its_table(
    make_pool: MakePool, observe: Observer
) -> None:
    """Quotes and dots in a name are the name's; another table's rows are not touched, nor its claims waited for."""
    pool = await make_pool(max_size=1)
    table = LeaseTable(pool, "le'a\"se.x", schema="My Jobs")
    other = LeaseTable(pool, "lease", schema="other")
    for one in (table, other):
        await one.create()
        await use(one, KEY, 2)
    async with sessions(observe.dsn, 1) as (slow,), asleep(observe, slow, slow_write("other.lease")):
        async with asyncio.timeout(10):
            assert await table.prune(0) == Pruned(deleted=1, kept=0, floor=2)
        pruning = asyncio.create_task(other.prune(0))
        await asyncio.wait([pruning], timeout=0.8)
        assert pruning.cancel(), "it is done"
        await asyncio.wait([pruning])
    assert await other.leases() != []
    assert await table.advance_fences(10) == 12
    assert (await use(table, KEY), await use(other, KEY)) == (13, 3)
    assert await observe.connection.fetchval("SELECT count(*) FROM other.lease WHERE key <> ''") == 1


async def test_prune_without_the_right_to_delete_says_what_to_run(
    table: LeaseTable,
    observe: Observer,
    make_role: MakeRole,
) -> None:
    """A role that may lease may not delete by that: the error has the GRANT, and nothing is written."""
    await use(table, KEY, 3)
    pool = await make_role("GRANT SELECT, INSERT, UPDATE ON lease TO {role}")
    weak = LeaseTable(pool)
    await weak.verify()
    for older_than in (0, DAY):
        with pytest.raises(LeaseTableError, match=ALL_RIGHTS) as caught:
            await weak.prune(older_than)
        assert isinstance(caught.value.__cause__, asyncpg.InsufficientPrivilegeError)
    assert [(row["key"], row["fence"]) for row in await observe.rows()] == [(KEY, 3)]
    await observe.connection.execute(f"GRANT DELETE ON lease TO {await pool.fetchval('SELECT current_user')}")
    assert await weak.prune(0) == Pruned(deleted=1, kept=0, floor=3)


async def test_steering_needs_rights_on_the_columns_alone_and_delete(
    table: LeaseTable, observe: Observer, make_role: MakeRole
) -> None:
    """What is enough for leases is enough for the floor too, but for deleting."""
    await use(table, KEY, 3)
    columns = "key, holder, fence, acquired_at, expires_at, released_at, revoked_at, completed_tick"
    rights = ", ".join(f"{right} ({columns})" for right in ("SELECT", "INSERT", "UPDATE"))
    steered = LeaseTable(await make_role(f"GRANT {rights}, DELETE ON lease TO {{role}}"))
    assert await steered.prune(0) == Pruned(deleted=1, kept=0, floor=3)
    assert await use(steered, KEY) == 4
    assert await steered.advance_fences(5) == 9
    assert await observe.fence(KEY) == 9


@pytest.mark.parametrize("granted", ["SELECT", "SELECT, DELETE", "SELECT, INSERT, DELETE", "INSERT, UPDATE, DELETE"])
async def test_prune_without_whichever_right_names_all_that_it_needs(
    table: LeaseTable, observe: Observer, make_role: MakeRole, granted: str
) -> None:
    """One GRANT is enough, whichever right was missed first, and the rows stay as they are."""
    await use(table, KEY, 3)
    weak = LeaseTable(await make_role(f"GRANT {granted} ON lease TO {{role}}"))
    with pytest.raises(LeaseTableError, match=ALL_RIGHTS):
        await weak.prune(0)
    assert await observe.fence(KEY) == 3


async def test_advance_without_the_right_to_update_says_what_to_run(
    table: LeaseTable, observe: Observer, make_role: MakeRole
) -> None:
    """A role that only reads is told what it lacks, and the rows stay as they are; DELETE is not needed."""
    await use(table, KEY, 3)
    weak = LeaseTable(await make_role("GRANT SELECT ON lease TO {role}"))
    with pytest.raises(LeaseTableError, match=r'GRANT SELECT, INSERT, UPDATE ON "public"\."lease"'):
        await weak.advance_fences(1)
    assert await observe.fence(KEY) == 3


@pytest.mark.parametrize("verb", ["prune", "advance_fences"])
async def test_steering_a_read_only_server_fails_as_the_server_says(
    table: LeaseTable, observe: Observer, make_pool: MakePool, verb: str
) -> None:
    """A standby's refusal is the driver's own error."""
    await use(table, KEY)
    await observe.shift(KEY, -DAY)
    pool = await make_pool(server_settings={"default_transaction_read_only": "on"})
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await getattr(LeaseTable(pool), verb)(1)
    assert await observe.fence(KEY) == 1


@pytest.mark.parametrize("verb", ["prune", "advance_fences"])
async def test_steering_without_a_table_says_how_to_create_it(make_pool: MakePool, verb: str) -> None:
    """There is nothing to prune or to lift before create()."""
    with pytest.raises(LeaseTableError, match="no such table"):
        await getattr(LeaseTable(await make_pool()), verb)(1)


@pytest.mark.parametrize("age", [-1, -0.001, float("nan"), float("inf"), 36501 * DAY, True, "1", None])
async def test_prune_of_an_age_that_is_none_is_refused(table: LeaseTable, observe: Observer, age: object) -> None:
    """0 s to a hundred years, before anything is sent."""
    await use(table, KEY)
    with pytest.raises((TypeError, ValueError), match="older_than must be"):
        await table.prune(age)  # type: ignore[arg-type]
    assert await observe.fence(KEY) == 1


async def test_prune_of_a_hundred_years_is_taken(table: LeaseTable, observe: Observer) -> None:
    """The longest age means what it says."""
    await use(table, KEY)
    assert (await table.prune(timedelta(days=36500))).deleted == 0
    await observe.shift(KEY, -36501 * DAY)
    assert (await table.prune(timedelta(days=36500))).deleted == 1


async def test_prune_is_one_line_in_the_log(table: LeaseTable, caplog: pytest.LogCaptureFixture) -> None:
    """Its counts are in the text and in the record's fields."""
    await use(table, KEY, 3)
    with caplog.at_level(logging.INFO, "asyncpg_lease"):
        caplog.clear()
        await table.prune(0)
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("INFO", "asyncpg_lease")
    assert record.getMessage() == 'leases pruned: deleted=1 kept=0 floor=3 table="public"."lease"'
    said = {name: value for name, value in vars(record).items() if name.startswith("lease_")}
    assert said == {"lease_deleted": 1, "lease_kept": 0, "lease_floor": 3, "lease_table": '"public"."lease"'}


async def test_claim_of_a_pruned_key_is_refused_or_granted_as_ever(table: LeaseTable, session: Connection) -> None:
    """After a prune a key is as free as before it, for one holder at a time."""
    await use(table, KEY)
    await table.prune(0)
    held = await acquire(table, KEY)
    with pytest.raises(LeaseUnavailableError):
        await acquire(table, KEY)
    await held.confirm()
    assert held.fence == 2
    await held.release()
    assert await session.fetchval("SELECT count(*) FROM lease") == 2
