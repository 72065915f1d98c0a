"""Ways to keep a holder from renewing: each begins when its block is entered and is over when that is left.

What lasts has to end in a loss that is noticed in time; what passes must cost nothing. The same faults serve for both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

from tests.conftest import MakePool
from tests.faults.means import exhausted, stopped
from tests.support.leasing import warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.typing import Pool

HOLDER = "holder"
"""The application's name by which the server knows the holder's sessions from everybody else's."""

NEVER = 3600.0
"""Seconds of latency that no lease of these tests outlasts."""

AGAIN = 0.01
"""Seconds after which what is done again and again is done again."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A holder's pool behind a proxy, and an observer on the server beside it."""

    proxy: Proxy
    pool: Pool
    observe: Observer

    @classmethod
    async def make(cls, make_pool: MakePool, proxy: Proxy, observe: Observer, *, connections: int = 2) -> Stage:
        """Make the pool, of so many connections at most, and run claim and release on it once."""
        pool = await make_pool(proxy.dsn, max_size=connections, server_settings={"application_name": HOLDER})
        await warm(pool)
        return cls(proxy, pool, observe)

    async def end_sessions(self) -> None:
        """End the holder's sessions and nobody else's, as an administrator would."""
        await self.observe.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = $1",
            HOLDER,
        )

    async def backends(self) -> list[int]:
        """Return the process ids of the holder's sessions."""
        records = await self.observe.connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1", HOLDER
        )
        return [int(record[0]) for record in records]


Outage: TypeAlias = Callable[[Stage], AbstractAsyncContextManager[None]]


# The network -----------------------------------------------------------------------------------------


@asynccontextmanager
async def cut(stage: Stage) -> AsyncIterator[None]:
    """Every link is reset, and new ones are refused."""
    stage.proxy.refuse()
    stage.proxy.reset_links()
    yield
    await stage.proxy.accept()


@asynccontextmanager
async def frozen(stage: Stage) -> AsyncIterator[None]:
    """Nothing is delivered and nothing closed, on new links neither."""
    stage.proxy.freeze()
    yield
    stage.proxy.thaw()


@asynccontextmanager
async def late_requests(stage: Stage) -> AsyncIterator[None]:
    """The server hears nothing any more, though what it says still arrives; at the end the links are reset."""
    stage.proxy.delay_requests = NEVER
    yield
    stage.proxy.delay_requests = 0
    stage.proxy.reset_links()


@asynccontextmanager
async def late_replies(stage: Stage) -> AsyncIterator[None]:
    """The server goes on renewing, and nobody hears of it; at the end the links are reset."""
    stage.proxy.delay_replies = NEVER
    yield
    stage.proxy.delay_replies = 0
    stage.proxy.reset_links()


@asynccontextmanager
async def reset_again_and_again(stage: Stage) -> AsyncIterator[None]:
    """Links can be opened, and are reset before anything comes of it."""

    async def reset() -> None:
        stage.proxy.reset_links()

    async with _again_and_again(reset):
        yield


# The server ------------------------------------------------------------------------------------------


@asynccontextmanager
async def ended_again_and_again(stage: Stage, every: float = AGAIN) -> AsyncIterator[None]:
    """The server ends the holder's sessions as fast as they begin."""
    async with _again_and_again(stage.end_sessions, every):
        yield


@asynccontextmanager
async def read_only(stage: Stage) -> AsyncIterator[None]:
    """The holder's sessions cannot write any more, as those that are led to a standby; older ones of others can."""
    await _set_read_only(stage, "on")
    yield
    await _set_read_only(stage, "off")


@asynccontextmanager
async def stopped_backends(stage: Stage) -> AsyncIterator[None]:
    """The server processes of the holder's open connections stand still."""
    with stopped(*await stage.backends()):
        yield


@asynccontextmanager
async def locked_row(stage: Stage) -> AsyncIterator[None]:
    """Another session has locked every row."""
    async with stage.observe.connection.transaction():
        await stage.observe.connection.execute("SELECT FROM lease FOR UPDATE")
        yield


@asynccontextmanager
async def locked_table(stage: Stage) -> AsyncIterator[None]:
    """Another session changes the table, and every statement on it waits for its commit."""
    async with stage.observe.connection.transaction():
        await stage.observe.connection.execute("LOCK TABLE lease")
        yield


@asynccontextmanager
async def hanging_update(stage: Stage) -> AsyncIterator[None]:
    """A renewal hangs while it writes its row."""
    async with _hanging(stage, "BEFORE UPDATE ON lease FOR EACH ROW"):
        yield


@asynccontextmanager
async def hanging_commit(stage: Stage) -> AsyncIterator[None]:
    """A renewal has been made, and hangs in its commit."""
    async with _hanging(stage, "AFTER UPDATE ON lease DEFERRABLE INITIALLY DEFERRED FOR EACH ROW", "CONSTRAINT"):
        yield


def failing(code: str) -> Outage:
    """Return the outage in which every write fails with this SQLSTATE."""

    @asynccontextmanager
    async def fail(stage: Stage) -> AsyncIterator[None]:
        body = f"BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = '{code}'; END"
        await _add_trigger(stage, "BEFORE INSERT OR UPDATE ON lease FOR EACH ROW", body)
        yield
        await stage.observe.connection.execute("DROP TRIGGER fault ON lease")

    return fail


# The pool --------------------------------------------------------------------------------------------


@asynccontextmanager
async def exhausted_pool(stage: Stage) -> AsyncIterator[None]:
    """Somebody keeps every connection of the holder's pool."""
    async with exhausted(stage.pool):
        yield


@asynccontextmanager
async def _again_and_again(act: Callable[[], Awaitable[None]], every: float = AGAIN) -> AsyncIterator[None]:
    async def repeat() -> None:
        while True:
            await act()
            await asyncio.sleep(every)

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _set_read_only(stage: Stage, value: str) -> None:
    database = await stage.observe.connection.fetchval("SELECT current_database()")
    await stage.observe.connection.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = {value}")
    await stage.end_sessions()


@asynccontextmanager
async def _hanging(stage: Stage, when: str, kind: str = "") -> AsyncIterator[None]:
    """Let every write hang at that point as long as the row of a table is there."""
    await stage.observe.connection.execute("CREATE TABLE hanging AS SELECT 1")
    body = "BEGIN WHILE EXISTS (SELECT FROM hanging) LOOP PERFORM pg_sleep(0.02); END LOOP; RETURN NEW; END"
    await _add_trigger(stage, when, body, kind)
    yield
    await stage.observe.connection.execute("DELETE FROM hanging")


async def _add_trigger(stage: Stage, when: str, body: str, kind: str = "") -> None:
    await stage.observe.connection.execute(
        f"CREATE OR REPLACE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $${body}$$;"
        f" CREATE {kind} TRIGGER fault {when} EXECUTE FUNCTION fault()"
    )
