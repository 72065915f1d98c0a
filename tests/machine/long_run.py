"""Processes that acquire keys and are killed in the middle, while their keys are revoked, pruned and advanced.

A seed makes who does what; what meets what is the machine's.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg

from asyncpg_lease import LeaseTable, acquire
from tests.machine.long_run_history import Body, History, Write, unseen
from tests.machine.long_run_worker import KEYS, SLOW, TTL, WRITTEN, work
from tests.support.job import JOB
from tests.support.processes import Child, Spawn, spawning

PROCESSES = 3
PATIENCE = 30.0
"""Seconds for anything that must come."""

PAUSE = 0.1

WARM = 80
"""Reports of a process, two for each body, before it may be killed: a new one has nothing to leave behind."""

EVERY = {"kill": 1.0, "revoke": 0.03, "prune": 0.005, "advance": 3.0}
"""Seconds from one to the next, on average."""


class Parent:
    """Keeps the processes, does to them what may happen to them, and notes what they report."""

    def __init__(self, dsn: str, acquisitions: int, seed: int, table: LeaseTable, spawn: Spawn) -> None:
        self.history = History()
        self._dsn = dsn
        self._acquisitions = acquisitions
        self._seed = seed
        self._table = table
        self._spawn = spawn
        self._numbers = itertools.count(1)
        self._started: set[Child] = set()
        self._working: set[Child] = set()
        self._killed: dict[Child, float] = {}
        self._enough = asyncio.Event()

    async def run(self) -> None:
        """Run until there have been enough acquisitions, and the processes have come to their end."""
        trouble = {"kill": self._kill, "revoke": self._revoke, "prune": self._prune, "advance": self._advance}
        async with asyncio.TaskGroup() as group:
            kept = [group.create_task(self._keep()) for _ in range(PROCESSES)]
            # Two at once are a case of their own.
            names = [*trouble, "prune"]
            troubling = [
                group.create_task(self._again(name, trouble[name], number)) for number, name in enumerate(names)
            ]
            await self._until_enough()
            for task in troubling:
                task.cancel()
            await asyncio.wait(troubling)
            for child in self._started - self._killed.keys():
                await child.send(stop=True)
            await asyncio.wait(kept)
        for key in KEYS:
            held = await acquire(self._table, key, ttl=TTL, wait=PATIENCE)
            self.history.last[key] = held.fence
            await held.release()

    async def _until_enough(self) -> None:
        """Wait for the acquisitions, and then for what is to be seen and has not been yet."""
        while len(self.history.bodies) < self._acquisitions:
            await asyncio.sleep(PAUSE)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while list(unseen(self.history, least=self._acquisitions)):
                    await asyncio.sleep(PAUSE)
        self._enough.set()

    # The processes ----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Start a process, and another one whenever it was killed."""
        while not self._enough.is_set():
            number = next(self._numbers)
            child = await self._spawn(work, self._dsn, f"{self._seed} {number}")
            self._started.add(child)
            if self._enough.is_set():
                await child.send(stop=True)
            running = await self._listen(child, number)
            self._started.discard(child)
            self._working.discard(child)
            code = await child.wait()
            assert child in self._killed or (code, running) == (0, []), f"process {number} ended with {code}: {running}"
            for body in running:
                body.ended = self._killed[child]

    async def _listen(self, child: Child, process: int) -> list[Body]:
        """Note what a process reports until its end; return the bodies that had not ended by then."""
        running: dict[int, Body] = {}
        for reports in itertools.count(1):
            try:
                event: dict[str, Any] = await child.event(within=PATIENCE)
            except EOFError:
                break
            at = event.pop("at")
            if "began" in event:
                number = event.pop("began")
                body = running[number] = Body(process=process, started=at, **event)
                self.history.bodies.append(body)
            elif "ended" in event:
                body = running.pop(event["ended"])
                body.ended, body.outcome, body.stood_still = at, event["outcome"], event["stood_still"]
            elif event["refused"] == "late":
                self.history.refused += 1
            else:
                self.history.guarded_refused.append((event["key"], event["fence"]))
            if reports == WARM and child not in self._killed:
                self._working.add(child)
        return list(running.values())

    # What may happen --------------------------------------------------------------------------------

    async def _again(self, name: str, happen: Callable[[random.Random], Awaitable[None]], number: int) -> None:
        choose = random.Random(f"{self._seed} {name} {number}")  # noqa: S311 - for tests
        while True:
            await asyncio.sleep(choose.uniform(0, 2 * EVERY[name]))
            await happen(choose)

    async def _kill(self, choose: random.Random) -> None:
        if not self._working:
            return
        child = choose.choice(sorted(self._working, key=lambda child: child.pid))
        self._working.discard(child)
        child.signal(signal.SIGKILL)
        _wait_for_the_end(child.pid)
        self._killed[child] = time.monotonic()
        self.history.kills += 1

    async def _revoke(self, choose: random.Random) -> None:
        key = choose.choice(KEYS if choose.random() < 0.5 else SLOW)
        info = await self._table.get(key)
        fence = None if info is None or choose.random() < 0.5 else info.fence
        force = fence is not None and choose.random() < 0.2
        if force and fence is not None:
            self.history.forced.add((key, fence))
        elif fence is not None:
            fence -= choose.random() < 0.3
        revocation = await self._table.revoke(key, fence=fence or None, force=force)
        self.history.revokes[revocation.outcome] += 1

    async def _prune(self, _: random.Random) -> None:
        pruned = await self._table.prune(0)
        self.history.prunes += 1
        self.history.pruned += pruned.deleted

    async def _advance(self, choose: random.Random) -> None:
        self.history.advances.append(await self._table.advance_fences(choose.randint(1, 100)))


def _wait_for_the_end(pid: int) -> None:
    """Block until a process that was killed is gone, so that its last moment is known well."""
    # Whoever else waits for the child may have been quicker, and is left to it otherwise.
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def run_long(dsn: str, acquisitions: int, seed: int) -> History:
    """Make the tables in an empty database, run in it, and return what was seen."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=6) as pool, spawning() as spawn:
        table = LeaseTable(pool, poll=0.05)
        await table.create()
        await pool.execute(JOB)
        await pool.execute(WRITTEN)
        parent = Parent(dsn, acquisitions, seed, table, spawn)
        await parent.run()
        await table.aclose()
        parent.history.writes = [Write(*row) for row in await pool.fetch("SELECT number, key, fence FROM written")]
    return parent.history
