"""What docs/how-to/recover-after-a-failover.md and prune.md tell an operator to do and not to do, in SQL."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire
from tests.conftest import MakePool
from tests.floor.calls import use
from tests.pools.roles import MakeLogin
from tests.support.observe import Observer

pytestmark = pytest.mark.slow("a runbook with several sessions")

PAGE = Path(__file__).parents[2] / "docs/how-to/recover-after-a-failover.md"
KEY = "k"


def sql_blocks(role: str) -> list[str]:
    """Return the page's SQL, in order, for this role."""
    blocks = re.findall(r"^ *```sql\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [re.sub(r"\bapp\b", role, block) for block in blocks]


async def test_runbook_keeps_services_out_while_fences_are_advanced(
    table: LeaseTable, observe: Observer, make_login: MakeLogin, make_pool: MakePool
) -> None:
    """A service's role is out, even one that owns the database, the operator is not, and then it is in again."""
    database = await observe.connection.fetchval("SELECT quote_ident(current_database())")
    owner = f"ALTER DATABASE {database} OWNER TO"
    dsn = await make_login("GRANT SELECT, INSERT, UPDATE ON lease TO {role}", owner + " {role}")
    pool = await make_pool(dsn, min_size=0, max_size=1)
    held = await acquire(pool, KEY, ttl=3600)
    role = await pool.fetchval("SELECT current_user")
    keep_out, let_in = sql_blocks(role)
    await observe.connection.execute(keep_out)
    assert role not in await observe.connection.fetchval("SELECT string_agg(usename, ' ') FROM pg_stat_activity")
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="not permitted to log in"):
        await asyncpg.connect(dsn)
    fence = await table.advance_fences(1_000_000)
    await observe.connection.execute(let_in)
    async with await make_pool(dsn, max_size=1) as service:
        info = await LeaseTable(service).get(KEY)
        assert info is not None
        assert (info.state, info.fence) == ("held", fence)
        assert info.revoked_at is not None
        assert (await table.revoke(KEY, force=True)).outcome == "ended"
        assert await use(service, KEY) == fence + 1
    await held.release()
    await observe.connection.execute(f"{owner} CURRENT_USER")


async def test_first_claim_waits_for_whoever_locks_the_floor_and_known_keys_do_not(
    table: LeaseTable, observe: Observer
) -> None:
    """An operator's lock on the reserved row holds up new keys alone, for as long as a try may take."""
    await use(table, KEY)
    await table.prune(0)
    await use(table, KEY)
    async with observe.locked(""):
        assert await use(table, KEY) == 3
        with pytest.raises(TimeoutError):
            await acquire(table, "new", ttl=1)
    await (await acquire(table, "new", wait=10)).release()
