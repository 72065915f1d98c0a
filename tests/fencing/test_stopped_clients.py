"""What ends a guarded transaction whose client was stopped, and the query with which an operator finds it."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from asyncpg_lease import acquire, try_acquire
from tests.support.observe import Observer
from tests.support.processes import Child, Spawn, emit
from tests.support.typing import Pool, Record

pytestmark = pytest.mark.usefixtures("table")

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "fencing.md"
COPIED = "SELECT count(*) > 0 FROM pg_stat_progress_copy WHERE pid = $1"
WORK = {
    "works": "SELECT pg_sleep(60)",
    "sends": "SELECT repeat('x', 1000000) FROM generate_series(1, 100000)",
}
FIRST_WITH_TRANSACTION_TIMEOUT = 17

stops_a_process = pytest.mark.slow("a process is stopped, and the server ends its session after seconds")


async def hold_a_guard(dsn: str, doing: str, setting: str) -> None:
    """Guard a transaction and stay in it, in the middle of a statement or idle."""

    async def rows() -> AsyncIterator[bytes]:
        yield b"1\n"
        await asyncio.sleep(60)

    async with (
        asyncpg.create_pool(dsn, min_size=2, max_size=2) as pool,
        await acquire(pool, "report", ttl=60, holder="stopped") as held,
        pool.acquire() as connection,
        held.transaction(connection, idle_timeout=2),
    ):
        await connection.execute(setting)
        emit(pid=connection.get_server_pid())
        if doing == "reads":
            await connection.copy_to_table("numbers", source=rows())
        elif doing in WORK:
            await connection.fetch(WORK[doing])
        else:
            await asyncio.sleep(60)


async def sessions(observe: Observer, *, of_any_key: bool = False) -> list[Record]:
    """Run one of the page's two queries: who keeps the key `report` shut, or any key?"""
    one, all_of_them = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    query = all_of_them if of_any_key else one
    return await observe.connection.fetch(query.replace("'nightly-report'", "'report'"))


async def stopped(spawn: Spawn, observe: Observer, doing: str, setting: str) -> tuple[Child, int]:
    """Start a child that guards, and stop it once its session waits; return it and its session's process id."""
    await observe.connection.execute("CREATE TABLE IF NOT EXISTS numbers (n int)")
    child = await spawn(hold_a_guard, observe.dsn, doing, setting)
    pid = (await child.event())["pid"]
    assert isinstance(pid, int)
    waits = {"works": "PgSleep", "sends": "ClientWrite", "reads": "ClientRead", "idles": "ClientRead"}
    states = {"idles": "idle in transaction"}
    async with asyncio.timeout(20):
        while [(found["state"], found["wait_event"]) for found in await sessions(observe)] != [
            (states.get(doing, "active"), waits[doing])
        ]:
            await asyncio.sleep(0.01)
        # The same pair of words is there for a moment while COPY begins.
        while doing == "reads" and not await observe.connection.fetchval(COPIED, pid):
            await asyncio.sleep(0.01)
    child.signal(signal.SIGSTOP)
    return child, pid


async def gone_within(observe: Observer, seconds: float) -> bool:
    """Tell whether nobody keeps the key shut any more, at the latest after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            while await sessions(observe):
                await asyncio.sleep(0.05)
    except TimeoutError:
        return False
    return True


@stops_a_process
async def test_stopped_client_whose_session_is_idle_is_ended_by_the_guards_own_timeout(
    spawn: Spawn, observe: Observer
) -> None:
    """The transaction's idle_timeout ends a session that waits for the next statement."""
    await stopped(spawn, observe, "idles", "SELECT 1")
    assert await gone_within(observe, 15)


@stops_a_process
async def test_stopped_client_whose_session_works_is_ended_by_a_limit_of_time(spawn: Spawn, observe: Observer) -> None:
    """A statement that the server works on is ended by statement_timeout, and from 17 on by transaction_timeout."""
    settings = ["statement_timeout"]
    if observe.connection.get_server_version().major >= FIRST_WITH_TRANSACTION_TIMEOUT:
        settings.append("transaction_timeout")
    for setting in settings:
        await stopped(spawn, observe, "works", f"SET LOCAL {setting} = '2s'")
        assert await gone_within(observe, 15)
        await observe.expire("report")


@stops_a_process
@pytest.mark.skipif(sys.platform != "linux", reason="tcp_user_timeout is Linux's")
async def test_stopped_client_that_takes_no_rows_is_ended_by_tcp_user_timeout(spawn: Spawn, observe: Observer) -> None:
    """A session that waits for its client to take rows is ended by the time for which TCP may make no progress."""
    await stopped(spawn, observe, "sends", "SET tcp_user_timeout = '2s'")
    assert await gone_within(observe, 15)


@stops_a_process
@pytest.mark.parametrize("doing", ["sends", pytest.param("reads", marks=pytest.mark.night("waits for seconds"))])
async def test_stopped_client_that_is_waited_for_is_ended_by_an_operator_alone(
    spawn: Spawn, observe: Observer, pool: Pool, doing: str
) -> None:
    """No limit of time ends a session that waits for its client; pg_terminate_backend does, and frees the key."""
    limits = "SET LOCAL statement_timeout = '5s'"
    if observe.connection.get_server_version().major >= FIRST_WITH_TRANSACTION_TIMEOUT:
        limits += "; SET LOCAL transaction_timeout = '5s'"
    _, pid = await stopped(spawn, observe, doing, limits)
    assert not await gone_within(observe, 7)
    await observe.expire("report")
    assert await try_acquire(pool, "report") is None
    found = await sessions(observe)
    assert [each["pid"] for each in found] == [pid]
    await observe.connection.execute("SELECT pg_terminate_backend($1, 5000)", pid)
    successor = await try_acquire(pool, "report")
    assert successor is not None
    await successor.release()


async def test_query_of_the_page_names_each_guard_of_the_key_and_nobody_else(pool: Pool, observe: Observer) -> None:
    """Two guards of one key, renewed meanwhile and one in a savepoint, are both found; that of another key is not."""
    held, other = await acquire(pool, "report"), await acquire(pool, "other")
    first, second, third = [await asyncpg.connect(observe.dsn) for _ in range(3)]
    assert await sessions(observe) == []
    async with third.transaction():
        await other.guard(third)
        assert await sessions(observe) == []
        async with first.transaction():
            await held.guard(first)
            assert {found["pid"] for found in await sessions(observe)} == {first.get_server_pid()}
            async with second.transaction(), second.transaction():
                await held.guard(second)
                await held.renew()
                both = {first.get_server_pid(), second.get_server_pid()}
                assert {found["pid"] for found in await sessions(observe)} == both
            await held.renew()
            assert {found["pid"] for found in await sessions(observe)} == {first.get_server_pid()}
        assert await sessions(observe) == []
    for connection in (first, second, third):
        await connection.close()
    await held.release()
    await other.release()
