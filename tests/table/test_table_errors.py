"""LeaseTableError: what is wrong with the table, what to run, and the driver's error behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, LeaseTableError, acquire, lease, try_acquire
from tests.conftest import MakePool
from tests.support.observe import Observer
from tests.support.typing import Pool
from tests.table.roles import MakeRole

Verb: TypeAlias = Callable[[LeaseTable], Awaitable[object]]


async def enter(table: LeaseTable) -> None:
    """Enter a block."""
    async with lease(table, "k"):
        pytest.fail("entered")


VERBS: dict[str, Verb] = {
    "acquire": lambda table: acquire(table, "k"),
    "acquire and wait": lambda table: acquire(table, "k", wait=30),
    "try_acquire": lambda table: try_acquire(table, "k"),
    "lease": enter,
    "get": lambda table: table.get("k"),
    "leases": lambda table: table.leases(),
    "revoke": lambda table: table.revoke("k"),
}
every_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


async def refusal(verb: Verb, table: LeaseTable) -> LeaseTableError:
    """Return the error that a verb ends with."""
    with pytest.raises(LeaseTableError) as caught:
        await verb(table)
    return caught.value


@every_verb
async def test_error_without_a_table_says_to_create_it(pool: Pool, verb: Verb) -> None:
    """Every verb on a table that is not there names it and create(), with the driver's error as the cause."""
    error = await refusal(verb, LeaseTable(pool, "missing"))
    assert error.table == '"missing"'
    assert "run `await LeaseTable(pool, 'missing').create()` once at start-up" in error.problem
    assert isinstance(error.__cause__, asyncpg.UndefinedTableError)


@every_verb
async def test_error_without_a_schema_says_to_create_it(pool: Pool, verb: Verb) -> None:
    """A schema that is not there is the same to every verb: create() makes both."""
    error = await refusal(verb, LeaseTable(pool, schema="missing"))
    assert error.table == '"missing"."lease"'
    assert "run `await LeaseTable(pool, schema='missing').create()` once at start-up" in error.problem
    assert isinstance(error.__cause__, asyncpg.PostgresError)


async def test_error_of_verify_without_a_table_says_to_create_it(pool: Pool) -> None:
    """verify() finds no table by asking, and says what the others say."""
    error = await refusal(LeaseTable.verify, LeaseTable(pool))
    assert "`await LeaseTable(pool).create()`" in error.problem
    assert "asyncpg_lease/sql/table.sql in a migration" in error.problem


@every_verb
async def test_error_without_a_table_of_a_dotted_name_says_to_pass_the_schema(pool: Pool, verb: Verb) -> None:
    """A dot in the name is part of the name; whoever meant a schema is told how to say so."""
    error = await refusal(verb, LeaseTable(pool, "app.lease"))
    assert error.table == '"app.lease"'
    assert "for table lease in schema app pass schema='app'" in error.problem


@every_verb
async def test_error_without_a_right_says_what_to_grant(
    table: LeaseTable, make_role: MakeRole, observe: Observer, verb: Verb
) -> None:
    """A role without rights is told the GRANT by every verb, and the driver's error is the cause."""
    role = await make_role()
    error = await refusal(verb, LeaseTable(role, schema="public"))
    assert 'GRANT SELECT, INSERT, UPDATE ON "public"."lease"' in error.problem
    assert isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError)
    user = await role.fetchval("SELECT current_user")
    await observe.connection.execute(f"GRANT SELECT, INSERT, UPDATE ON {table.name} TO {user}")
    held = await acquire(LeaseTable(role, schema="public"), "k")
    assert held.fence == 1
    await held.release()


async def test_error_without_the_right_to_update_says_what_to_grant(table: LeaseTable, make_role: MakeRole) -> None:
    """Reading alone suffices to look, and not to acquire."""
    role = await make_role("GRANT SELECT ON lease TO {role}")
    mine = LeaseTable(role)
    assert await mine.leases() == []
    assert "GRANT" in (await refusal(VERBS["acquire"], mine)).problem
    assert await table.leases() == []


