"""One run: processes at work, faults of all kinds for a while, then peace, and what was seen of it all."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from asyncpg_lease.testing import EmbeddedServer
from tests.chaos.crew import Place
from tests.chaos.faults import OnProcess, OnServer
from tests.chaos.kinds import Planned, plan
from tests.chaos.worker import TTLS
from tests.history.gather import gathering
from tests.history.history import History
from tests.history.records import Fault
from tests.support.processes import spawning
from tests.support.proxy import Proxy

WARM_UP = 1.0
"""Seconds for the processes to be at work before the first fault."""


class Lane(NamedTuple):
    """Faults that take turns: how they are made, and what they are planned by."""

    make: Callable[[Planned], Awaitable[Fault | None]]
    name: str
    number: int

    async def run(self, seed: int, until: float, history: History) -> None:
        """Make the faults, one after the other, until the time is over."""
        for planned in plan(seed, self.name, self.number):
            await asyncio.sleep(max(0.0, min(planned.pause, until - time.monotonic())))
            if time.monotonic() >= until:
                break
            fault = await self.make(planned)
            if fault is not None:
                history.faults.append(fault)


async def run_soak(server: EmbeddedServer, seconds: float, seed: int, *, processes: int, keys: int) -> History:
    """Make the tables in the server's own database, run in it, and return what was seen."""
    names = [f"key-{number}" for number in range(keys)]
    async with gathering(server.dsn, names, max(TTLS)) as (history, table), AsyncExitStack() as stack:
        spawn = await stack.enter_async_context(spawning())
        proxies = [await stack.enter_async_context(Proxy(server.dsn)) for _ in range(processes)]
        numbers = itertools.count(1)
        places = [Place(proxy, history, seed, spawn, numbers) for proxy in proxies]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        kept = [group.create_task(place.keep()) for place in places]
        for place in places:
            await place.ready.wait()
        await asyncio.sleep(WARM_UP)
        history.opened = time.monotonic()
        whole_server = asyncio.Lock()
        on_server = OnServer(server, table, places, history, whole_server)
        lanes = [Lane(on_server.make, lane, 0) for lane in ("rows", "operator", "fences", "server")]
        on_processes = [OnProcess(place, server.dsn, whole_server) for place in places]
        lanes += [Lane(on_process.make, "process", number) for number, on_process in enumerate(on_processes)]
        making = [group.create_task(lane.run(seed, history.opened + seconds, history)) for lane in lanes]
        await asyncio.wait(making)
        history.add("closed", time.monotonic())
        # What the one half has is released, what the other half has runs out.
        for place in places[::2]:
            await place.stop()
        await asyncio.wait(kept[::2])
        for place in places[1::2]:
            await place.end()
        await asyncio.wait(kept)
    return history
