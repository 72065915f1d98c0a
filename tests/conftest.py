"""Fixtures for every test: a database of its own, pools on it, a faulty network, other processes."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import asyncpg
import pytest
from blockbuster import BlockBuster

from asyncpg_lease import LeaseTable
from asyncpg_lease.testing import EmbeddedServer
from tests.support.bodies import Bodies
from tests.support.databases import TEST_SETTINGS, Database, Server
from tests.support.leftovers import close_pool, expect_no_tasks
from tests.support.observe import Observer, observing
from tests.support.pgbouncer import PgBouncer
from tests.support.processes import Spawn, spawning
from tests.support.proxy import Proxy
from tests.support.runs import NOTES
from tests.support.travel import Travel, come_back
from tests.support.typing import Pool

pytest_plugins = ["pytester", "tests.support.options", "tests.support.rings", "tests.support.summary"]

# A shell's background job (`nox &` in a script) starts with SIGINT ignored, and one under nohup with SIGHUP, which
# children inherit through exec; Python leaves it so, and neither would reach the processes that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# What asyncpg leaves behind where a connection is given up while it asks for TLS: a future that nobody looks at again,
# and an answer that comes for one that was cancelled.
ABANDONED = ("unexpected connection_lost() call", "protocol: <asyncpg.connect_utils.TLSUpgradeProto")


class MakePool(Protocol):
    """Makes pools that are closed at the end of the test."""

    async def __call__(self, dsn: str | None = None, /, **options: Any) -> Pool:  # noqa: ANN401
        """Create a pool on the test's database, or on another DSN; options are asyncpg.create_pool's."""


@pytest.fixture(scope="session", autouse=True)
def no_blocking() -> Iterator[None]:
    """Make every blocking call of the library's in an event loop an error; the CLI may block."""
    buster = BlockBuster("asyncpg_lease", excluded_modules=["asyncpg_lease.cli", "asyncpg_lease.testing"])
    for function in buster.functions.values():
        # asyncpg looks for certificates and passwords in files whenever it connects.
        function.can_block_in("asyncpg/connect_utils.py", "_parse_connect_arguments")
    buster.activate()
    yield
    buster.deactivate()


@pytest.fixture(autouse=True)
def back_in_the_present() -> Iterator[None]:
    """Return from wherever a test has travelled, when nothing is left that waits for a moved time."""
    yield
    come_back()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, back_in_the_present: None) -> None:  # noqa: ARG001 - before it
    """Fail a test that leaves one of the library's tasks behind, and note the kind of loop that it ran on.

    A test that is no coroutine has no loop: pytest-asyncio would make one for it, always of asyncio's own kind.
    """
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("no_task_left")


@pytest.fixture
async def no_task_left(
    request: pytest.FixtureRequest,
    back_in_the_present: None,  # noqa: ARG001 - before it
) -> AsyncIterator[None]:
    """What `nothing_left` does in a coroutine's loop."""
    request.config.stash[NOTES].note_loop(asyncio.get_running_loop())
    yield
    await expect_no_tasks()


@pytest.fixture(autouse=True)
def nothing_unheard() -> Iterator[None]:
    """Fail a test after which asyncio complains: an error that nobody retrieved, a task that was forgotten."""
    complaints: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: complaints.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    gc.collect(1)
    assert [told for told in complaints if not any(known in told for known in ABANDONED)] == []


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The run's PostgreSQL: ASYNCPG_LEASE_TEST_DSN (may create databases), else one from --programs or the wheel."""
    label: str | None = request.config.getoption("--server-label")
    with ExitStack() as stack:
        if dsn := os.environ.get("ASYNCPG_LEASE_TEST_DSN"):
            found = Server.at(dsn, label or "external")
        else:
            programs: Path | None = request.config.getoption("--programs")
            embedded = stack.enter_context(EmbeddedServer(TEST_SETTINGS, programs=programs))
            found = Server.at(embedded.dsn, label or "embedded")
            found.make_connecting_cheap()
        request.config.stash[NOTES].servers.add(f"{found.label} {found.major}")
        stack.callback(found.drop_databases)
        yield found


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server for one test alone, which may stop and restart it; starting it takes a second."""
    with EmbeddedServer(programs=request.config.getoption("--programs")) as embedded:
        yield embedded


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    """An empty database that only this test uses."""
    with server.database() as database:
        yield database


@pytest.fixture
def dsn(database: Database) -> str:
    """The DSN of the test's database."""
    return database.dsn


@pytest.fixture(scope="session")
def pooler(request: pytest.FixtureRequest, server: Server) -> Iterator[PgBouncer | None]:
    """The run's PgBouncer in front of its server, where `--pooler` asks for one."""
    if request.config.getoption("--pooler") is None:
        yield None
        return
    with PgBouncer(server.dsn) as pooler:
        request.config.stash[NOTES].poolers.add(pooler.label)
        yield pooler


@pytest.fixture
async def make_pool(dsn: str, pooler: PgBouncer | None) -> AsyncIterator[MakePool]:
    """Make pools of 1 to 4 connections, unless the options say otherwise; through the run's pooler."""
    usual: dict[str, Any] = {"min_size": 1, "max_size": 4}
    pooled, front = usual, dsn
    if pooler is not None:
        pooled, front = {**usual, "statement_cache_size": 0}, pooler.dsn_of(urlsplit(dsn).path[1:])
    async with AsyncExitStack() as stack:

        async def make(other_dsn: str | None = None, /, **options: Any) -> Pool:  # noqa: ANN401
            settings = pooled if other_dsn is None else usual
            pool = await asyncpg.create_pool(other_dsn or front, **{**settings, **options})
            stack.push_async_callback(close_pool, pool)
            return pool

        yield make


@pytest.fixture
async def pool(make_pool: MakePool) -> Pool:
    """A pool of 1 to 4 connections."""
    return await make_pool()


@pytest.fixture
async def table(pool: Pool) -> AsyncIterator[LeaseTable]:
    """The lease table `lease`, created, on `pool`."""
    table = LeaseTable(pool)
    await table.create()
    yield table
    await table.aclose()


@pytest.fixture
async def observe(dsn: str) -> AsyncIterator[Observer]:
    """A connection of its own that looks at the table `lease`."""
    async with observing(dsn) as observer:
        yield observer


@pytest.fixture
async def proxy(dsn: str, make_pool: MakePool) -> AsyncIterator[Proxy]:  # noqa: ARG001
    """A proxy to the test's database: `await make_pool(proxy.dsn)`.

    It asks for `make_pool` so that it goes first: a pool whose link is frozen could not be closed.
    """
    async with Proxy(dsn) as proxy:
        yield proxy


@pytest.fixture
async def travel(database: Database) -> Travel:
    """Let time pass without waiting for it: for the event loop, for the library, and for the rows."""
    return Travel(database)


@pytest.fixture
async def spawn() -> AsyncIterator[Spawn]:
    """Start coroutine functions of a test module in processes of their own."""
    async with spawning() as spawn:
        yield spawn


@pytest.fixture
def bodies() -> Bodies:
    """An empty record of bodies."""
    return Bodies()
