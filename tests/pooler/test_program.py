"""The PgBouncer of the tests itself: nothing of it is left, in whatever way its tests end."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import asyncpg
import pytest

from tests.support.leasing import until
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Spawn, emit


async def keep(dsn: str) -> None:
    """Keep a PgBouncer until this process is ended."""
    with PgBouncer(dsn) as pgbouncer:
        emit(dsn=pgbouncer.dsn, folder=str(pgbouncer.folder))
        await asyncio.sleep(60)


@pytest.mark.slow("a process that keeps a PgBouncer is ended by signals")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_pgbouncer_ends_with_the_process_that_started_it(dsn: str, spawn: Spawn, number: signal.Signals) -> None:
    """Its port is closed and its folder gone, also where that process was killed."""
    child = await spawn(keep, dsn)
    event = await child.event()
    connection = await asyncpg.connect(str(event["dsn"]), statement_cache_size=0)
    child.signal(number)
    await child.wait()
    await until(connection.is_closed)
    await until(lambda: not Path(str(event["folder"])).exists())
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncpg.connect(str(event["dsn"]))
