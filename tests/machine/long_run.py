"""Processes that acquire keys and are killed in the middle, while their keys are revoked, pruned and advanced.

A seed makes who does what; what meets what is the machine's.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise

from asyncpg_lease import LeaseLostError, LeaseTable, lease
from tests.history.gather import PATIENCE, Post, gathering
from tests.history.history import History, by_key, tenures
from tests.history.judge import FORCED, KILLED, unseen
from tests.history.record import Turn, Worker, recording, working
from tests.history.records import Fault
from tests.history.report import figures
from tests.support.processes import Child, spawning

QUICK = tuple(f"quick-{number}" for number in range(12))
SLOW = tuple(f"slow-{number}" for number in range(6))
"""The keys: most bodies take milliseconds, the others long enough to hear of a revoke from a renewal."""

KEYS = (*QUICK, *SLOW)
PROCESSES = 3
TASKS = 6
TTL = 1.0
REST = 1.5 * TTL

WARM = 40
"""Bodies of a process before it may be killed: a new one has nothing to leave behind."""

EVERY = {"kill": 1.0, "revoke": 0.03, "prune": 0.005, "advance": 3.0}
"""Seconds from one to the next, on average."""

OUTCOMES = ("requested", "already_revoked", "other_tenure", "ended", "resting", "free", "unknown")
"""The answers of a revoke that a run has to meet."""


# In the process ----------------------------------------------------------------------------------


class Busy(Worker):
    """Has many short bodies, and a few long ones."""

    pause = 0.01

    async def take(self, turn: Turn) -> None:
        """Acquire a key, write twice, and maybe once more after the block, also after a loss."""
        turn.phase = "turn"
        slow = self.random.random() < 0.1
        key = self.random.choice(SLOW if slow else QUICK)
        wait = self.random.choice([0, 0.5])
        rest = REST if slow and self.random.random() < 0.2 else 0
        lasts = self.random.uniform(0.2, 0.8) if slow else self.random.uniform(0, 0.01)
        held = None
        with suppress(LeaseLostError):
            context = lease(self.table, key, ttl=TTL, wait=wait, min_hold=rest, label=self.label)
            async with context as held, self.body(held, TTL):
                await self.write(held)
                await asyncio.sleep(lasts)
                await self.write(held)
        if held is not None and self.random.random() < 0.1:
            await self.write_late(held, 0.1)


async def work(dsn: str, number: int, seed: int) -> None:
    """Acquire, work and write in several tasks, until the parent says stop or kills this process."""
    async with recording(dsn, number, connections=TASKS) as (table, pool):
        await working(Busy(table, pool, number, seed), TASKS)


# Its parent --------------------------------------------------------------------------------------


class Trouble:
    """What happens to the processes and their keys, again and again until there has been enough."""

    def __init__(self, posts: list[Post], table: LeaseTable, history: History, seed: int) -> None:
        self._posts = posts
        self._table = table
        self._history = history
        self._seed = seed
        self._enough = asyncio.Event()

    async def run(self, acquisitions: int) -> None:
        """Make trouble until there have been so many acquisitions, and what is to be seen was."""
        happen = {"kill": self._kill, "revoke": self._revoke, "prune": self._prune, "advance": self._advance}
        async with asyncio.TaskGroup() as group:
            # Two prunes at once are a case of their own.
            for number, name in enumerate([*happen, "prune"]):
                group.create_task(self._again(name, happen[name], number))
            while len(self._history.bodies) < acquisitions:
                await asyncio.sleep(0.1)
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    # The rows' versions are read when all is over.
                    while not {*least(0)} - {TAKEN_OVER} <= seen(self._history).keys():
                        await asyncio.sleep(0.1)
            self._enough.set()

    async def _again(self, name: str, happen: Callable[[random.Random], Awaitable[None]], number: int) -> None:
        choose = random.Random(f"{self._seed} {name} {number}")  # noqa: S311 - for tests
        while not self._enough.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(choose.uniform(0, 2 * EVERY[name])):
                    await self._enough.wait()
                    break
            await happen(choose)

    def _note(self, kind: str, began: float, *, process: int = 0, key: str = "", detail: str = "") -> None:
        self._history.faults.append(Fault(kind, began, time.monotonic(), process, key, detail, cuts=kind == KILLED))

    async def _kill(self, choose: random.Random) -> None:
        bodies = Counter(body.process for body in self._history.bodies)
        post = choose.choice(self._posts)
        if post.ready.is_set() and bodies[post.process] >= WARM:
            process, at = post.process, post.kill()
            self._note(KILLED, at, process=process)

    async def _revoke(self, choose: random.Random) -> None:
        key, began = choose.choice(KEYS if choose.random() < 0.5 else SLOW), time.monotonic()
        info = await self._table.get(key)
        fence = None if info is None or choose.random() < 0.5 else info.fence
        force = fence is not None and choose.random() < 0.2
        if fence is not None and not force:
            fence -= choose.random() < 0.3
        revocation = await self._table.revoke(key, fence=fence or None, force=force)
        self._note(FORCED if force else "revoked", began, key=key, detail=revocation.outcome)

    async def _prune(self, _: random.Random) -> None:
        began = time.monotonic()
        self._note("pruned", began, detail=f"{(await self._table.prune(0)).deleted}")

    async def _advance(self, choose: random.Random) -> None:
        began = time.monotonic()
        await self._table.advance_fences(choose.randint(1, 100))
        self._note("advanced", began)


async def run_long(dsn: str, acquisitions: int, seed: int) -> History:
    """Make the tables in an empty database, run in it, and return what was seen."""
    async with gathering(dsn, KEYS, REST) as (history, table), spawning() as spawn, asyncio.TaskGroup() as group:

        async def start(number: int) -> Child:
            return await spawn(work, dsn, number, seed)

        numbers = itertools.count(1)
        posts = [Post(history, start, numbers) for _ in range(PROCESSES)]
        for post in posts:
            group.create_task(post.keep())
        await Trouble(posts, table, history, seed).run(acquisitions)
        history.add("closed", time.monotonic())
        for post in posts:
            await post.stop()
    return history


# What was seen -----------------------------------------------------------------------------------

TAKEN_OVER = "keys of killed bodies acquired again"


def least(acquisitions: int) -> Mapping[str, int]:
    """Return how often what has to be seen at least."""
    others = ("rows pruned", "fences advanced", "late writes refused", "bodies stopped by a revoke", TAKEN_OVER)
    return {
        "acquisitions": acquisitions,
        **{f"revokes: {outcome}": 1 for outcome in OUTCOMES},
        **dict.fromkeys(others, 1),
    }


def seen(history: History) -> Counter[str]:
    """Count what has to be seen."""
    dead = {(body.key, body.holder) for body in history.bodies if body.outcome == "killed"}
    pairs = [pair for of_key in by_key(tenures(history.versions)).values() for pair in pairwise(of_key)]
    counts = Counter(
        {
            "acquisitions": len(history.bodies),
            "late writes refused": len(history.refused),
            "bodies stopped by a revoke": sum(body.outcome == "lost: revoked" for body in history.bodies),
            TAKEN_OVER: sum((before.key, before.holder) in dead for before, _ in pairs),
        }
    )
    for fault in history.faults:
        if fault.kind in {FORCED, "revoked"}:
            counts[f"revokes: {fault.detail}"] += 1
        elif fault.kind == "pruned":
            counts["rows pruned"] += int(fault.detail)
        elif fault.kind == "advanced":
            counts["fences advanced"] += 1
    return +counts


def complaints(history: History, acquisitions: int) -> list[str]:
    """Return what a run of so many acquisitions has to have seen, and has not."""
    return unseen(seen(history), least(acquisitions))


def summary(history: History) -> Iterator[str]:
    """Yield the lines of the results."""
    ends = Counter(body.outcome for body in history.bodies)
    yield f"bodies              {', '.join(f'{count} {end}' for end, count in ends.most_common())}"
    yield f"seen                {', '.join(f'{count} {name}' for name, count in sorted(seen(history).items()))}"
    yield from figures(history)
