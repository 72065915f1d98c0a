"""A second pair of eyes: the lease table as a connection that has nothing to do with the library sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from tests.support.databases import BACKSTAGE
from tests.support.typing import Connection, Record


@dataclass(slots=True)
class Cost:
    """What a stretch of time cost the whole server: transaction ids and bytes of WAL."""

    xids: int = 0
    wal: int = 0


class Observer:
    """Looks at the rows of one lease table, moves them in time, and gets in the way.

    Attributes:
        connection: Its own connection, for any other SQL.
        dsn: Where it is connected.
        table: The table's name, quoted where that is needed.
    """

    def __init__(self, connection: Connection, dsn: str, table: str = "lease") -> None:
        self.connection = connection
        self.dsn = dsn
        self.table = table

    # Looking ------------------------------------------------------------------------------------

    async def row(self, key: str) -> Record | None:
        """Return the key's row with all its columns, or None."""
        return await self.connection.fetchrow(f"SELECT * FROM {self.table} WHERE key = $1", key)

    async def rows(self) -> list[Record]:
        """Return all rows, sorted by key."""
        return await self.connection.fetch(f"SELECT * FROM {self.table} ORDER BY key")

    async def fence(self, key: str) -> int | None:
        """Return the key's fence, or None where there is no row."""
        record = await self.row(key)
        return None if record is None else int(record["fence"])

    async def is_free(self, key: str) -> bool:
        """Tell whether the key has run out by the server's clock, or has no row."""
        held = await self.connection.fetchval(
            f"SELECT expires_at > clock_timestamp() FROM {self.table} WHERE key = $1", key
        )
        return not held

    async def until_free(self, key: str, *, within: float) -> float:
        """Wait until the key is free and return how long that took, in seconds.

        Raises:
            TimeoutError: If it is not free after `within` seconds.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with asyncio.timeout(within):
            while not await self.is_free(key):
                await asyncio.sleep(0.01)
        return loop.time() - started

    async def version(self, key: str) -> tuple[object, ...]:
        """Return the row's place, writer and locker: it changes with every write and every row lock."""
        record = await self.connection.fetchrow(
            f"SELECT ctid::text, xmin::text, xmax::text FROM {self.table} WHERE key = $1", key
        )
        return tuple(record or ())

    @asynccontextmanager
    async def cost(self) -> AsyncIterator[Cost]:
        """Measure the transaction ids and the WAL that the server used inside the block.

        The whole server is measured, so a background process can add to it: take the quietest of
        several rounds.
        """
        cost = Cost()
        xid, wal = await self._counters()
        yield cost
        xid_after, wal_after = await self._counters()
        cost.xids, cost.wal = xid_after - xid, wal_after - wal

    async def _counters(self) -> tuple[int, int]:
        record = await self.connection.fetchrow(
            "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,"
            " (pg_current_wal_insert_lsn() - '0/0')::bigint"
        )
        assert record is not None
        return int(record[0]), int(record[1])

    # Moving rows -----------------------------------------------------------------------------------

    async def shift(self, key: str, seconds: float) -> None:
        """Move a row in time: a negative number of seconds makes it older, as if it had been waited for."""
        await self.connection.execute(
            f"UPDATE {self.table} SET acquired_at = acquired_at + $2, expires_at = expires_at + $2,"
            " released_at = released_at + $2 WHERE key = $1",
            key,
            timedelta(seconds=seconds),
        )

    async def expire(self, key: str) -> None:
        """Make a row run out now, as if its holder had died a ttl ago."""
        await self.connection.execute(
            f"UPDATE {self.table} SET acquired_at = clock_timestamp() - (expires_at - acquired_at),"
            " expires_at = clock_timestamp() WHERE key = $1",
            key,
        )

    async def hand_over(self, key: str, holder: str = "other", *, ttl: float = 60, fence: int | None = None) -> None:
        """Give the row to another holder, by default with the next fence, as a take-over does."""
        await self.connection.execute(
            f"UPDATE {self.table} SET holder = $2, fence = coalesce($3, fence + 1), released_at = NULL,"
            " acquired_at = clock_timestamp(), expires_at = clock_timestamp() + $4 WHERE key = $1",
            key,
            holder,
            fence,
            timedelta(seconds=ttl),
        )

    # Getting in the way ----------------------------------------------------------------------------

    @asynccontextmanager
    async def locked(self, key: str, strength: str = "UPDATE") -> AsyncIterator[Connection]:
        """Hold a lock on the row (SELECT .. FOR `strength`) in another session's open transaction."""
        connection = await _connect(self.dsn)
        try:
            async with connection.transaction():
                await connection.execute(f"SELECT 1 FROM {self.table} WHERE key = $1 FOR {strength}", key)
                yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def inserting(self, key: str) -> AsyncIterator[None]:
        """Hold a first insert of a key open, undone at the end: the key's claims wait on the server for so long."""
        connection = await _connect(self.dsn)
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(
                f"INSERT INTO {self.table} (key, holder, fence, acquired_at, expires_at)"
                " VALUES ($1, 'other', 1, now(), now() + interval '1 second')",
                key,
            )
            yield
        finally:
            await transaction.rollback()
            await connection.close()

    async def until_waiting(self, sessions: int = 1, *, within: float = 10) -> None:
        """Wait until so many other sessions of this database wait for a lock.

        Raises:
            TimeoutError: If they do not after `within` seconds.
        """
        async with asyncio.timeout(within):
            while sessions > await self.connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND state = 'active' AND wait_event_type = 'Lock'"
            ):
                await asyncio.sleep(0.005)

    async def backends(self) -> list[int]:
        """Return the process ids of all other client sessions in this database, but for the tests' own."""
        records = await self.connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name <> $1"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY pid",
            BACKSTAGE,
        )
        return [int(record[0]) for record in records]

    async def terminate_backends(self) -> int:
        """End all other client sessions in this database, as an administrator would; return how many."""
        pids = await self.backends()
        for pid in pids:
            assert await self.connection.fetchval("SELECT pg_terminate_backend($1, 5000)", pid)
        return len(pids)


async def _connect(dsn: str) -> Connection:
    # Without asking for TLS first, which is one more round trip.
    return await asyncpg.connect(dsn, ssl=False)


@asynccontextmanager
async def observing(dsn: str, table: str = "lease") -> AsyncIterator[Observer]:
    """Open an observer on a database and close it at the end."""
    connection = await _connect(dsn)
    try:
        yield Observer(connection, dsn, table)
    finally:
        await connection.close()
