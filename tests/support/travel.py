"""Time that is moved and not waited for: the event loop's clock, the library's, and the rows', on a real server.

The event loop and the library read their clocks from the module `time`, in which `travel` puts functions that add what
was travelled. The server's clock cannot be moved, so the rows are: each timestamp of each lease table becomes older.
Timers fire one after the other, each at its own time, and what they begin is done before the next one.

Time also passes what nobody here can see: a thread's work, a statement in another database, and what the server ends
by a timeout of its own. Triggers on a lease table see the rows move.

uvloop has a clock of its own, and nobody can see what is on its way through a pooler: tests that travel are left out of
runs on these (`tests.support.options`).
"""

from __future__ import annotations

import asyncio
import inspect
import selectors
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import sql

from tests.support import sockets
from tests.support.databases import Database

Condition = Callable[[], object] | Callable[[], Awaitable[object]]
T = TypeVar("T")

_MOVE = """
SELECT set_config('lock_timeout', '300', true), set_config('travel.by', {}, true);
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
# A session at rest waits for its client's next request. One that waits for a lock, or sleeps, waits for somebody else.
_SEEN = """
SELECT
    array_agg(pid) FILTER (
        WHERE state IS NOT NULL AND coalesce(wait_event, '') <> 'ClientRead'
            AND coalesce(wait_event_type, '') NOT IN ('Lock', 'Timeout')
    ) AS busy,
    max(state_change) AS changed,
    (SELECT array_agg(client_port ORDER BY pid) FROM pg_stat_activity WHERE client_port > 0 AND state <> 'starting')
        AS ports,
    (SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity WHERE client_port > 0 AND state <> 'starting') AS pids
FROM pg_stat_activity
-- From PostgreSQL 18 on a session is there while it logs in, and in no database yet.
WHERE (datname = current_database() OR state = 'starting') AND backend_type = 'client backend'
    AND pid <> pg_backend_pid()
