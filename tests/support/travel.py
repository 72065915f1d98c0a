"""Time that is moved and not waited for: the event loop's clock, the library's, and the rows', on a real server.

The event loop and the library read their clocks from the module `time`, in which `travel` puts functions that add what
was travelled. The server's clock cannot be moved, so the rows are: each timestamp of each lease table becomes older.
Timers fire one after the other, each at its own time, and what they begin is done before the next one.

uvloop has a clock of its own, so tests that travel are left out of runs on it (`tests.support.options`).
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg

from tests.support.typing import Connection

Condition = Callable[[], object] | Callable[[], Awaitable[object]]

_MOVE = """
DO $$
DECLARE
    moved record;
    rows bigint;
    reached bigint;
BEGIN
    FOR moved IN
        SELECT
            attrelid::regclass AS lease_table,
            string_agg(format('%1$I = %1$I - %2$L::interval', attname, current_setting('travel.by')), ', ') AS changes
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE relkind = 'r' AND attnum > 0 AND atttypid = 'timestamptz'::regtype AND relpersistence <> 't'
            AND EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = pg_class.oid AND a.attname = 'fence')
            AND EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = pg_class.oid AND a.attname = 'expires_at')
        GROUP BY attrelid
    LOOP
        EXECUTE format(
            'UPDATE %1$s SET %2$s WHERE ctid = ANY (ARRAY(SELECT ctid FROM %1$s FOR NO KEY UPDATE SKIP LOCKED))',
            moved.lease_table, moved.changes
        );
        GET DIAGNOSTICS reached = ROW_COUNT;
        EXECUTE format('SELECT count(*) FROM %s', moved.lease_table) INTO rows;
        IF reached < rows THEN
            RAISE 'another session has locked a row of %: travel with rows=False', moved.lease_table;
        END IF;
    END LOOP;
END $$
"""
# Who waits for a lock, or sleeps, waits until somebody else does something; all others are about to answer.
_BUSY = """
SELECT
    count(*) FILTER (WHERE state = 'active' AND coalesce(wait_event_type, '') NOT IN ('Lock', 'Timeout')),
    max(state_change)
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_TURNS = 12
"""Turns of the event loop in which whatever has arrived comes to where it is awaited, through the proxy too."""
_REST_LIMIT = 20.0
"""How many real seconds a server may take to come to rest, on however busy a machine."""
TRAVELLER = "travel"
"""The application's name of the session that moves the rows, which no fault of a test's is to hit."""


class _Clocks:
    """The functions of the module `time`, and how far from them we are."""

    def __init__(self) -> None:
        self.skew = self.asleep = 0.0
        self._monotonic, self._gettime = time.monotonic, time.clock_gettime

    def move(self, seconds: float, *, asleep: float = 0.0) -> None:
        if not self.skew and not self.asleep:
            time.monotonic = lambda: self._monotonic() + self.skew
            time.clock_gettime = lambda clock, /: self._gettime(clock) + self.skew + self.asleep
        self.skew += seconds
        self.asleep += asleep

    def reset(self) -> None:
        self.skew = self.asleep = 0.0
        time.monotonic, time.clock_gettime = self._monotonic, self._gettime


_clocks = _Clocks()
come_back = _clocks.reset
"""Return to the present, which all processes share, at the end of a test."""


class Travel:
    """Lets time pass for one database and everything in this process.

    Example:
        async def test_lease_is_kept(table: LeaseTable, travel: Travel) -> None:
            async with lease(table, "job", ttl=30) as held:
                await travel(300)
                assert held.is_held
    """

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, seconds: float, *, rows: bool = True) -> None:
        """Let so many seconds pass.

        Args:
            seconds: How many.
            rows: Whether for the rows as well. False where another session has locked one, or the table.
        """
        await self._until(lambda: False, seconds, rows=rows)

    async def until(self, condition: Condition, *, within: float, rows: bool = True) -> float:
        """Let time pass until a condition is true, and return how many seconds that took.

        Args:
            condition: A function, or a coroutine function, that tells.
            within: How many seconds may pass.
            rows: As for a call.

        Raises:
            TimeoutError: If it is not true when they have passed.
        """
        passed = await self._until(condition, within, rows=rows)
        if passed is None:
            message = f"it did not become true within {within} s"
            raise TimeoutError(message)
        return passed

    async def block(self, seconds: float) -> None:
        """Let so many seconds pass in which the event loop stands still, as in a call that blocks it."""
        await self._settle()
        await self._move_rows(seconds)
        _clocks.move(seconds)

    async def suspend(self, seconds: float) -> None:
        """Let so many seconds pass in which the machine sleeps: the loop's timers do not count them."""
        await self._settle()
        await self._move_rows(seconds)
        _clocks.move(0.0, asleep=seconds)

    async def _until(self, condition: Condition, seconds: float, *, rows: bool) -> float | None:
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            started = loop.time()
            while True:
                await self._settle()
                outcome = condition()
                if inspect.isawaitable(outcome):
                    outcome = await outcome
                if outcome:
                    return loop.time() - started
                left = started + seconds - loop.time()
                if left <= 0:
                    return None
                step = min(left, _next_timer(loop) - loop.time())
                if step > 0:
                    if rows:
                        await self._move_rows(step)
                    _clocks.move(step)

    async def _move_rows(self, seconds: float) -> None:
        if self._connection is not None:
            async with self._connection.transaction():
                await self._connection.execute("SELECT set_config('travel.by', $1, true)", f"{seconds:.6f} s")
                await self._connection.execute(_MOVE)

    async def _settle(self) -> None:
        """Wait until nothing happens without time passing: the server is at rest, and its answers have come in."""
        until = time.monotonic() + _REST_LIMIT
        last: object = None
        while True:
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            if self._connection is None:
                return
            seen = await self._connection.fetchrow(_BUSY)
            assert seen is not None
            # Twice the same: a session is called idle just before its answer is sent.
            if not seen[0] and seen == last:
                return
            if time.monotonic() > until:
                message = "a session of this database does not come to rest: a fake clock cannot wait for it"
                raise TimeoutError(message)
            last = seen


def _next_timer(loop: asyncio.AbstractEventLoop) -> float:
    """Return when the next timer is due."""
    scheduled: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined]
    return min((timer.when() for timer in scheduled if not timer.cancelled()), default=float("inf"))


@asynccontextmanager
async def travelling(dsn: str | None) -> AsyncIterator[Travel]:
    """Yield what moves the time of a database; without one, of this process alone."""
    if dsn is None:
        yield Travel(None)
        return
    connection = await asyncpg.connect(dsn, server_settings={"lock_timeout": "1000", "application_name": TRAVELLER})
    try:
        yield Travel(connection)
    finally:
        connection.terminate()
