"""revoke() where it cannot do what it is asked: locked rows, missing rights, bad input, other isolations."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, LeaseTableError, acquire
from tests.conftest import MakePool
from tests.support.inside import revocation
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.table.roles import MakeRole

KEY = "steered"


async def test_revoke_gives_a_locked_row_up_for_good(
    table: LeaseTable, observe: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a lock it ends with what is the matter, and is not carried out once the row is free."""
    monkeypatch.setattr(revocation, "LOCK_TRIES", 2)
    monkeypatch.setattr(revocation, "LOCK_LIMIT", 0.1)
    held = await acquire(table, KEY)
    row = await observe.row(KEY)
    async with observe.locked(KEY):
        with pytest.raises(TimeoutError, match=f"another session has the row of lease {KEY!r} locked: nothing was"):
            async with asyncio.timeout(5):
                await table.revoke(KEY, force=True)
    # What waited for the lock still would do its work before this, which asks for it next.
    async with observe.locked(KEY):
        pass
    assert await observe.row(KEY) == row
    await held.release()


async def test_revoke_waits_no_longer_than_its_session_would(
    table: LeaseTable, observe: Observer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shorter lock_timeout of the pool's own stays, and so does that of what comes after on the connection."""
    monkeypatch.setattr(revocation, "LOCK_TRIES", 2)
    monkeypatch.setattr(revocation, "LOCK_LIMIT", 60.0)
    pool = await make_pool(max_size=1, server_settings={"lock_timeout": "50ms"})
    held = await acquire(table, KEY)
    strict = LeaseTable(pool)
    async with observe.locked(KEY), asyncio.timeout(5):
        with pytest.raises(TimeoutError, match="locked"):
            await strict.revoke(KEY)
    assert (await strict.revoke(KEY)).outcome == "requested"
    assert await pool.fetchval("SELECT current_setting('lock_timeout')") == "50ms"
    await held.release()


async def test_revoke_of_a_row_that_may_not_be_changed_is_an_error(
    table: LeaseTable, observe: Observer, make_role: MakeRole
) -> None:
    """Row-level security that hides the row from an UPDATE is no race to be run again for ever."""
    held = await acquire(table, KEY)
    role = await make_role("GRANT SELECT, INSERT, UPDATE ON lease TO {role}")
    await observe.connection.execute(
        "ALTER TABLE lease ENABLE ROW LEVEL SECURITY; CREATE POLICY look ON lease FOR SELECT USING (true)"
    )
    with pytest.raises(LeaseTableError, match="row-level security or a trigger"):
        async with asyncio.timeout(5):
            await LeaseTable(role).revoke(KEY)
    await held.release()


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_revoke_works_in_every_default_isolation(make_pool: MakePool, table: LeaseTable, isolation: str) -> None:
    """Renewals that change the row meanwhile make no revocation fail, and none is lost."""
    pool = await make_pool(server_settings={"default_transaction_isolation": isolation})
    strict = LeaseTable(pool, table.name.split(".")[-1].strip('"'))
    for _ in range(3):
        held = await acquire(strict, KEY, ttl=600)
        renewals = [asyncio.create_task(held.renew()) for _ in range(20)]
        assert (await strict.revoke(KEY)).outcome == "requested"
        await asyncio.gather(*renewals)
        await held.renew()
        assert held.stop_reason == "revoked"
        await held.release()


@pytest.mark.parametrize("fence", [True, 1.0, "1"])
async def test_revoke_of_what_is_no_fence_is_a_type_error(table: LeaseTable, fence: Any) -> None:  # noqa: ANN401
    """A fence is an int."""
    with pytest.raises(TypeError, match="fence must be an int or None"):
        await table.revoke(KEY, fence=fence)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("key", "options", "message"),
    [
        ("", {}, "ValueError: key must"),
        ("a\0b", {}, "ValueError: key must"),
        ("x" * 1025, {}, "ValueError: key must"),
        (KEY, {"fence": 0}, "ValueError: fence must be between 1 and"),
        (KEY, {"fence": -1}, "ValueError: fence must be between 1 and"),
        (KEY, {"fence": 2**63}, "ValueError: fence must be between 1 and"),
        (KEY, {"force": "false"}, "TypeError: force must be a bool, not str"),
    ],
    ids=["nothing", "NUL", "too long", "fence 0", "fence -1", "fence 2**63", "force"],
)
async def test_revoke_checks_its_arguments_before_it_sends_anything(
    make_pool: MakePool, proxy: Proxy, key: str, options: dict[str, Any], message: str
) -> None:
    """Keys, fences and force are checked first; the reserved row's key is none."""
    elsewhere = LeaseTable(await make_pool(proxy.dsn))
    before = len(proxy.statements)
    with pytest.raises((TypeError, ValueError)) as caught:
        await elsewhere.revoke(key, **options)
    assert f"{caught.typename}: {caught.value}".startswith(message)
    assert len(proxy.statements) == before


async def test_revoke_without_the_right_to_update_says_what_to_grant(table: LeaseTable, make_role: MakeRole) -> None:
    """A role that may only look gets the GRANT, and the lease is untouched."""
    held = await acquire(table, KEY)
    reader = LeaseTable(await make_role("GRANT SELECT ON lease TO {role}"))
    with pytest.raises(LeaseTableError, match="GRANT SELECT, INSERT, UPDATE ON") as caught:
        await reader.revoke(KEY)
    assert isinstance(caught.value.__cause__, asyncpg.InsufficientPrivilegeError)
    await held.confirm()
    await held.renew()
    assert held.stop_reason is None
    await held.release()
