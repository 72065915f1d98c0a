"""The means themselves: each does to a lease what it says."""

from __future__ import annotations

import asyncio
import sys
import time

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire
from tests.conftest import MakePool
from tests.faults.means import exhausted, hold, open_insert, rival, stopped
from tests.support.bodies import Bodies
from tests.support.observe import Observer
from tests.support.processes import Spawn
from tests.support.travel import Travel

KEY = "means"


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
async def test_stopped_backend_answers_when_it_goes_on(dsn: str) -> None:
    """A backend that was stopped answers nothing, and what it was asked after that."""
    connection = await asyncpg.connect(dsn)
    with stopped(connection.get_server_pid()):
        answer = asyncio.create_task(connection.fetchval("SELECT 1"))
        assert (await asyncio.wait([answer], timeout=0.2))[0] == set()
    assert await answer == 1
    await connection.close()


async def test_exhausted_pool_has_no_connection(make_pool: MakePool) -> None:
    """Nobody gets a connection meanwhile, and everybody does afterwards."""
    pool = await make_pool(max_size=2)
    async with exhausted(pool):
        with pytest.raises(TimeoutError):
            await pool.acquire(timeout=0.1)
    async with pool.acquire(timeout=1), pool.acquire(timeout=1):
        pass


@pytest.mark.usefixtures("table")
async def test_open_insert_is_never_seen(observe: Observer) -> None:
    """The row of a session that does not commit is not there during the block, nor after it."""
    async with open_insert(observe.dsn, KEY):
        assert await observe.row(KEY) is None
    assert await observe.row(KEY) is None


@pytest.mark.slow("takes half a second or so")
async def test_rival_comes_in_when_the_key_is_free(
    table: LeaseTable, observe: Observer, travel: Travel, bodies: Bodies
) -> None:
    """It waits while somebody has the key, and tells when it had it."""
    held = await acquire(table, KEY)
    async with rival(observe.dsn, KEY, bodies) as task:
        await travel(0.2)
        assert not bodies.all
        free = time.monotonic()
        await held.release()
        assert await travel.through(task, within=5) > free
    assert [body.who for body in bodies.all] == ["rival"]


@pytest.mark.slow("processes are started")
@pytest.mark.usefixtures("table")
async def test_holder_process_says_what_became_of_its_lease(spawn: Spawn, observe: Observer) -> None:
    """It holds the key, is told of a loss, unwinds, and says so; or it comes to its end."""
    child = await spawn(hold, observe.dsn, KEY, 3, 60, 0.1)
    assert (await child.event())["fence"] == 1
    await observe.hand_over(KEY)
    assert "stopping" in await child.event()
    assert (await child.event())["ended"] == "taken_over"
    await observe.expire(KEY)
    quick = await spawn(hold, observe.dsn, KEY, 3, 0.1)
    assert [await quick.event(), await quick.event()][1]["ended"] == "done"
    assert await observe.is_free(KEY)
    with pytest.raises(EOFError):
        await quick.event()
