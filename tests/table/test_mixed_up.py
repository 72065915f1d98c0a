"""Prepared statements that are gone, or are others than was meant, as behind a pooler that knows nothing of them."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseTable, LeaseTableError, acquire, lease, try_acquire
from asyncpg_lease.events import ReleaseFailed, RenewFailed
from tests.conftest import MakePool
from tests.support.inside import Statement, Statements
from tests.support.leasing import Recorder, warm
from tests.support.observe import Observer
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "k"
OURS = Statements.bound_to('"public"."lease"')
OTHERS = Statements.bound_to('"public"."other"')
# More than any statement of ours takes.
PARAMETERS = ", ".join(f"${number}::text" for number in range(1, 9))
SETTING = "asyncpg.create_pool(..., statement_cache_size=0)"


class Link:
    """The one connection of a pool, and what is done to the statements that are prepared on it."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def swap(self, ours: Statement, sql: str | None) -> str:
        """Put another statement in the place of one of ours, or none; return its name."""
        async with self._pool.acquire() as connection:
            name: str = await connection.fetchval(
                "SELECT name FROM pg_prepared_statements WHERE statement = $1", ours.sql
            )
            await connection.execute(f"DEALLOCATE {name}")
            if sql is not None:
                await connection.execute(f"PREPARE {name} AS {sql}")
        return name


@pytest.fixture
async def one(make_pool: MakePool) -> Pool:
    """A pool of one connection, on which all statements are prepared."""
    pool = await make_pool(max_size=1)
    await LeaseTable(pool).create()
    await LeaseTable(pool, "other").create()
    await warm(pool)
    async with lease(pool, "warm-up") as held:
        await held.renew()
    table = LeaseTable(pool, schema="public")
    await table.get("warm-up")
    await table.leases()
    return pool


@pytest.fixture
def link(one: Pool) -> Link:
    """The one connection of that pool."""
    return Link(one)


async def refusal(verb: Awaitable[object]) -> LeaseTableError:
    """Return the error that a verb ends with, which says what setting is missing."""
    with pytest.raises(LeaseTableError) as caught:
        await verb
    assert SETTING in caught.value.problem
    return caught.value


async def test_claim_answered_by_a_list_is_no_lease(one: Pool, link: Link, observe: Observer) -> None:
    """A list of keys takes the parameters of a claim and looks like a grant: of somebody else's live lease."""
    await observe.connection.execute(
        "INSERT INTO lease SELECT $1, 'other/1', 7, clock_timestamp(), clock_timestamp() + interval '60 s'", KEY
    )
    # Its third parameter bounds the rows: as a number of bytes it is what a ttl happens to be.
    await link.swap(OURS.claim, OURS.list.sql.replace("$3::text::bigint", "$3::bigint"))
    error = await refusal(acquire(one, KEY))
    assert f"in the claim of '{KEY}'" in "".join(traceback.format_exception(error)), "for which key"
    assert await observe.fence(KEY) == 7


async def test_claim_of_another_table_is_no_lease(one: Pool, link: Link, observe: Observer) -> None:
    """The claim of another table is granted, there; here somebody else may have the key."""
    await link.swap(OURS.claim, OTHERS.claim.sql)
    error = await refusal(try_acquire(one, KEY))
    assert "another statement" in str(error.__cause__)
    assert await observe.row(KEY) is None


async def test_renewal_in_another_table_is_no_loss(one: Pool, link: Link, travel: Travel) -> None:
    """The renewal of another table finds no row there; that is an error to be tried again, and the setting is named."""
    recorder = Recorder()
    async with lease(one, KEY, ttl=60, heartbeat=5, observer=recorder) as held:
        name = await link.swap(OURS.renew, OTHERS.renew.sql)
        await travel.until(lambda: len(recorder.of(RenewFailed)) >= 2, within=30)
        assert SETTING in recorder.of(RenewFailed)[0].error
        async with one.acquire() as connection:
            await connection.execute(f"DEALLOCATE {name}")
            await connection.execute(f"PREPARE {name} AS {OURS.renew.sql}")
        await held.renew()
        assert held.is_held
    assert held.lost is None


async def release_in_vain(held: Lease, travel: Travel) -> None:
    """Release, and let the time pass in which that is tried again and again."""
    releasing = asyncio.create_task(held.release())
    await travel.until(releasing.done, within=30)
    with suppress(LeaseTableError):
        await releasing


async def test_release_that_runs_in_another_table_ends_no_tenure_there(
    one: Pool, link: Link, observe: Observer, travel: Travel
) -> None:
    """One of our statements that runs in the place of another does nothing, were key, holder and fence the same."""
    recorder = Recorder()
    held = await acquire(one, KEY, ttl=5, holder="cron", observer=recorder)
    await observe.connection.execute("INSERT INTO other SELECT * FROM lease WHERE key = $1", KEY)
    await observe.connection.execute("UPDATE other SET expires_at = clock_timestamp() + interval '600 s'")
    await link.swap(OURS.release, OTHERS.release.sql)
    await release_in_vain(held, travel)
    await travel.until(lambda: recorder.of(ReleaseFailed), within=30)
    assert SETTING in recorder.of(ReleaseFailed)[0].error
    row = await observe.connection.fetchrow("SELECT released_at, expires_at > clock_timestamp() FROM other")
    assert tuple(row or ()) == (None, True)


