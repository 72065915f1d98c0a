"""What a guarded transaction does to others: to successors, and to the renewals of its own lease."""

from __future__ import annotations

import asyncio
import logging
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from ground import KEY, POLL, ROWS, TTL, WRITE, leasing, transactions
from run import SCHEMA

from asyncpg_lease import LeaseTable, acquire, lease, try_acquire
from asyncpg_lease.events import Event, Renewed

if TYPE_CHECKING:
    from ground import Connection

TURNS = 20
RUN_OUT = f"UPDATE {SCHEMA}.lease SET acquired_at = acquired_at - interval '1 day', expires_at = clock_timestamp()"


async def taking_over(dsn: str, tries: int) -> dict[str, object]:
    """Measure how a successor fares whose predecessor's lease runs out within a guarded transaction."""
    at_once: list[float] = []
    ordinary: list[float] = []
    after_the_end: list[float] = []
    # Each tenure runs out on purpose, which is nothing to warn of.
    logging.getLogger("asyncpg_lease").setLevel(logging.ERROR)
    async with leasing(dsn) as (pool, table):
        held = await acquire(table, KEY, ttl=TTL)
        for _ in range(tries):
            ordinary.append(await refused(table))
            async with pool.acquire() as connection:
                async with held.transaction(connection):
                    await pool.execute(RUN_OUT)
                    at_once.append(await refused(table))
                    waiter = asyncio.create_task(acquire(table, KEY, ttl=TTL, wait=60))
                    await asyncio.sleep(random.uniform(1, 2) * POLL)  # noqa: S311 - at no certain time of a poll
                    if waiter.done():
                        message = "a successor began within the transaction"
                        raise RuntimeError(message)
                    await connection.execute(WRITE, 1)
                ended = time.perf_counter()
            predecessor, held = held, await waiter
            after_the_end.append(time.perf_counter() - ended)
            await predecessor.release()
        await held.release()
    return {
        "a try, of a held key": milliseconds(ordinary),
        "a try, of one that ran out in a transaction": milliseconds(at_once),
        f"a waiter, after the transaction (poll {1e3 * POLL:g} ms)": milliseconds(after_the_end),
    }


async def refused(table: LeaseTable) -> float:
    """Return the seconds after which a claim is refused."""
    began = time.perf_counter()
    if await try_acquire(table, KEY, ttl=TTL) is not None:
        message = "a key that is not free was given away"
        raise RuntimeError(message)
    return time.perf_counter() - began


async def filled(told: list[float], count: int) -> None:
    """Wait until an observer, which is told in a thread, has noted so much."""
    while len(told) < count:  # noqa: ASYNC110 - as said
        await asyncio.sleep(0)


async def renewing(dsn: str, rounds: int, calls: int) -> dict[str, object]:
    """Compare what renewals take beside a guarded transaction that writes, beside a plain one, and beside none."""
    told: list[float] = []

    def observe(event: Event) -> None:
        if isinstance(event, Renewed):
            told.append(event.took)

    async with (
        leasing(dsn) as (pool, table),
        lease(table, KEY, ttl=TTL, observer=observe) as held,
        pool.acquire() as connection,
    ):
        beside: dict[str, Callable[[], AbstractAsyncContextManager[object]]] = {"alone": nullcontext}
        for name, opened in transactions(held, connection).items():
            beside[f"beside a {name} transaction"] = partial(writing, connection, opened)
        seen: dict[str, list[list[float]]] = {name: [] for name in beside}
        for number in range(rounds + 1):
            taken: dict[str, list[float]] = {name: [] for name in beside}
            # Short turns: an open transaction keeps every version of the row, and the chain is looked through.
            for _ in range(TURNS):
                for name, other in beside.items():
                    told.clear()
                    async with other():
                        for _ in range(max(1, calls // TURNS)):
                            await held.renew()
                        await filled(told, max(1, calls // TURNS))
                    taken[name] += told
            if number:  # the first round warms up
                for name, durations in taken.items():
                    seen[name].append(durations)
    floors = [statistics.median(taken) for taken in seen["beside a plain transaction"]]
    return {
        name: {
            **milliseconds([took for taken in each for took in taken]),
            "ratio": round(statistics.median(statistics.median(a) / b for a, b in zip(each, floors, strict=True)), 3),
        }
        for name, each in seen.items()
    }


@asynccontextmanager
async def writing(
    connection: Connection, opened: Callable[[], AbstractAsyncContextManager[object]]
) -> AsyncIterator[None]:
    """Write a row after another, in one transaction, for as long as the block lasts."""
    over = asyncio.Event()

    async def write() -> None:
        while not over.is_set():
            # Not one row all the time: its versions cannot go before the transaction does, and each is looked at.
            await connection.execute(WRITE, random.randint(1, ROWS))  # noqa: S311 - any row

    async with opened(), asyncio.TaskGroup() as group:
        group.create_task(write())
        yield
        over.set()


def milliseconds(taken: Sequence[float]) -> dict[str, float]:
    """Return the median and the longest of some durations."""
    return {"milliseconds": round(1e3 * statistics.median(taken), 2), "longest": round(1e3 * max(taken), 2)}