@every_verb
async def test_error_without_a_right_to_the_schema_says_what_to_grant(
    make_role: MakeRole, pool: Pool, verb: Verb
) -> None:
    """A role that may not enter the schema is told to be let in."""
    await LeaseTable(pool, schema="closed").create()
    role = await make_role("GRANT SELECT, INSERT, UPDATE ON closed.lease TO {role}")
    error = await refusal(verb, LeaseTable(role, schema="closed"))
    assert 'GRANT USAGE ON SCHEMA "closed"' in error.problem
    assert isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError)


@pytest.mark.parametrize("schema", ["public", None, "new"])
async def test_error_without_a_right_to_create_says_who_should(make_role: MakeRole, schema: str | None) -> None:
    """create() by a role that may not says to have another role run it, not to grant what does not help."""
    table = LeaseTable(await make_role(), schema=schema)
    error = await refusal(LeaseTable.create, table)
    assert "permission denied" in error.problem
    assert "have a role that may create it run `await LeaseTable(pool" in error.problem
    assert "GRANT SELECT" not in error.problem
    assert isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE lease DROP released_at",
        "ALTER TABLE lease RENAME fence TO token",
        "ALTER TABLE lease ALTER expires_at TYPE text USING ''",
        "ALTER TABLE lease ALTER key TYPE integer USING 0",
    ],
)
async def test_error_of_another_shape_says_how_to_find_out_more(
    table: LeaseTable, observe: Observer, change: str
) -> None:
    """A table of another shape is told apart from none, and verify() is named."""
    await observe.connection.execute(f"ALTER TABLE lease DROP CONSTRAINT lease_validity; {change}")
    error = await refusal(VERBS["acquire"], table)
    assert "verify()" in error.problem
    assert isinstance(error.__cause__, asyncpg.PostgresError)
    await refusal(LeaseTable.verify, table)


async def test_error_while_waiting_is_not_waited_out(pool: Pool) -> None:
    """No table is no passing trouble: a waiting acquire ends with it at once."""
    error = await refusal(VERBS["acquire and wait"], LeaseTable(pool))
    assert error.table == '"lease"'


async def test_table_that_was_dropped_and_made_anew_serves_again(table: LeaseTable, observe: Observer) -> None:
    """After the error about a dropped table, create() is all that is needed."""
    await (await acquire(table, "k")).release()
    await observe.connection.execute("DROP TABLE lease")
    await refusal(VERBS["acquire"], table)
    await table.create()
    held = await acquire(table, "k")
    assert held.fence == 1
    await held.release()


class Nameless(asyncpg.Record):
    """A row that is read by position only."""

    def __getitem__(self, name: Any) -> Any:  # noqa: ANN401
        """Refuse a name."""
        if isinstance(name, str):
            raise KeyError(name)
        return super().__getitem__(name)


async def set_codecs(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Make texts in brackets of whatever the library's statements may come upon."""
    for name in ("timestamptz", "numeric", "interval", "bool", "oid"):
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=str, decoder=lambda text: f"<{text}>", format="text"
        )


# Not both at once: before 0.32 asyncpg itself reads the pool's records by name when it sets a codec.
@pytest.mark.parametrize("option", [{"record_class": Nameless}, {"init": set_codecs}], ids=min)
async def test_table_works_whatever_a_pool_makes_of_its_rows(
    make_pool: MakePool, table: LeaseTable, option: dict[str, Any]
) -> None:
    """A record class or codecs of the application's own change nothing."""
    pool = await make_pool(**option)
    other = LeaseTable(pool)
    async with lease(other, "k", ttl=5) as held:
        await held.renew()
        await held.confirm()
        info, (listed,) = await other.get("k"), await other.leases()
        assert info is not None
        assert (info.holder, info.fence, info.expires_at) == (held.holder, 1, listed.expires_at)
    assert other.name == table.name
