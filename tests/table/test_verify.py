"""LeaseTable.verify(): the right shape passes, a wrong one is told with what mends it."""

from __future__ import annotations

import re

import pytest

from asyncpg_lease import LeaseTable, LeaseTableError, acquire
from tests.conftest import MakePool
from tests.support.observe import Observer
from tests.support.typing import Pool
from tests.table.roles import MakeRole

# A statement runs to the end of its problem, which ends with a comma, a semicolon, or all of it.
STATEMENT = re.compile(r'(?:ALTER|DROP|GRANT|CREATE) (?:"[^"]*"|[^";])*')

VALIDITY = "CONSTRAINT lease_validity CHECK (expires_at > acquired_at)"

# What was done to the right table, and what the message says of it.
WRONG = [
    ("ALTER TABLE lease DROP released_at", "ADD released_at timestamp with time zone"),
    ("ALTER TABLE lease DROP revoked_at", "ADD revoked_at timestamp with time zone"),
    ("ALTER TABLE lease DROP completed_tick", "ADD completed_tick timestamp with time zone"),
    ("ALTER TABLE lease DROP holder", "ADD holder text NOT NULL"),
    ("ALTER TABLE lease ALTER fence TYPE integer", "fence is integer"),
    ("ALTER TABLE lease ALTER holder TYPE varchar(20)", "holder is character varying"),
    ("ALTER TABLE lease ALTER expires_at TYPE timestamp", "expires_at is timestamp without time zone"),
    ("ALTER TABLE lease ALTER released_at TYPE date", "released_at is date"),
    ("ALTER TABLE lease ALTER holder DROP NOT NULL", "ALTER holder SET NOT NULL"),
    ("ALTER TABLE lease ALTER released_at SET NOT NULL", "ALTER released_at DROP NOT NULL"),
    ("ALTER TABLE lease ADD note text NOT NULL", 'ALTER "note" DROP NOT NULL'),
    ('ALTER TABLE lease ADD "a ""note""" text NOT NULL', 'ALTER "a ""note""" DROP NOT NULL'),
    ("ALTER TABLE lease DROP CONSTRAINT lease_pkey", "ADD PRIMARY KEY (key)"),
    ("ALTER TABLE lease ALTER key TYPE text", "COLLATE"),
    ("ALTER TABLE lease ALTER key TYPE varchar(99)", "key is character varying"),
    ("ALTER TABLE lease DROP CONSTRAINT lease_pkey, ADD PRIMARY KEY (key, holder)", "key"),
    ("CREATE INDEX lease_expires_at ON lease (expires_at)", "DROP INDEX"),
    ("CREATE UNIQUE INDEX lease_fence ON lease (fence)", "DROP INDEX"),
    ("ALTER TABLE lease ADD CONSTRAINT one_holder UNIQUE (holder)", "one_holder"),
    ("ALTER TABLE lease DROP CONSTRAINT lease_validity", "ADD CONSTRAINT lease_validity CHECK"),
    (
        "ALTER TABLE lease DROP CONSTRAINT lease_validity, ADD CONSTRAINT lease_validity CHECK (true)",
        "lease_validity",
    ),
    (f"ALTER TABLE lease DROP CONSTRAINT lease_validity, ADD {VALIDITY} NOT VALID", "lease_validity"),
    ("ALTER TABLE lease SET UNLOGGED", "SET LOGGED"),
    (
        "ALTER TABLE lease DROP released_at, DROP CONSTRAINT lease_validity, ALTER fence TYPE int",
        "ADD CONSTRAINT lease_validity",
    ),
]


def statements_in(error: LeaseTableError) -> list[str]:
    """Return the statements that the message says to run."""
    return [found.strip().rstrip(",") for found in STATEMENT.findall(error.problem)]


async def test_verify_of_the_right_table_passes(table: LeaseTable) -> None:
    """What create() makes, verify() approves, by its qualified name too."""
    await table.verify()
    assert table.name == '"public"."lease"'


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE lease ALTER fence SET DEFAULT 1000",
        "ALTER TABLE lease ALTER fence DROP DEFAULT",
        "ALTER TABLE lease ADD note text",
        "ALTER TABLE lease ADD note text NOT NULL DEFAULT ''",
        "ALTER TABLE lease ADD number bigint GENERATED ALWAYS AS IDENTITY",
        "ALTER TABLE lease ADD twice bigint GENERATED ALWAYS AS (fence * 2) STORED NOT NULL",
        "ALTER TABLE lease ADD note text NOT NULL; ALTER TABLE lease DROP note",
        "ALTER TABLE lease SET (fillfactor = 80)",
        "ALTER TABLE lease ADD CONSTRAINT short CHECK (length(key) < 2000)",
    ],
)
async def test_verify_of_a_table_with_more_than_it_needs_passes(
    table: LeaseTable, observe: Observer, change: str
) -> None:
    """A raised default of fence, and columns that fill themselves, are no harm: a lease works in it."""
    await observe.connection.execute(change)
    await table.verify()
    held = await acquire(table, "k")
    assert await observe.fence("k") == held.fence
    await held.release()


@pytest.mark.parametrize(("change", "told"), WRONG)
async def test_verify_of_a_wrong_table_tells_what_to_run(
    table: LeaseTable, observe: Observer, change: str, told: str
) -> None:
    """Each wrong shape has its own message, and running the statements that it names makes the table right."""
    await observe.connection.execute(change)
    with pytest.raises(LeaseTableError, match=re.escape(told)) as caught:
        await table.verify()
    for statement in statements_in(caught.value):
        await observe.connection.execute(statement)
    await table.verify()
    assert statements_in(caught.value) != []


async def test_verify_of_a_view_says_that_it_is_no_table(pool: Pool, observe: Observer) -> None:
    """What merely looks like the table is not one."""
    await LeaseTable(pool, "other").create()
    await observe.connection.execute("CREATE VIEW lease AS SELECT * FROM other")
    with pytest.raises(LeaseTableError, match="no ordinary table"):
        await LeaseTable(pool).verify()


async def test_verify_without_a_right_says_what_to_grant(
    table: LeaseTable, make_role: MakeRole, observe: Observer
) -> None:
    """Each right that is missing is named in a GRANT, after which the table is right and can be used."""
    role = await make_role("GRANT SELECT, INSERT ON lease TO {role}")
    mine = LeaseTable(role, schema="public")
    with pytest.raises(LeaseTableError, match="GRANT SELECT, INSERT, UPDATE ON") as caught:
        await mine.verify()
    for statement in statements_in(caught.value):
        await observe.connection.execute(statement)
    await mine.verify()
    held = await acquire(mine, "k")
    await held.release()
    await table.verify()


async def test_verify_resolves_the_name(make_pool: MakePool, observe: Observer) -> None:
    """verify() of an unqualified name settles where the table is, and says it in its message."""
    await observe.connection.execute("CREATE SCHEMA mine; CREATE TABLE mine.lease ()")
    table = LeaseTable(await make_pool(server_settings={"search_path": "mine"}))
    with pytest.raises(LeaseTableError, match=r'"mine"\."lease"'):
        await table.verify()
    assert table.name == '"mine"."lease"'
