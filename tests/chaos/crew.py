"""The processes of a run, each behind a proxy of its own, and what they report."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from contextlib import suppress
from typing import Any

from tests.chaos.history import Body, History, Notice, Stall
from tests.chaos.rules import process_in
from tests.chaos.worker import work
from tests.support.processes import Child, Spawn
from tests.support.proxy import Proxy

PATIENCE = 30.0
"""Seconds for anything that must come."""


class Place:
    """Where one process works; another one takes its place when it was killed.

    Attributes:
        proxy: Between the process and the server. It is the parent's, and goes on whatever the process does.
        process: The process's number, one for each that was started.
        ready: Set while there is a process that obeys.
    """

    def __init__(self, proxy: Proxy, history: History, seed: int, spawn: Spawn) -> None:
        self.proxy = proxy
        self.process = 0
        self.ready = asyncio.Event()
        self._seed = seed
        self._history = history
        self._spawn = spawn
        self._child: Child | None = None
        self._killed = 0.0
        self._stopping = False
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[float]] = {}
        self._running: dict[int, Body] = {}
        self._alive = 0.0

    @property
    def running(self) -> list[Body]:
        """The bodies that run now."""
        return list(self._running.values())

    async def keep(self, numbers: itertools.count[int]) -> None:
        """Start a process, and another one whenever it was killed, until `stop`."""
        while not self._stopping:
            self.process = number = next(numbers)
            self._killed = 0.0
            child = await self._spawn(work, self.proxy.dsn, list(self._history.keys), number, f"{self._seed} {number}")
            self._child = child
            await self._listen(child, number)
            self.ready.clear()
            code = await child.wait()
            if self._killed:
                self._history.stalls[number].append(Stall(self._killed, self._killed - self._alive))
            elif code != 0 or self._running:
                self._history.wrong.append(Notice(time.monotonic(), number, "ended", detail=f"with {code}"))
            for body in self._running.values():
                body.ended = self._killed or time.monotonic()
            self._running.clear()

    async def stop(self) -> None:
        """Have the process come to its end, and start no other one."""
        self._stopping = True
        await self.ready.wait()
        assert self._child is not None
        await self._child.send(do="stop")

    async def end(self) -> None:
        """Kill the process, and start no other one."""
        self._stopping = True
        await self.ready.wait()
        self.kill()

    async def order(self, do: str, **how: object) -> float:
        """Have the process do something to itself; return when it had, or infinity where it ended before."""
        assert self._child is not None
        number = next(self._numbers)
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        with suppress(ConnectionError):
            await self._child.send(do=do, order=number, **how)
        try:
            return await answer
        finally:
            self._answers.pop(number, None)

    async def explain(self, kind: str) -> None:
        """Have the process say where its tasks stand, since it has not met what it should have."""
        assert self._child is not None
        with suppress(ConnectionError):
            await self._child.send(do="explain", kind=kind)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        assert self._child is not None
        self._child.signal(number)

    def kill(self) -> float:
        """Kill the process, block until it is gone, so that its last moment is known well, and return that."""
        assert self._child is not None
        self.ready.clear()
        self._child.signal(signal.SIGKILL)
        # Whoever else waits for the child may have been quicker, and is left to it otherwise.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self._child.pid, os.WEXITED | os.WNOWAIT)
        self._killed = time.monotonic()
        return self._killed

    async def _listen(self, child: Child, number: int) -> None:
        """Take note of what a process reports until its end."""
        while True:
            try:
                report: dict[str, Any] = await child.event(within=PATIENCE)
            except EOFError:
                break
            self._alive = report.pop("at")
            self._note(report, self._alive, number)
        for order in list(self._answers):
            self._answer(order, float("inf"))

    def _answer(self, order: int, at: float) -> None:
        """Tell whoever gave an order that it was carried out, unless he has given up."""
        answer = self._answers.get(order)
        if answer is not None and not answer.done():
            answer.set_result(at)

    def _note(self, report: dict[str, Any], at: float, number: int) -> None:
        match report:
            case {"began": body}:
                report.pop("began")
                self._running[body] = Body(process=number, started=at, **report)
                self._history.bodies.append(self._running[body])
            case {"told": body}:
                self._running[body].told = at
            case {"ended": body, "outcome": outcome}:
                ended = self._running.pop(body)
                ended.ended, ended.outcome = at, outcome
            case {"did": order}:
                self._answer(order, at)
            case {"ready": True}:
                self.ready.set()
            case _:
                self._note_notice(report, at, number)

    def _note_notice(self, report: dict[str, Any], at: float, number: int) -> None:
        history = self._history
        match report:
            case {"stall": length}:
                if length:
                    history.stalls[number].append(Stall(at, length))
            case {"notice": "Taken over", "detail": before}:
                # What is noticed is the end of the one before.
                history.notices.append(Notice(at, process_in(before), "Taken over", report["key"], before))
            case {"notice": name}:
                report.pop("notice")
                history.notices.append(Notice(at, number, name, **report))
            case {"wrong": name}:
                report.pop("wrong")
                history.wrong.append(Notice(at, number, name, **report))
            case _:
                history.late_refused += "refused" in report
