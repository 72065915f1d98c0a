"""The other modes of PgBouncer."""

from __future__ import annotations

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, lease
from asyncpg_lease.events import Renewed, RenewFailed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until
from tests.support.pgbouncer import PgBouncer

KEY = "job"


async def test_session_mode_needs_no_setting(dsn: str, make_pool: MakePool) -> None:
    """In session mode a client keeps its server connection, and with it the statements prepared there."""
    recorder = Recorder()
    with PgBouncer(dsn, {"pool_mode": "session", "default_pool_size": "4"}) as pgbouncer:
        pool = await make_pool(pgbouncer.dsn)
        await LeaseTable(pool).create()
        async with lease(pool, KEY, ttl=30, heartbeat=0.05, observer=recorder):
            await until(lambda: len(recorder.of(Renewed)) >= 3)
        await pool.close()
    assert recorder.of(RenewFailed) == []


async def test_statement_mode_serves_all_but_create(dsn: str, make_pool: MakePool) -> None:
    """Statement mode allows no transaction, which create() alone needs; it says so, and leases work without."""
    with PgBouncer(dsn, {"pool_mode": "statement"}) as pgbouncer:
        pool = await make_pool(pgbouncer.dsn, statement_cache_size=0)
        with pytest.raises(asyncpg.PostgresError, match="statement pooling mode"):
            await LeaseTable(pool).create()
        await LeaseTable(await make_pool(dsn)).create()
        await LeaseTable(pool).create()
        recorder = Recorder()
        async with lease(pool, KEY, ttl=30, heartbeat=0.05, observer=recorder):
            await until(lambda: len(recorder.of(Renewed)) >= 3)
        assert recorder.of(RenewFailed) == []
        await pool.close()
