"""What a run's parent gathers: the events of its processes, and what a trigger has written down at the server."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from asyncpg_lease import LeaseTable, acquire
from tests.history.history import History
from tests.history.judge import LABEL
from tests.history.records import Body, Notice, Stall, Version, Write
from tests.support.job import JOB
from tests.support.processes import Child
from tests.support.typing import Connection

PATIENCE = 30.0
"""Seconds for anything that must come."""

PAUSE = 0.05

TABLES = f"""
{JOB};
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
"""What the jobs write, what was written, and each version of each row of the lease table."""

# Times as those of the monotonic clock.
VERSIONS = """
SELECT number, extract(epoch FROM at)::float8 - $1, key, holder, fence, extract(epoch FROM acquired_at)::float8 - $1,
    extract(epoch FROM expires_at)::float8 - $1, released, deleted
FROM version WHERE key <> '' ORDER BY number
"""
WRITES = "SELECT number, extract(epoch FROM at)::float8 - $1, key, fence, guarded FROM written ORDER BY number"
NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"


@asynccontextmanager
async def directly(dsn: str) -> AsyncIterator[Connection]:
    """Connect past all proxies, for what an operator or a foreign session does; the server's defaults do not matter."""
    connection = await asyncpg.connect(dsn, server_settings={"default_transaction_read_only": "off"})
    try:
        yield connection
    finally:
        connection.terminate()


@asynccontextmanager
async def gathering(dsn: str, keys: Sequence[str] = (), ttl: float = 1.0) -> AsyncIterator[tuple[History, LeaseTable]]:
    """Make the tables in an empty database; yield a run's history and the lease table as operators use it.

    At the end, when all processes have ended, see that each key can be acquired, and read what the server has.

    Args:
        dsn: The database, past all proxies.
        keys: What the processes share; each has to be free in the end.
        ttl: The longest for which one may stay shut when nobody is there any more.
    """
    history = History()
    settings = {"default_transaction_read_only": "off"}
    async with asyncpg.create_pool(dsn, min_size=0, max_size=4, server_settings=settings) as pool:
        table = LeaseTable(pool, poll=PAUSE)
        await table.create()
        async with directly(dsn) as connection:
            await connection.execute(TABLES)
            before = await _offset(connection)
        history.add("opened", time.monotonic(), keys=keys, ttl=ttl)
        yield history, table
        async with directly(dsn) as connection:
            offset = (before + await _offset(connection)) / 2
            history.add("over", await _left(connection) - offset)
            await asyncio.gather(*(_acquire(table, key, history, offset) for key in keys), return_exceptions=True)
            await table.aclose()
            history.versions = [Version(*row) for row in await connection.fetch(VERSIONS, offset)]
            history.writes = [Write(*row) for row in await connection.fetch(WRITES, offset)]


async def _left(connection: Connection) -> float:
    """Return the server's time once it has no session of a process any more: what they had sent is done then."""
    there = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE starts_with(application_name, $1))"
    async with asyncio.timeout(PATIENCE):
        while await connection.fetchval(there, LABEL):
            await asyncio.sleep(PAUSE)
    return float(await connection.fetchval(NOW))


async def _acquire(table: LeaseTable, key: str, history: History, offset: float) -> None:
    """Acquire a key that should be free, and note when the server gave it."""
    held = await acquire(table, key, ttl=PATIENCE, wait=PATIENCE)
    history.add("again", held.acquired_at.timestamp() - offset, key=key)
    await held.release()


async def _offset(connection: Connection) -> float:
    """Return the server's clock less the monotonic one, from the quickest of some answers."""
    found = []
    for _ in range(20):
        asked = time.monotonic()
        at = await connection.fetchval(NOW)
        answered = time.monotonic()
        found.append((answered - asked, at - (asked + answered) / 2))
    return float(min(found)[1])


class Post:
    """Where one process works; another one takes its place when it was killed.

    Attributes:
        history: What its processes write down.
        process: The number of the one that is there, one number for each that was started.
        ready: Set while there is a process that obeys.
    """

    def __init__(
        self, history: History, start: Callable[[int], Awaitable[Child]], numbers: itertools.count[int]
    ) -> None:
        self.history = history
        self.process = 0
        self.ready = asyncio.Event()
        self._start = start
        self._numbers = numbers
        self._child: Child | None = None
        self._killed = 0.0
        self._stopping = False
        self._alive = 0.0

    @property
    def child(self) -> Child:
        """The process that is there."""
        assert self._child is not None
        return self._child

    @property
    def running(self) -> list[Body]:
        """The bodies that run now."""
        return self.history.running(self.process)

    async def keep(self) -> None:
        """Start a process, and another one whenever it was killed, until `stop` or `end`."""
        while not self._stopping:
            self.process, self._killed = next(self._numbers), 0.0
            self._child = await self._start(self.process)
            await self._listen(self._child)
            self.ready.clear()
            code = await self._child.wait()
            if self._killed:
                self.history.stalls[self.process].append(Stall(self._killed, self._killed - self._alive))
            elif code != 0 or self.running:
                self.history.wrong.append(Notice(time.monotonic(), self.process, "ended", detail=f"with {code}"))
            self.history.add("gone", self._killed or time.monotonic(), self.process)

    async def stop(self) -> None:
        """Have the process come to its end, and start no other one."""
        await self.ready.wait()
        self._stopping = True
        await self.child.send(do="stop")

    async def end(self) -> None:
        """Kill the process, and start no other one."""
        await self.ready.wait()
        self._stopping = True
        self.kill()

    def kill(self) -> float:
        """Kill the process, block until it is gone, so that its last moment is known well, and return that."""
        self.ready.clear()
        self.child.signal(signal.SIGKILL)
        # Whoever else waits for the child may have been quicker, and is left to it otherwise.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)
        self._killed = time.monotonic()
        return self._killed

    async def _listen(self, child: Child) -> None:
        """Take note of what a process writes down until its end."""
        while True:
            try:
                event: dict[str, Any] = await child.event(within=PATIENCE)
            except EOFError:
                break
            self._alive = event["at"]
            if event["what"] == "ready":
                self.ready.set()
            elif event["what"] != "alive":
                self.note(event)

    def note(self, event: dict[str, Any]) -> None:
        """Take note of one event."""
        self.history.add(process=self.process, **event)