"""
_IDLE_TURNS = 8
"""Turns in a row in which nothing else ran: whatever had arrived is where it is awaited."""
_MOST_TURNS = 1000
"""After so many turns in a row a loop is busy for good, and time goes on."""
_MOST_LOOKS = 10
"""After so many looks at one time a loop is busy for good, and time goes on."""
_REST_LIMIT = 20.0
"""How many real seconds a server may take to come to rest, on however busy a machine."""
_DEAF_LIMIT = 3.0
"""After how many real seconds a peer that reads nothing is taken for one that has been stopped."""
_MOVES = 4
"""After how many tries it is no passing statement that has a row or a table locked."""
_LOCKED_TABLE = "another session has locked a lease table: travel with rows=False"


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

    def __init__(self, database: Database | None) -> None:
        """Travel with the rows of a database; without one, this process alone travels."""
        self._database = database
        self._seen: dict[str, Any] | None = None
        self._deaf: set[int] = set()
        self._jumps = 0
        self._one_at_a_time = asyncio.Lock()

    @property
    def moved(self) -> float:
        """Seconds that were moved so far. What a busy machine takes is not in it, so that limits can be exact."""
        return _clocks.skew

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

    async def through(self, work: Awaitable[T], *, within: float, rows: bool = True) -> T:
        """Let time pass until something is done, and return what it returns.

        Args:
            work: A coroutine, a task or a future; cancelled if it is not done in time.
            within: How many seconds may pass.
            rows: As for a call.

        Raises:
            TimeoutError: If it is not done when they have passed.
        """
        done = asyncio.ensure_future(work)
        try:
            await self.until(done.done, within=within, rows=rows)
        except BaseException:
            done.cancel()
            raise
        return await done

    async def block(self, seconds: float) -> None:
        """Let so many seconds pass in which the event loop stands still, as in a call that blocks it."""
        await self._jump(seconds)
        _clocks.move(seconds)

    def stall(self, seconds: float) -> None:
        """Let so many seconds pass at once, in which nothing gets a turn. The rows stay where they are."""
        _clocks.move(seconds)

    async def suspend(self, seconds: float) -> None:
        """Let so many seconds pass in which the machine sleeps: the loop's timers do not count them."""
        await self._jump(seconds)
        _clocks.move(0.0, asleep=seconds)

    async def _jump(self, seconds: float) -> None:
        self._jumps += 1
        try:
            async with self._one_at_a_time:
                await self._settle()
                await self._move_rows(seconds)
        finally:
            self._jumps -= 1

    async def _until(self, condition: Condition, seconds: float, *, rows: bool) -> float | None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        # A timer, so that another one that travels meanwhile does not pass by; its context keeps nothing alive.
        end = loop.call_at(started + seconds, lambda: None, context=Context())
        looks = 0
        try:
            while True:
                async with self._one_at_a_time:
                    await self._settle()
                    outcome = condition()
                    if inspect.isawaitable(outcome):
                        outcome = await outcome
                    if outcome:
                        return loop.time() - started
                    if loop.time() >= end.when():
                        return None
                    looks += 1
                    if looks < _MOST_LOOKS and _has_work(loop):
                        # A timer has fired in the meantime: what it begins may set one that is due before the next.
                        continue
                    looks = 0
                    step = min(end.when(), _next_timer(loop)) - loop.time()
                    if step > 0 and not self._jumps:
                        if rows:
                            await self._move_rows(step)
                        _clocks.move(step)
        finally:
            end.cancel()

    async def _move_rows(self, seconds: float) -> None:
        if self._database is None:
            return
        move = sql.SQL(_MOVE).format(f"{seconds:.6f} s")
        for tries_left in reversed(range(_MOVES)):
            try:
                # The event loop stands still for it: a renewal that began meanwhile would find its row locked.
                self._database.execute(move)
            except (psycopg.errors.LockNotAvailable, psycopg.errors.RaiseException) as error:
                if not tries_left:
                    is_table = isinstance(error, psycopg.errors.LockNotAvailable)
                    told = _LOCKED_TABLE if is_table else str(error).partition("\n")[0]
                    raise RuntimeError(told) from error
                await self._settle()
            else:
                return

    async def _settle(self) -> None:
        """Wait until nothing happens without time passing: the server is at rest, and its answers have come in."""
        loop = asyncio.get_running_loop()
        # This clock is not moved.
        started = time.perf_counter()
        while True:
            await _come_to_rest(loop)
            if self._database is None:
                return
            # Before the question: what has been read by now shows in the answer.
            last = self._seen
            unheard = sockets.unheard(loop, (last and last["ports"]) or ()) - self._deaf
            self._seen = seen = self._database.execute(_SEEN).fetchone()
            assert seen is not None
            # And after it: who logs in may have sent something since.
            now = sockets.unheard(loop, seen["ports"] or ())
            # Who has read something since was only slow.
            self._deaf &= now
            unheard |= now - self._deaf
            if unheard:
                unheard -= {
                    port for port, pid in zip(seen["ports"] or (), seen["pids"] or (), strict=True) if is_stopped(pid)
                }
            # Twice the same: what was answered by the first time has come in now.
            is_busy = any(not is_stopped(pid) for pid in seen["busy"] or ())
            if not unheard and not is_busy and last is not None and seen["changed"] == last["changed"]:
                return
            waited = time.perf_counter() - started
            if waited > _REST_LIMIT:
                message = "a session of this database does not come to rest: a fake clock cannot wait for it"
                raise TimeoutError(message)
            if waited > _DEAF_LIMIT:
                self._deaf |= unheard


async def _come_to_rest(loop: asyncio.AbstractEventLoop) -> None:
    """Let the event loop turn until nobody else has anything to do in it."""
    ready: deque[asyncio.Handle] = loop._ready  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio's
    idle = 0
    for _ in range(_MOST_TURNS):
        await asyncio.sleep(0)
        idle = 0 if ready else idle + 1
        if idle == _IDLE_TURNS:
            return


def _has_work(loop: asyncio.AbstractEventLoop) -> bool:
    """Tell whether the event loop's next turn has something to do."""
    ready: deque[asyncio.Handle] = loop._ready  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio's
    selector: selectors.BaseSelector | None = getattr(loop, "_selector", None)
    return bool(ready) or (isinstance(selector, selectors.BaseSelector) and bool(selector.select(0)))


def _next_timer(loop: asyncio.AbstractEventLoop) -> float:
    """Return when the next timer is due."""
    scheduled: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio's
    return min((timer.when() for timer in scheduled if not timer.cancelled()), default=float("inf"))


def is_stopped(pid: int) -> bool:
    """Tell whether a process of this machine was stopped by a signal: on Linux, else it is not known."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")
    return False
