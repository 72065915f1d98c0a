"""One run: processes at work, faults of all kinds for a while, then peace, and what was seen of it all."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import asyncpg

from asyncpg_lease import LeaseTable, acquire
from asyncpg_lease.testing import EmbeddedServer
from tests.chaos.crew import PATIENCE, Place
from tests.chaos.faults import PAUSE, OnProcess, OnServer, directly
from tests.chaos.history import Fault, History, Version, Write
from tests.chaos.kinds import Planned, plan
from tests.chaos.worker import TTLS
from tests.support.job import JOB
from tests.support.processes import spawning
from tests.support.proxy import Proxy
from tests.support.typing import Connection

WARM_UP = 1.0
"""Seconds for the processes to be at work before the first fault."""

TABLES = """
CREATE TABLE written (
    number bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    key text NOT NULL, fence bigint NOT NULL, guarded bool NOT NULL
);
CREATE TABLE version (
    number bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    key text NOT NULL, holder text NOT NULL, fence bigint NOT NULL,
    acquired_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, released bool NOT NULL, deleted bool NOT NULL
);
CREATE FUNCTION log_version() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    seen lease := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO version (key, holder, fence, acquired_at, expires_at, released, deleted) VALUES (
        seen.key, seen.holder, seen.fence, seen.acquired_at, seen.expires_at,
        seen.released_at IS NOT NULL, TG_OP = 'DELETE'
    );
    RETURN NULL;
END
$$;
CREATE TRIGGER logged AFTER INSERT OR UPDATE OR DELETE ON lease
    FOR EACH ROW EXECUTE FUNCTION log_version();
"""

VERSIONS = """
SELECT number, extract(epoch FROM at)::float8, key, holder, fence,
    extract(epoch FROM acquired_at)::float8, extract(epoch FROM expires_at)::float8, released, deleted
FROM version WHERE key <> '' ORDER BY number
"""
WRITES = "SELECT number, extract(epoch FROM at)::float8, key, fence, guarded FROM written ORDER BY number"


class Lane(NamedTuple):
    """Faults that take turns: how they are made, and what they are planned by."""

    make: Callable[[Planned], Awaitable[Fault | None]]
    name: str
    number: int

    async def run(self, seed: int, until: float, history: History) -> None:
        """Make the faults, one after the other, until the time is over."""
        for planned in plan(seed, self.name, self.number):
            await asyncio.sleep(max(0.0, min(planned.pause, until - time.monotonic())))
            if time.monotonic() >= until:
                break
            fault = await self.make(planned)
            if fault is not None:
                history.faults.append(fault)


async def run_soak(server: EmbeddedServer, seconds: float, seed: int, *, processes: int, keys: int) -> History:
    """Make the tables in the server's own database, run in it, and return what was seen."""
    names = [f"key-{number}" for number in range(keys)]
    history = History(keys=names, ttl=max(TTLS))
    dsn = server.dsn
    async with _operating(dsn) as table:
        await table.create()
        async with directly(dsn) as connection:
            await connection.execute(JOB)
            await connection.execute(TABLES)
            before = await _offset(connection)
        await _run(server, table, history, seconds=seconds, seed=seed, processes=processes)
    async with directly(dsn) as connection:
        history.offset = (before + await _offset(connection)) / 2
        history.versions = [Version(*row) for row in await connection.fetch(VERSIONS)]
        history.writes = [Write(*row) for row in await connection.fetch(WRITES)]
    return history


@asynccontextmanager
async def _operating(dsn: str) -> AsyncIterator[LeaseTable]:
    """Yield the table as operators use it, past all proxies."""
    settings = {"default_transaction_read_only": "off"}
    async with asyncpg.create_pool(dsn, min_size=0, max_size=4, server_settings=settings) as pool:
        table = LeaseTable(pool, poll=0.05)
        yield table
        await table.aclose()


async def _run(
    server: EmbeddedServer, table: LeaseTable, history: History, *, seconds: float, seed: int, processes: int
) -> None:
    """Keep the processes at work and make faults for so many seconds; then have both come to their end."""
    async with AsyncExitStack() as stack:
        spawn = await stack.enter_async_context(spawning())
        proxies = [await stack.enter_async_context(Proxy(server.dsn)) for _ in range(processes)]
        places = [Place(proxy, history, seed, spawn) for proxy in proxies]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        numbers = itertools.count(1)
        kept = [group.create_task(place.keep(numbers)) for place in places]
        for place in places:
            await place.ready.wait()
        await asyncio.sleep(WARM_UP)
        history.opened = time.monotonic()
        whole_server = asyncio.Lock()
        on_server = OnServer(server, table, places, history, whole_server)
        lanes = [Lane(on_server.make, lane, 0) for lane in ("rows", "operator", "fences", "server")]
        on_processes = [OnProcess(place, server.dsn, whole_server) for place in places]
        lanes += [Lane(on_process.make, "process", number) for number, on_process in enumerate(on_processes)]
        making = [group.create_task(lane.run(seed, history.opened + seconds, history)) for lane in lanes]
        await asyncio.wait(making)
        history.closed = time.monotonic()
        # What the one half has is released, what the other half has runs out.
        for place in places[::2]:
            await place.stop()
        await asyncio.wait(kept[::2])
        for place in places[1::2]:
            await place.end()
        await asyncio.wait(kept)
        history.left = await _left(server.dsn)
        await _acquire_all(table, history)


async def _left(dsn: str) -> float:
    """Return the server's time once it has no session of a process any more: what they had sent is done then."""
    async with asyncio.timeout(PATIENCE), directly(dsn) as connection:
        while await connection.fetchval(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name ~ '^chaos-')"
        ):
            await asyncio.sleep(PAUSE)
        return float(await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8"))


async def _acquire_all(table: LeaseTable, history: History) -> None:
    """Acquire every key, and note when the server gave it."""

    async def take(key: str) -> None:
        held = await acquire(table, key, ttl=history.ttl, wait=PATIENCE)
        history.acquired_again[key] = held.acquired_at.timestamp()
        await held.release()

    await asyncio.gather(*(take(key) for key in history.keys), return_exceptions=True)


async def _offset(connection: Connection) -> float:
    """Return the server's clock less the monotonic one, from the quickest of some answers."""
    found = []
    for _ in range(20):
        asked = time.monotonic()
        at = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
        answered = time.monotonic()
        found.append((answered - asked, at - (asked + answered) / 2))
    return float(min(found)[1])
