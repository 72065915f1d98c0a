"""Roles with few rights, and with settings of their own."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from asyncpg_lease import LeaseInfo, LeaseTable, LeaseTableError, acquire, lease
from asyncpg_lease.events import Lost, Renewed, RenewFailed
from tests.conftest import MakePool
from tests.pools.life import expect_a_whole_life
from tests.pools.roles import MakeLogin
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer

MINIMUM = "GRANT SELECT, INSERT, UPDATE ON lease TO {role}"

# The columns that the statements read, fill in, and change or lock.
COLUMNS = """
GRANT SELECT (key, holder, fence, acquired_at, expires_at, released_at, revoked_at),
    INSERT (key, holder, fence, acquired_at, expires_at),
    UPDATE (holder, fence, acquired_at, expires_at, released_at, revoked_at)
    ON lease TO {role}
"""


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_role_with_three_rights_on_the_table_and_no_other_leads_a_whole_life(
    make_pool: MakePool, make_login: MakeLogin, observe: Observer
) -> None:
    """SELECT, INSERT and UPDATE on the table are enough for everything, create() and verify() included."""
    pool = await make_pool(await make_login(MINIMUM))
    rights = await pool.fetchrow(
        "SELECT has_schema_privilege('public', 'CREATE'), has_database_privilege(current_database(), 'CREATE'),"
        " has_database_privilege(current_database(), 'TEMP'), has_table_privilege('lease', 'DELETE'),"
        " has_table_privilege('lease', 'REFERENCES')"
    )
    assert tuple(rights or ()) == (False,) * 5
    await expect_a_whole_life(LeaseTable(pool, poll=0.05), observe)


@pytest.mark.usefixtures("table")
async def test_role_with_rights_on_columns_can_lease_and_is_told_by_verify_what_is_usual(
    make_pool: MakePool, make_login: MakeLogin, observe: Observer
) -> None:
    """Rights on the columns that are used suffice for a lease; verify() asks for those on the table."""
    table = LeaseTable(await make_pool(await make_login(COLUMNS)))
    for fence in (1, 2):
        async with lease(table, "k", ttl=30) as held:
            await held.renew()
            await held.confirm()
            assert held.fence == fence
            assert [one.state for one in await table.leases()] == ["held"]
    assert await observe.is_free("k")
    with pytest.raises(LeaseTableError, match=r'GRANT SELECT, INSERT, UPDATE ON "public"."lease" TO "lease_test_'):
        await table.verify()


@pytest.mark.usefixtures("table")
async def test_role_that_may_only_look_is_told_by_verify_what_to_grant(
    make_pool: MakePool, make_login: MakeLogin
) -> None:
    """verify() finds the missing right at start-up, before any acquire does, and names the role."""
    table = LeaseTable(await make_pool(await make_login("GRANT SELECT ON lease TO {role}")))
    await table.create()
    with pytest.raises(LeaseTableError, match=r"GRANT SELECT, INSERT, UPDATE ON .* TO \"lease_test_"):
        await table.verify()


async def test_role_that_may_not_enter_the_schema_is_told_so_by_every_question(
    make_pool: MakePool, make_login: MakeLogin, observe: Observer
) -> None:
    """With every right on the table and none on its schema, create() and verify() say what the others say."""
    await LeaseTable(await make_pool(), schema="closed").create()
    observe.table = "closed.lease"
    dsn = await make_login("GRANT SELECT, INSERT, UPDATE ON closed.lease TO {role}")
    table = LeaseTable(await make_pool(dsn), schema="closed")
    for question in (table.create(), table.verify(), acquire(table, "k"), table.get("k")):
        with pytest.raises(LeaseTableError, match='GRANT USAGE ON SCHEMA "closed"'):
            await question
    assert await observe.rows() == []


@pytest.mark.usefixtures("table")
async def test_role_that_loses_its_rights_for_a_while_keeps_its_lease(
    make_pool: MakePool, make_login: MakeLogin, observe: Observer
) -> None:
    """A right that is missing is no evidence of a loss: the renewal says what to grant, and is tried again."""
    pool = await make_pool(await make_login(MINIMUM))
    role = await pool.fetchval("SELECT current_user")
    told = Recorder()
    async with lease(pool, "k", ttl=30, heartbeat=0.05, observer=told) as held:
        await observe.connection.execute(f"REVOKE UPDATE ON lease FROM {role}")
        await until(lambda: told.of(RenewFailed))
        await observe.connection.execute(f"GRANT UPDATE ON lease TO {role}")
        renewals = len(told.of(Renewed))
        await until(lambda: len(told.of(Renewed)) > renewals)
        assert held.is_held
    assert "GRANT SELECT, INSERT, UPDATE" in told.of(RenewFailed)[0].error
    assert told.of(Lost) == []
    assert await observe.is_free("k")


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_role_of_a_strict_isolation_contends_without_an_error(
    make_pool: MakePool, make_login: MakeLogin, observe: Observer, isolation: str
) -> None:
    """A role's own isolation brings no serialization error out of waits, joins, rests and questions."""
    dsn = await make_login(
        MINIMUM,
        f"ALTER ROLE {{role}} SET default_transaction_isolation TO '{isolation}'",
        "ALTER ROLE {role} SET default_transaction_deferrable TO on",
    )
    tables = [LeaseTable(await make_pool(dsn), poll=0.02) for _ in range(2)]
    assert await (await make_pool(dsn)).fetchval("SHOW transaction_isolation") == isolation
    fences = []

    async def work(number: int) -> None:
        for _ in range(3):
            async with lease(tables[number % 2], "k", ttl=20, wait=60, min_hold=0.01) as held:
                fences.append(held.fence)
                await held.renew()

    async def share(number: int) -> None:
        async with lease(tables[number], f"own-{number}", ttl=20, holder=f"h{number}") as first:
            for _ in range(5):
                async with lease(tables[1 - number], f"own-{number}", ttl=20, holder=f"h{number}") as held:
                    await asyncio.gather(first.renew(), held.renew(), held.confirm())
                    assert held.joined

    async def look() -> None:
        for _ in range(10):
            await tables[0].get("k")
            await tables[1].leases()

    await asyncio.gather(*map(work, range(4)), *map(share, range(2)), look(), look())
    assert fences == list(range(1, 13))
    await observe.until_free("k", within=2)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("question", ["get", "leases"])
