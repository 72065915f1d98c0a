"""The processes of a run, each behind a proxy of its own."""

from __future__ import annotations

import asyncio
import itertools
import signal
from contextlib import suppress
from typing import Any

from tests.chaos.worker import work
from tests.history.gather import Post
from tests.history.history import History
from tests.support.processes import Child, Spawn
from tests.support.proxy import Proxy


class Place(Post):
    """Where one process works, which obeys its orders.

    Attributes:
        proxy: Between the process and the server. It is the parent's, and goes on whatever the process does.
    """

    def __init__(
        self, proxy: Proxy, history: History, seed: int, spawn: Spawn, processes: itertools.count[int]
    ) -> None:
        async def start(number: int) -> Child:
            return await spawn(work, proxy.dsn, list(history.keys), number, seed)

        super().__init__(history, start, processes)
        self.proxy = proxy
        self._orders = itertools.count(1)
        self._answers: dict[int, asyncio.Future[float]] = {}

    async def order(self, do: str, **how: object) -> float:
        """Have the process do something to itself; return when it had, or infinity if it ended before."""
        number = next(self._orders)
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        with suppress(ConnectionError):
            await self.child.send(do=do, order=number, **how)
        try:
            return await answer
        finally:
            self._answers.pop(number, None)

    async def explain(self, kind: str) -> None:
        """Have the process say where its tasks stand, since it has not met what it should have."""
        with suppress(ConnectionError):
            await self.child.send(do="explain", kind=kind)

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal."""
        self.child.signal(number)

    async def _listen(self, child: Child) -> None:
        await super()._listen(child)
        for order in list(self._answers):
            self._answer(order, float("inf"))

    def note(self, event: dict[str, Any]) -> None:
        """Take note of one event, or of an order that was carried out."""
        if event["what"] == "did":
            self._answer(event["order"], event["at"])
        else:
            super().note(event)

    def _answer(self, order: int, at: float) -> None:
        """Tell whoever gave an order that it was carried out, unless he has given up."""
        answer = self._answers.get(order)
        if answer is not None and not answer.done():
            answer.set_result(at)
