"""A primary and a standby, for failovers, and clocks of servers that can be turned.

A process of its own keeps both (`tests.support.cluster_keeper`), so that nothing is left behind however this one ends.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import threading
import unittest
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast
from urllib.parse import urlsplit

import asyncpg

from asyncpg_lease.testing import find_programs
from tests.support.cluster_keeper import CLOCK
from tests.support.databases import Server

_ROOT = Path(__file__).parents[2]
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib")
_STOP_LIMIT = 60.0
_STREAMING_LIMIT = 30.0


def find_faketime() -> str:
    """Return the path of libfaketime.

    Raises:
        SkipTest: it is not installed.
    """
    for folder in _LIBRARIES:
        for pattern in ("faketime/libfaketime.so.1", "*/faketime/libfaketime.so.1"):
            for found in sorted(Path(folder).glob(pattern)):
                return str(found)
    message = "libfaketime is not installed: apt-get install libfaketime"
    raise unittest.SkipTest(message)


@dataclass(slots=True)
class Node:
    """One server: its name, how to connect to it, its folder."""

    name: str
    dsn: str
    folder: Path

    @property
    def address(self) -> str:
        """Its host and port."""
        return urlsplit(self.dsn).netloc.rpartition("@")[2]

    def of(self, database: str) -> str:
        """Return the DSN of a database on it."""
        return urlsplit(self.dsn)._replace(path=f"/{database}").geturl()

    def turn_clock(self, seconds: float) -> None:
        """Set its clock that many seconds from the machine's clock, at once."""
        part = self.folder / f"{CLOCK}.part"
        part.write_text(f"{seconds:+f}\n")
        part.replace(self.folder / CLOCK)


