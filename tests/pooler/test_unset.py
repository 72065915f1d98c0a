"""Transaction mode, and a pool without statement_cache_size=0."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from asyncpg_lease import LeaseError, LeaseTable, LeaseTableError, acquire, lease
from asyncpg_lease.events import Renewed, RenewFailed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until, warm
from tests.support.observe import Observer
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Child, Spawn, emit, receive
from tests.support.typing import Pool

KEY = "job"
SETTING = "asyncpg.create_pool(..., statement_cache_size=0)"


@pytest.fixture
async def unset(pgbouncer: PgBouncer, make_pool: MakePool) -> Pool:
    """A pool of one connection through PgBouncer, without the setting."""
    return await make_pool(pgbouncer.dsn, max_size=1)


async def acquire_and_release(pool: Pool, *, wait: float = 0) -> None:
    """Acquire and release."""
    held = await acquire(pool, KEY, wait=wait)
    await held.release()


VERBS: dict[str, Callable[[Pool], Awaitable[object]]] = {
    "acquire": acquire_and_release,
    "waiting": lambda pool: acquire_and_release(pool, wait=60),
    "get": lambda pool: LeaseTable(pool, schema="public").get(KEY),
    "leases": lambda pool: LeaseTable(pool, schema="public").leases(),
    "create": lambda pool: LeaseTable(pool).create(),
    "verify": lambda pool: LeaseTable(pool).verify(),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.usefixtures("table")
async def test_verb_on_another_server_connection_names_the_setting(
    pgbouncer: PgBouncer, unset: Pool, verb: str
) -> None:
    """What the driver prepared on one server connection is not there on the next: the error says what to set."""
    await warm(unset)
    await VERBS[verb](unset)
    await pgbouncer.command("RECONNECT")
    with pytest.raises(LeaseTableError) as caught:
        await VERBS[verb](unset)
    assert SETTING in caught.value.problem
    assert isinstance(caught.value.__cause__, asyncpg.InvalidSQLStatementNameError)


@pytest.mark.slow("a lease is lost in real time")
@pytest.mark.usefixtures("table")
async def test_heartbeat_on_another_server_connection_names_the_setting_and_goes_on(
    pgbouncer: PgBouncer, unset: Pool
) -> None:
    """A renewal that fails for the missing setting is tried again, as after any error, until the deadline."""
    recorder = Recorder()
    with pytest.raises(LeaseError) as caught:
        async with lease(unset, KEY, ttl=3, heartbeat=0.1, observer=recorder) as held:
            await until(lambda: recorder.of(Renewed))
            await pgbouncer.command("RECONNECT")
            await held.wait_lost()
            held.raise_if_stopping()
    assert "unreachable" in str(caught.value)
    assert isinstance(caught.value.__cause__, LeaseTableError)
    assert len(recorder.of(RenewFailed)) > 3
    assert SETTING in recorder.of(RenewFailed)[0].error


async def serve(dsn: str) -> None:
    """List keys, or acquire one in a table, as asked, in a process whose driver counts its statements from 1."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        tables = {name: LeaseTable(pool, name, schema="public") for name in ("lease", "other")}
        while verb := (await receive()).get("verb"):
            try:
                if verb == "list":
                    emit(answer=len(await tables["lease"].leases()))
                else:
                    held = await acquire(tables[str(verb)], KEY, ttl=30)
                    await held.release()
                    emit(answer=held.holder)
            except LeaseError as error:
                emit(error=str(error), cause=type(error.__cause__).__name__)


async def ask(child: Child, verb: str) -> dict[str, object]:
    """Have a child do something and return what it said."""
    await child.send(verb=verb)
    return await child.event()


@pytest.mark.slow("starts two processes")
@pytest.mark.usefixtures("table")
async def test_statement_of_two_processes_under_one_name_names_the_setting(pgbouncer: PgBouncer, spawn: Spawn) -> None:
    """The second process to prepare a statement under the driver's first name is told what to set."""
    await pgbouncer.configure(default_pool_size="1")
    await pgbouncer.command("RECONNECT")
    one, other = await spawn(serve, pgbouncer.dsn), await spawn(serve, pgbouncer.dsn)
    assert "answer" in await ask(one, "list")
    event = await ask(other, "lease")
    assert event["cause"] == "DuplicatePreparedStatementError"
    assert SETTING in str(event["error"])


@pytest.mark.slow("starts two processes")
async def test_claim_that_runs_as_the_claim_of_another_process_is_no_lease(
    table: LeaseTable, pgbouncer: PgBouncer, pool: Pool, spawn: Spawn, observe: Observer
) -> None:
    """PgBouncer has the server grant a claim in another table, that of another process; it is not taken for a grant."""
    await LeaseTable(pool, "other").create()
    await pgbouncer.configure(default_pool_size="1")
    await pgbouncer.command("RECONNECT")
    one, other = await spawn(serve, pgbouncer.dsn), await spawn(serve, pgbouncer.dsn)
    assert "answer" in await ask(one, "lease")
    async with lease(table, KEY, ttl=30) as held:
        await pgbouncer.command("RECONNECT")
        assert "answer" in await ask(other, "other")
        event = await ask(one, "lease")
        assert event.get("cause") == "WrongAnswerError", event
        assert SETTING in str(event["error"])
        assert held.is_held
        assert await observe.fence(KEY) == held.fence
