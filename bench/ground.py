"""What the measurements of guarded transactions stand on: a pool with a lease table, and a relay that counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
from run import SCHEMA

from asyncpg_lease import Lease, LeaseTable

if TYPE_CHECKING:
    from typing import TypeAlias

    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    Connection: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

KEY = "key"
TTL = 600.0
POLL = 0.1
ROWS = 1000
WRITE = f"UPDATE {SCHEMA}.account SET balance = balance + 1 WHERE id = $1"


class Relay:
    """Passes a connection on to the server, and counts its round trips: how often the client speaks after it."""

    def __init__(self, dsn: str) -> None:
        self._to = urlsplit(dsn)
        self._spoke_last: asyncio.StreamReader | None = None
        self.round_trips = 0

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asks: bool) -> None:
        """Pass on what one side says."""
        while chunk := await reader.read(65536):
            if asks and self._spoke_last is not reader:
                self.round_trips += 1
            self._spoke_last = reader
            writer.write(chunk)
        writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        answers, asked = await asyncio.open_connection(self._to.hostname, self._to.port)
        await asyncio.gather(self.pass_on(reader, asked, asks=True), self.pass_on(answers, writer, asks=False))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yield the DSN that leads through here."""
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            credentials = self._to.netloc.rpartition("@")[0]
            yield self._to._replace(netloc=f"{credentials}@127.0.0.1:{port}").geturl()


@asynccontextmanager
async def leasing(dsn: str, **options: object) -> AsyncIterator[tuple[Pool, LeaseTable]]:
    """Yield a pool and a new lease table on it, and beside that a table to write to."""
    async with asyncpg.create_pool(dsn, min_size=3, max_size=3, **options) as pool:
        await pool.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        table = LeaseTable(pool, schema=SCHEMA, poll=POLL)
        await table.create()
        await pool.execute(f"CREATE TABLE {SCHEMA}.account (id bigint PRIMARY KEY, balance bigint NOT NULL)")
        await pool.execute(f"INSERT INTO {SCHEMA}.account SELECT id, 0 FROM generate_series(1, {ROWS}) AS id")
        yield pool, table
        await table.aclose()


def transactions(held: Lease, connection: Connection) -> dict[str, Callable[[], AbstractAsyncContextManager[object]]]:
    """Return what opens a transaction, with and without a guard."""
    return {"plain": connection.transaction, "guarded": lambda: held.transaction(connection)}