class Cluster:
    """Two nodes, of which one is the primary; for as long as a block lasts.

    Attributes:
        primary: The node that was made a primary last.
        standby: The other one where it follows the primary, else None.
        lost: The node that was the primary before.

    Args:
        programs: The folder with PostgreSQL's programs; None: the wheel's.
        library: libfaketime, where the nodes' clocks are to be turned.

    Raises:
        SkipTest: the programs are too few to copy a server with.
    """

    def __init__(self, programs: Path | None, library: str | None = None) -> None:
        self._programs = find_programs() if programs is None else programs
        if shutil.which("pg_basebackup", path=self._programs) is None:
            message = f"there is no pg_basebackup in {self._programs} to make a standby with"
            raise unittest.SkipTest(message)
        self._library = library
        self._keeper: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()
        self._numbers = itertools.count(1)
        self.primary: Node
        self.standby: Node | None = None
        self.lost: Node | None = None
        self._follows = True

    def __enter__(self) -> Self:
        request = {"programs": str(self._programs), "library": self._library}
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.support.cluster_keeper", json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd=_ROOT,
        )
        try:
            self.primary = self._order("make", "a")
            Server.at(self.primary.dsn, "").make_connecting_cheap()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._end() == 0

    def _end(self) -> int:
        assert self._keeper is not None
        cast("IO[bytes]", self._keeper.stdin).close()
        status = self._keeper.wait(_STOP_LIMIT)
        cast("IO[bytes]", self._keeper.stdout).close()
        return status

    def _order(self, do: str, node: str, **more: str) -> Node:
        assert self._keeper is not None
        requests, answers = cast("IO[bytes]", self._keeper.stdin), cast("IO[bytes]", self._keeper.stdout)
        with self._turn:
            requests.write(json.dumps({"do": do, "node": node, **more}).encode() + b"\n")
            requests.flush()
            answer = json.loads(answers.readline())
        assert "error" not in answer, answer["error"]
        return Node(node, answer["dsn"], Path(answer["folder"]))

    # The orders take a second or so, in which the event loop goes on -----------------------------------

    async def kill_primary(self) -> None:
        """Stop the primary as a crash does: nothing is written any more, every session is cut off."""
        await _to_its_end(self._order, "stop", self.primary.name)

    async def promote(self) -> None:
        """Make the standby a primary."""
        await _to_its_end(self._promote)

    async def fail_over(self) -> None:
        """Kill the primary and promote the standby."""
        await self.kill_primary()
        await self.promote()

    async def start_lost(self) -> None:
        """Start the former primary again, as nobody should: it takes writes."""
        assert self.lost is not None
        await _to_its_end(self._order, "start", self.lost.name)

    async def restore(self) -> None:
        """Have a primary that runs, and a standby again, in the place of the node that was lost."""
        await self._restore_primary()
        await _to_its_end(self._restore_standby)
        await self.set_synchronous(False)

    async def _restore_primary(self) -> None:
        self.primary.turn_clock(0)
        try:
            async with connecting(self.primary.dsn):
                pass
        except (OSError, asyncpg.PostgresConnectionError):
            # A test has failed after it had killed it.
            await _to_its_end(self._order, "start", self.primary.name)

    def _promote(self) -> None:
        assert self.standby is not None
        promoted = self._order("promote", self.standby.name)
        self.lost, self.primary, self.standby = self.primary, promoted, None

    def _restore_standby(self) -> None:
        if self.standby is None or not self._follows:
            other = "b" if self.primary.name == "a" else "a"
            self.standby, self.lost = self._order("copy", other, of=self.primary.name), None
            self._follows = True
        self.standby.turn_clock(0)

    async def set_synchronous(self, on: bool) -> None:
        """Have commits wait for the standby, or not."""
        async with connecting(self.primary.dsn) as connection:
            await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{'*' if on else ''}'")
            await connection.execute("SELECT pg_reload_conf()")
            state = "sync" if on else "async"
            async with asyncio.timeout(_STREAMING_LIMIT):
                while not await connection.fetchval(
                    "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1", state
                ):
                    await asyncio.sleep(0.02)

    async def catch_up(self) -> None:
        """Wait until the standby, where there is one, shows all that the primary has committed."""
        if self.standby is None:
            return
        async with connecting(self.primary.dsn) as connection:
            here = await connection.fetchval("SELECT pg_current_wal_lsn()::text")
            async with asyncio.timeout(_STREAMING_LIMIT):
                while not await connection.fetchval(
                    "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= $1::text::pg_lsn", here
                ):
                    await asyncio.sleep(0.01)

    async def cut_standby_off(self) -> None:
        """Let nothing of what the primary commits from now on reach the standby."""
        assert self.standby is not None
        self._follows = False
        async with connecting(self.standby.dsn) as connection:
            await connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            await connection.execute("SELECT pg_reload_conf()")
        async with connecting(self.primary.dsn) as connection, asyncio.timeout(_STREAMING_LIMIT):
            while await connection.fetchval("SELECT count(*) FROM pg_stat_replication"):
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def database(self, *, standby: bool = True) -> AsyncIterator[Pair]:
        """Make a database on both nodes, or on those that there are, and drop it at the end."""
        await (self.restore() if standby else self._restore_primary())
        name = f"failover_{next(self._numbers)}"
        async with connecting(self.primary.dsn) as connection:
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        await self.catch_up()
        try:
            yield Pair(self, name)
        finally:
            await self._restore_primary()
            async with connecting(self.primary.dsn) as connection:
                await connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
                await connection.execute("SELECT pg_reload_conf()")
                await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@dataclass(frozen=True, slots=True)
class Pair:
    """A database on both nodes of a cluster."""

    cluster: Cluster
    name: str

    @property
    def dsn(self) -> str:
        """The DSN of whichever node takes writes; the node that is the primary now comes first."""
        primary, other = self.cluster.primary, self.cluster.standby or self.cluster.lost
        account = urlsplit(primary.dsn).netloc.rpartition("@")[0]
        hosts = f"{account}@{primary.address}" + (f",{other.address}" if other else "")
        return urlsplit(primary.of(self.name))._replace(netloc=hosts, query="target_session_attrs=read-write").geturl()

    @property
    def primary(self) -> str:
        """The DSN of the database on the primary alone."""
        return self.cluster.primary.of(self.name)

    @property
    def standby(self) -> str:
        """The DSN of the database on the standby alone."""
        assert self.cluster.standby is not None
        return self.cluster.standby.of(self.name)


async def _to_its_end(order: Callable[..., object], *args: str, **more: str) -> None:
    """Do what blocks in a thread, to its end, also where a loss cancels the test's body in the middle."""
    await asyncio.shield(asyncio.to_thread(order, *args, **more))


@asynccontextmanager
async def connecting(dsn: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Open a connection and close it at the end."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()