async def test_claim_that_runs_in_another_table_claims_nothing_there(one: Pool, link: Link, observe: Observer) -> None:
    """No row is left behind in a table that nobody meant."""
    await link.swap(OURS.claim, OTHERS.claim.sql)
    await refusal(acquire(one, KEY))
    assert await observe.connection.fetch("SELECT FROM other WHERE key = $1", KEY) == []


NOTHING = {
    "get": "SELECT 'nothing' WHERE concat($1::text, $2::text) = ''",
    "list": "SELECT 'nothing' WHERE concat($1::text, $2::text, $3::text, $4::text, $5::text) = ''",
}


@pytest.mark.parametrize("name", ["get", "list"])
@pytest.mark.parametrize("there", ["another table", "no rows"])
async def test_question_that_is_answered_with_nothing_by_another_statement_is_not_answered(
    one: Pool, link: Link, name: str, there: str
) -> None:
    """An answer without rows is believed as little as one with another stamp."""
    other: Statement = getattr(OTHERS, name)
    await link.swap(getattr(OURS, name), other.sql if there == "another table" else NOTHING[name])
    table = LeaseTable(one, schema="public")
    error = await refusal(table.get(KEY) if name == "get" else table.leases())
    assert "another statement" in str(error.__cause__)


async def test_release_without_its_statement_names_the_setting(
    one: Pool, link: Link, observe: Observer, travel: Travel
) -> None:
    """A release whose statement is gone leaves the row to its ttl, and the log names the setting."""
    recorder = Recorder()
    held = await acquire(one, KEY, ttl=5, observer=recorder)
    await link.swap(OURS.release, None)
    await release_in_vain(held, travel)
    await travel.until(lambda: recorder.of(ReleaseFailed), within=30)
    assert SETTING in recorder.of(ReleaseFailed)[0].error
    await travel.until(lambda: observe.is_free(KEY), within=6)
    row = await observe.row(KEY)
    assert row is not None
    assert row["released_at"] is None


VERBS: dict[str, tuple[Statement, Callable[[Pool], Awaitable[object]]]] = {
    "acquire": (OURS.claim, lambda pool: acquire(pool, KEY)),
    "waiting": (OURS.claim, lambda pool: acquire(pool, KEY, wait=60)),
    "get": (OURS.get, lambda pool: LeaseTable(pool, schema="public").get(KEY)),
    "leases": (OURS.list, lambda pool: LeaseTable(pool, schema="public").leases(KEY)),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("put", "cause"),
    [
        (None, asyncpg.InvalidSQLStatementNameError),
        (
            "SELECT concat($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text)",
            asyncpg.ProtocolViolationError,
        ),
    ],
)
async def test_verb_without_its_statement_names_the_setting(
    one: Pool, link: Link, verb: str, put: str | None, cause: type[Exception]
) -> None:
    """A statement that is gone, or has other parameters, is told as the pool's setting that is missing."""
    statement, call = VERBS[verb]
    await link.swap(statement, put)
    error = await refusal(call(one))
    assert isinstance(error.__cause__, cause)


@pytest.mark.parametrize("answer", ["SELECT $1::text", "SELECT $1::text, 1, 1, 1, 1, 1, 1, 'stamp'"])
async def test_answer_with_other_columns_names_the_setting(one: Pool, link: Link, answer: str) -> None:
    """An answer of other columns is another statement's, whatever the driver or we make of them."""
    await link.swap(OURS.get, answer)
    error = await refusal(LeaseTable(one, schema="public").get(KEY))
    assert f"in the reading of '{KEY}'" in "".join(traceback.format_exception(error)), "for which key"


async def test_statement_under_a_name_that_is_taken_names_the_setting(one: Pool) -> None:
    """Where another process has prepared a statement under the driver's next name, ours is not prepared at all."""
    async with one.acquire() as connection:
        names = await connection.fetch("SELECT name FROM pg_prepared_statements")
        # The driver counts in hexadecimal, and its count is the process's.
        last = max(int(name.removeprefix("__asyncpg_stmt_").removesuffix("__"), 16) for (name,) in names)
        for number in range(last + 1, last + 100):
            with suppress(asyncpg.DuplicatePreparedStatementError):
                await connection.execute(f"PREPARE __asyncpg_stmt_{number:x}__ AS SELECT 1")
    error = await refusal(LeaseTable(one, "third", schema="public").create())
    assert isinstance(error.__cause__, asyncpg.DuplicatePreparedStatementError)
