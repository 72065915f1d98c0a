"""Stop holders in the middle of their writes, let successors begin, let the holders go on, and look for stale commits.

    python -m tests.fencing.paused [--runs 1000] [--seed N] [--programs DIR]

Fails if a rule was broken (see `tests.history.judge`), if the runs without a guard have fewer than one stale commit for
20 guarded runs, or if something that was to be seen was not. The same seed makes the same plan; what meets what within
it is the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import asyncpg

from asyncpg_lease import Lease, try_acquire
from asyncpg_lease.testing import EmbeddedServer
from tests.fencing.paused_holder import hold
from tests.fencing.paused_seen import Seen, count, least, stale_keys, table
from tests.fencing.paused_tenures import AT_ONCE, CONTROL, FENCED, PARTS, PATHS, POINTS, TABLES, Tenure, writing
from tests.fencing.paused_tenures import plan as make_plan
from tests.fencing.writing import ISOLATIONS
from tests.history.gather import directly, gathering
from tests.history.history import History, by_key
from tests.history.judge import broken_rules, unseen
from tests.history.report import stories
from tests.support.databases import TEST_SETTINGS, Server
from tests.support.loops import run
from tests.support.observe import Observer, observing
from tests.support.processes import Child, Spawn, spawning
from tests.support.typing import Pool, PooledConnection

GUARDED_A_ROUND = (len(PATHS) - len(CONTROL)) * len(ISOLATIONS) * len(POINTS)
PROCESSES = 2
PATIENCE = 60.0
"""Seconds for anything that must come."""

PAUSE = 0.01


@dataclass(slots=True)
class Run(Seen):
    """One tenure whose process is stopped, and its successor."""

    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """All has happened that can before the process goes on."""
    successor: Lease | None = None


@dataclass(slots=True)
class Result:
    """What was seen of all runs; those without a guard or a fence have a history of their own."""

    runs: list[Seen] = field(default_factory=list)
    guarded: History = field(default_factory=History)
    control: History = field(default_factory=History)

    def of(self, tenure: Tenure) -> History:
        """Return the history to which a tenure belongs."""
        return self.control if tenure.path in CONTROL else self.guarded

    def place(self) -> None:
        """Give each write its place, and those of the control to the control."""
        writes = by_key(self.guarded.writes)
        self.guarded.writes = []
        for seen in self.runs:
            self.of(seen.tenure).writes += [seen.placed(write) for write in writes.get(seen.tenure.key, ())]

    def complaints(self, guarded: int, stale: int) -> list[str]:
        """Return the rules that were broken, and what was to be seen so often and was not."""
        # What the control shows is that nothing else puts its writes in order.
        expected = {"writes out of order"}
        others = broken_rules(self.control).keys() - expected
        seen = count(self.runs, stale_keys(self.control))
        return [
            *stories(self.guarded),
            *(stories(self.control) if others else ()),
            *unseen(seen, least(guarded, stale)),
        ]

    def table(self) -> list[str]:
        """Return the lines of the results."""
        return [*table(self.runs, stale_keys(self.control))]


class Parent:
    """Stops a process, takes over what it holds, and has it go on."""

    def __init__(self, child: Child, pool: Pool, observe: Observer, result: Result) -> None:
        self._child = child
        self._result = result
        self._pool = pool
        self._observe = observe
        # One connection, which many tasks ask.
        self._looking = asyncio.Lock()
        self._stopped = False

    async def run(self, batch: Sequence[Tenure]) -> None:
        """Run one batch, and note what was seen of each tenure that came to its point."""
        numbers = [tenure.number for tenure in batch]
        for name in ("page", "plain_page"):
            await self._pool.execute(f"INSERT INTO {name} SELECT 'job-' || n, 0 FROM unnest($1::int[]) AS n", numbers)
        async with self._pool.acquire() as gate:
            for tenure in batch:
                await gate.execute("SELECT pg_advisory_lock($1)", tenure.waits_at)
            await self._child.send(batch=[asdict(tenure) for tenure in batch])
            reached = (await self._child.event(within=PATIENCE))["tenures"]
            assert isinstance(reached, list)
            runs = [Run(tenure) for tenure in batch if tenure.number in reached]
            await self._until_waiting([run.tenure for run in runs])
            outcomes = await self._stop_and_take_over(runs, gate)
        for each in runs:
            await self._note(each, *outcomes[str(each.tenure.number)])

    async def _until_waiting(self, tenures: Sequence[Tenure]) -> None:
        """Wait until the server is in the middle of the statement of each tenure that is to be stopped there."""
        expected = {tenure.waits_at for tenure in tenures} - {None}
        waiting = "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = ANY($1)"
        async with asyncio.timeout(PATIENCE):
            while {row[0] for row in await self._observe.connection.fetch(waiting, list(expected))} != expected:
                await asyncio.sleep(PAUSE)

    async def _stop_and_take_over(self, runs: Sequence[Run], gate: PooledConnection) -> dict[str, tuple[int, str]]:
        await self._child.send(stop=True)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            while not _has_stopped(self._child.pid):
                await asyncio.sleep(PAUSE)
            self._stopped = True
            # First those that the server will have ended soon: they are to refuse a claim before.
            for each in sorted(runs, key=lambda run: run.tenure.ends, reverse=True):
                group.create_task(self._succeed(each, gate))
            for each in runs:
                await each.settled.wait()
            self._stopped = False
            self._child.signal(signal.SIGCONT)
            return (await self._child.event(within=PATIENCE))["outcomes"]  # type: ignore[return-value] # what the holder sends

    # The successor -------------------------------------------------------------------------------

    async def _succeed(self, run: Run, gate: PooledConnection) -> None:
        """Take the key over, at once or when the guard has ended, and write."""
        tenure = run.tenure
        successor = await self._first_claim(tenure)
        if successor is None:
            run.refused = True
            await self._let_statement_end(tenure, gate)
            if tenure.ends == "itself":
                run.settled.set()
        while successor is None:
            await asyncio.sleep(PAUSE)
            successor = await try_acquire(self._pool, tenure.key, ttl=PATIENCE)
        run.successor, run.granted_in_stop = successor, self._stopped
        async with self._pool.acquire() as connection:
            write = asyncio.ensure_future(self._write(run, connection, successor.fence))
            while tenure.path in FENCED and not write.done() and not await self._is_blocked(connection):
                await asyncio.sleep(PAUSE)
            if tenure.path not in FENCED:
                await write
            if not run.refused:
                await self._let_statement_end(tenure, gate)
            # Behind the holder's own lock of the row it ends when that has gone on.
            run.settled.set()
            await write

    async def _first_claim(self, tenure: Tenure) -> Lease | None:
        """Claim once the row has run out; a refusal is then a lock's doing, and comes at once.

        One that waited for the guard would never come where the holder goes on only after it.
        """
        while True:
            if tenure.ttl >= PATIENCE / 2:
                # Again, where a renewal was on its way to the server already.
                async with self._looking:
                    await self._observe.expire(tenure.key)
            while not await self._is_free(tenure.key):
                await asyncio.sleep(PAUSE)
            successor = await try_acquire(self._pool, tenure.key, ttl=PATIENCE)
            if successor is not None or await self._is_free(tenure.key):
                return successor

    async def _is_free(self, key: str) -> bool:
        async with self._looking:
            return await self._observe.is_free(key)

    async def _is_blocked(self, connection: PooledConnection) -> bool:
        async with self._looking:
            blockers = "SELECT cardinality(pg_blocking_pids($1)) > 0"
            return bool(await self._observe.connection.fetchval(blockers, connection.get_server_pid()))

    async def _let_statement_end(self, tenure: Tenure, gate: PooledConnection) -> None:
        async with self._looking:
            if tenure.waits_at is not None:
                await gate.execute("SELECT pg_advisory_unlock($1)", tenure.waits_at)

    async def _write(self, run: Run, connection: PooledConnection, fence: int) -> None:
        """Write as a successor, and look at what is there right before the commit and right after it."""
        async with connection.transaction(isolation="read_committed"):
            for _ in range(PARTS):
                status = await connection.execute(writing(run.tenure.path), run.tenure.key, fence, False, None)
                assert status == "INSERT 0 1", f"{run.tenure}: the successor was refused"
            run.before = await _written(connection, run.tenure.key)
        run.after = await _written(connection, run.tenure.key)

    async def _note(self, run: Run, fence: int, outcome: str) -> None:
        """Note what was seen of a run, and what both writers were told."""
        assert run.successor is not None
        await run.successor.release()
        run.outcome, run.taken_by = outcome, run.successor.fence
        self._result.runs.append(run)
        history, at = self._result.of(run.tenure), time.monotonic()
        for each, answer in ((fence, outcome), (run.taken_by, "committed")):
            history.add("answer", at, key=run.tenure.key, fence=each, outcome=answer, parts=PARTS)
        history.add("confirmed", at, numbers=run.before | run.after)


def _has_stopped(pid: int) -> bool:
    """Tell once of each time that a process of ours has been stopped; an end is left to whoever waits for that."""
    return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None


async def _written(connection: PooledConnection, key: str) -> frozenset[int]:
    return frozenset(row[0] for row in await connection.fetch("SELECT number FROM written WHERE key = $1", key))


# All of them -------------------------------------------------------------------------------------


async def run_plan(dsn: str, rounds: int, seed: int, *, processes: int = PROCESSES) -> Result:
    """Make the tables in an empty database, run a plan in it, and return what was seen."""
    batches = make_plan(rounds, seed)
    async with gathering(dsn) as (history, _):
        result = Result(guarded=history)
        async with directly(dsn) as connection:
            await connection.execute(TABLES)
        async with spawning() as spawn, asyncio.TaskGroup() as group:
            for _ in range(processes):
                group.create_task(_run_batches(spawn, dsn, batches, result))
    result.place()
    return result


async def _run_batches(spawn: Spawn, dsn: str, batches: list[list[Tenure]], result: Result) -> None:
    async with observing(dsn) as observe, asyncpg.create_pool(dsn, min_size=2, max_size=AT_ONCE + 6) as pool:
        parent = Parent(await spawn(hold, dsn), pool, observe, result)
        while batches:
            await parent.run(batches.pop())


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fencing.paused")
    parser.add_argument("--runs", type=int, default=1000, help="so many at least of guarded paths (%(default)s)")
    parser.add_argument("--seed", type=int, help="of an earlier run, to have its plan again")
    parser.add_argument(
        "--programs", type=Path, metavar="DIR", help="where initdb, pg_ctl and postgres are; the wheel's"
    )
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    started = time.monotonic()
    with EmbeddedServer(TEST_SETTINGS, programs=options.programs) as embedded:
        server = Server.at(embedded.dsn, "embedded")
        server.make_connecting_cheap()
        sys.stdout.write(f"PostgreSQL {server.major}, --runs {options.runs} --seed {seed}\n")
        sys.stdout.flush()
        with server.database() as database:
            result = run(run_plan(database.dsn, math.ceil(options.runs / GUARDED_A_ROUND), seed))
    wrong = result.complaints(options.runs, options.runs // 20)
    lines = [*result.table(), f"{len(result.runs)} runs in {time.monotonic() - started:.0f} s", *wrong]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