async def test_question_that_meets_a_serialization_failure_is_asked_again(
    make_pool: MakePool, make_login: MakeLogin, observe: Observer, dsn: str, question: str
) -> None:
    """Under SERIALIZABLE even a reader can be the one that has to go; nobody is told of it."""
    isolation = "ALTER ROLE {role} SET default_transaction_isolation TO 'serializable'"
    table = LeaseTable(await make_pool(await make_login(MINIMUM, isolation), max_size=1), schema="public")
    for key in ("a", "b"):
        await (await acquire(table, key)).release()
    pivot = await asyncpg.connect(dsn)
    try:
        async with pivot.transaction(isolation="serializable"):
            await pivot.execute("SELECT * FROM lease")
            async with observe.connection.transaction(isolation="serializable"):
                await observe.connection.execute("UPDATE lease SET fence = fence + 1 WHERE key = 'b'")
            await pivot.execute("LOCK TABLE lease; UPDATE lease SET fence = fence + 1 WHERE key = 'a'")
            answer = asyncio.create_task(ask(table, question))
            # Its snapshot is to be older than the pivot's commit, and newer than the other.
            await observe.until_waiting()
    finally:
        await pivot.close()
    info = await answer
    assert info is not None
    assert (info.key, info.fence) == ("a", 2)


async def ask(table: LeaseTable, question: str) -> LeaseInfo | None:
    """Ask for the key "a" in one of two ways."""
    return await table.get("a") if question == "get" else (await table.leases("a"))[0]
