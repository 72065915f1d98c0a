"""How long a guarded transaction may be idle, and what becomes of a holder that is paused in it."""

from __future__ import annotations

import signal
import sys
import traceback
from datetime import timedelta

import asyncpg
import pytest

from asyncpg_lease import IdleTimeout, LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.fencing.writing import KEY, write, written
from tests.support.inside import is_usable
from tests.support.leasing import until
from tests.support.observe import Observer
from tests.support.processes import Spawn, emit, receive
from tests.support.typing import Connection, Pool

TTL = 30
VALUES: list[tuple[str, IdleTimeout, int]] = [
    ("0", "ttl", 30_000),
    ("90s", "ttl", 30_000),
    ("10s", "ttl", 10_000),
    ("0", 0.25, 250),
    ("0", 600, 600_000),
    ("2min", 600, 120_000),
    ("0", timedelta(minutes=10), 600_000),
    ("1d", timedelta(days=2), 86_400_000),
    ("300ms", 5, 300),
    ("1500ms", 5, 1_500),
    ("0", (2**31 - 1) / 1000, 2**31 - 1),
    ("5s", None, 5_000),
    ("0", None, 0),
]


async def milliseconds(connection: Connection) -> int:
    """Return the setting of the session as it is now."""
    setting = await connection.fetchval(
        "SELECT setting FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
    )
    return int(setting)


async def test_idle_timeout_is_the_lower_one_of_its_own_and_the_sessions(pool: Pool, connection: Connection) -> None:
    """It never raises what the session has, 0 being no limit, and is gone after the transaction."""
    held = await acquire(pool, KEY, ttl=TTL)
    seen, left = [], []
    for session, given, _ in VALUES:
        await connection.execute(f"SET idle_in_transaction_session_timeout = '{session}'")
        before = await milliseconds(connection)
        async with held.transaction(connection, idle_timeout=given):
            seen.append((session, given, await milliseconds(connection)))
        if await milliseconds(connection) != before:
            left.append((session, given))
    assert seen == VALUES
    assert left == []
    await held.release()


async def test_guard_leaves_the_idle_timeout_alone(pool: Pool, connection: Connection) -> None:
    """In somebody else's transaction it is not for a guard to say how long that may be idle."""
    held = await acquire(pool, KEY, ttl=TTL)
    async with connection.transaction():
        before = await milliseconds(connection)
        await held.guard(connection)
        assert await milliseconds(connection) == before
    await held.release()


@pytest.mark.parametrize("afterwards", ["a statement", "the end"])
@pytest.mark.parametrize("pooled", [True, False])
async def test_body_that_computes_for_too_long_is_told_which_limit_it_met(
    pool: Pool, connection: Connection, observe: Observer, afterwards: str, *, pooled: bool
) -> None:
    """The driver knows of a closed connection only; what may have closed it is the library's to say."""
    held = await acquire(pool, KEY)
    async with pool.acquire() as own:
        used = own if pooled else connection
        with pytest.raises((ConnectionError, asyncpg.InterfaceError)) as caught:
            async with held.transaction(used, idle_timeout=20):
                await write(used, "A")
                # The 20 s, cut short.
                await used.execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
                await until(lambda: not is_usable(used))
                if afterwards == "a statement":
                    await write(used, "B")
    said = "".join(traceback.format_exception(caught.value))
    assert "idle between two statements for longer than its idle_timeout, 20.000 s" in said
    assert await written(observe) == []
    await held.release()


# The last is the driver's where the server's farewell comes in as the answer to its COMMIT.
CLOSED = (asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError, asyncpg.InternalClientError)


async def hold_and_write(dsn: str, on_lost: str) -> None:
    """Write in a guarded transaction, wait to be stopped before its commit, and journal what came of it."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        connection = await asyncpg.connect(dsn)
        try:
            async with (
                lease(pool, KEY, ttl=2, on_lost=on_lost) as held,  # type: ignore[arg-type]
                held.transaction(connection, idle_timeout=5),
            ):
                await write(connection, "paused")
                emit(written=True)
                await receive()
        except Exception as error:  # noqa: BLE001 - told to the parent
            emit(
                error=type(error).__name__,
                closed=isinstance(error, CLOSED),
            )
        else:
            emit(error=None, closed=False)
        connection.terminate()


@pytest.mark.slow("the server ends the session of a process that is stopped, after seconds")
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
async def test_holder_paused_between_statements_is_ended_by_the_server(
    make_pool: MakePool, dsn: str, spawn: Spawn, observe: Observer, on_lost: str
) -> None:
    """Its successor gets in when the server has ended the session, and what it then commits is not there."""
    waiting = LeaseTable(await make_pool(), poll=0.05)
    child = await spawn(hold_and_write, dsn, on_lost)
    assert "written" in await child.event()
    child.signal(signal.SIGSTOP)
    await child.send(go_on=True)
    paused = await observe.row(KEY)
    assert paused is not None
    async with lease(waiting, KEY, wait=30) as held, held.transaction(connection := await asyncpg.connect(dsn)):
        # It was the transaction that kept it out, and not the row.
        assert held.acquired_at > paused["expires_at"] + timedelta(seconds=1)
        await write(connection, "successor")
        child.signal(signal.SIGCONT)
        event = await child.event()
    await connection.close()
    assert event["error"] == "LeaseLostError" if on_lost == "cancel" else event["closed"] is True
    assert await child.wait() == 0
    assert await written(observe) == ["successor"]
