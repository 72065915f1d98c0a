"""The demo as a whole: a server, a schema, three workers, the story, the verdict."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import asyncpg

from asyncpg_lease import LeaseTable
from asyncpg_lease.cli._crew import Crew
from asyncpg_lease.cli._ledger import Ledger
from asyncpg_lease.cli._narrator import Narrator
from asyncpg_lease.cli._screen import choose_narrator
from asyncpg_lease.cli._story import WORKERS, Story, StoryError
from asyncpg_lease.cli._verdict import FaultKind, Outcome, Records, judge
from asyncpg_lease.cli._worker import KEY, Order
from asyncpg_lease.testing import EmbeddedServer

_TTL = 2.0
_DROP_TIMEOUT = 5.0


class DsnError(Exception):
    """The DSN is none."""


async def run_demo(dsn: str | None, *, fenced: bool) -> Outcome:
    """Run the demo and show it.

    Args:
        dsn: the server to use, in a temporary schema; None starts an embedded one.
        fenced: whether the writes check the fence.

    Raises:
        DsnError: the DSN cannot be read.
        EmbeddedServerError: the embedded server is missing or does not start.
        StoryError: the schema could not be dropped, after nothing had been done.
    """
    narrator = choose_narrator()
    planned = [kind for kind in FaultKind if dsn is None or kind is not FaultKind.RESTART]
    narrator.introduce(KEY, _TTL, planned=planned, fenced=fenced)
    outcome = await narrator.accompany(_perform(narrator, dsn, planned, fenced=fenced))
    narrator.conclude(outcome)
    return outcome


async def _perform(narrator: Narrator, dsn: str | None, planned: Sequence[FaultKind], *, fenced: bool) -> Outcome:
    embedded, outcome = dsn is None, None
    try:
        async with AsyncExitStack() as stack:
            restart = None
            if dsn is None:
                server = await stack.enter_async_context(_embedded_server())
                dsn, restart = server.dsn, server.restart_immediately
            # Without the cache, so that a pooler of transactions may be in between.
            creating = asyncpg.create_pool(dsn, min_size=0, max_size=1, statement_cache_size=0)
            pool = await stack.enter_async_context(creating)
            narrator.act(f"PostgreSQL {await _ask_version(pool)} is there")
            schema = await stack.enter_async_context(_schema(pool, narrator, dropped=not embedded))
            ledger = Ledger(pool, schema, fenced=fenced)
            await LeaseTable(pool, schema=schema).create()
            await ledger.create()
            order = Order(name="", dsn=dsn, schema=schema, ttl=_TTL, fenced=fenced)
            crew = await stack.enter_async_context(Crew(order))
            story = Story(crew, pool, narrator, planned, restart)
            outcome = replace(await _tell(story, ledger, planned), fenced=fenced)
    except StoryError as error:
        if outcome is None:
            raise
        outcome = replace(outcome, failure=str(error))
    return outcome


async def _tell(story: Story, ledger: Ledger, planned: Sequence[FaultKind]) -> Outcome:
    records = Records([], [], [], workers=WORKERS)
    try:
        await story.run()
    except StoryError as error:
        # What the picture is needed for most; the server may be what has failed.
        with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            records = replace(records, attempts=await ledger.attempts(), releases=await ledger.releases())
        return Outcome(replace(records, tenures=story.tenures, faults=story.faults), (), str(error))
    records = Records(await ledger.attempts(), story.tenures, story.faults, await ledger.releases(), WORKERS)
    return Outcome(records, judge(records, planned))


async def _ask_version(pool: "asyncpg.Pool[asyncpg.Record]") -> str:
    try:
        version: str = await pool.fetchval("SELECT current_setting('server_version')")
    except asyncpg.InterfaceError:
        raise
    except ValueError as error:
        # Python's own, about the DSN; it may have a part of the password in it.
        message = "the DSN cannot be read: percent-encode what is special in its user, password and host"
        raise DsnError(message) from error
    return version


@asynccontextmanager
async def _embedded_server() -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer()
    server.launch()
    try:
        await asyncio.to_thread(server.wait_ready)
        yield server
    finally:
        # A thread may still be waiting for an answer: the end of the keeper ends that too.
        await asyncio.to_thread(server.stop)


@asynccontextmanager
async def _schema(pool: asyncpg.Pool, narrator: Narrator, *, dropped: bool) -> AsyncIterator[str]:
    schema = f"asyncpg_lease_demo_{secrets.token_hex(4)}"
    try:
        await pool.execute(f"CREATE SCHEMA {schema}")
        yield schema
    finally:
        if dropped:
            await _drop(pool, schema)
            narrator.act(f"the schema {schema} has been dropped")


async def _drop(pool: asyncpg.Pool, schema: str) -> None:
    try:
        async with asyncio.timeout(_DROP_TIMEOUT):
            await pool.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        message = f"the schema {schema} could not be dropped ({type(error).__name__}): drop it by hand"
        raise StoryError(message) from error
