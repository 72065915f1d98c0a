"""The how-to pages on fencing elsewhere: their own code, with writers that come in any order, and at once."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import httpx
import obstore
import pytest
from obstore.store import MemoryStore
from redis.asyncio import Redis

from asyncpg_lease import Isolation
from tests.conftest import MakePool
from tests.support.peers import http_server, redis_server

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
FENCES = range(1, 13)

in_any_order = pytest.mark.parametrize("seed", range(2))


def shuffled(seed: int) -> list[int]:
    """Return all fences in an order that the seed decides."""
    return random.Random(seed).sample(FENCES, len(FENCES))  # noqa: S311


def held(fence: int) -> SimpleNamespace:
    """Return as much of a lease as the pages use."""
    return SimpleNamespace(fence=fence)


def names_of(page: str) -> dict[str, Any]:
    """Return what the visible blocks of a page define."""
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", (HOW_TO / page).read_text(), re.DOTALL | re.MULTILINE):
        exec(block, names)  # noqa: S102 - pages of our own
    return names


async def expect_highest_stays(
    order: list[int], write: Callable[[int], Awaitable[None]], read: Callable[[], Awaitable[int]]
) -> None:
    """Write with all fences in that order, then at once: none is refused but a lower one, and the highest stays."""
    for count, fence in enumerate(order):
        highest = max(order[: count + 1])
        if fence < highest:
            with pytest.raises(RuntimeError, match=f"fence {fence}|than {fence} "):
                await write(fence)
        else:
            await write(fence)
        assert await read() == highest
    outcomes = await asyncio.gather(*(write(fence + 100) for fence in order), return_exceptions=True)
    assert await read() == 100 + max(FENCES)
    assert outcomes[order.index(max(FENCES))] is None
    assert {type(outcome) for outcome in outcomes} <= {type(None), RuntimeError}


@pytest.fixture
def http_page() -> dict[str, Any]:
    """What the page on HTTP defines; loading FastAPI takes longer than the test."""
    return names_of("fence-http.md")


@pytest.mark.slow("takes half a second or so")
@in_any_order
async def test_http_service_of_the_page_with_shuffled_writers_keeps_the_highest_fence(
    http_page: dict[str, Any], seed: int
) -> None:
    """The service of the page refuses a lower fence with 412, over HTTP, and nothing else."""
    names = http_page
    async with http_server(names["app"]) as address, httpx.AsyncClient(base_url=address) as client:

        async def read() -> int:
            return int(names["reports"]["monday"][0])

        await expect_highest_stays(
            shuffled(seed), lambda fence: names["send_report"](client, held(fence), "monday", b"new"), read
        )


@in_any_order
async def test_object_of_the_page_with_shuffled_writers_keeps_the_highest_fence(seed: int) -> None:
    """Reading, comparing and writing on condition lets no lower fence write over a higher one."""
    names, store = names_of("fence-object-store.md"), MemoryStore()

    async def read() -> int:
        found = await obstore.get_async(store, "monday")
        return int(json.loads(bytes(await found.bytes_async()))["fence"])

    await expect_highest_stays(
        shuffled(seed), lambda fence: names["write_report"](store, "monday", held(fence), "new"), read
    )


@pytest.mark.parametrize("there", [True, False], ids=["an object", "no object"])
async def test_object_writer_paused_between_reading_and_writing_is_refused(there: bool) -> None:
    """A writer that is paused after it has compared finds the condition broken, and then the higher fence."""
    names, store = names_of("fence-object-store.md"), MemoryStore()
    write = names["write_report"]
    if there:
        await write(store, "monday", held(1), "early")
    paused, go_on = asyncio.Event(), asyncio.Event()

    async def get(store: MemoryStore, path: str) -> object:
        try:
            return await obstore.get_async(store, path)
        finally:
            paused.set()
            await go_on.wait()

    names["obstore"] = SimpleNamespace(get_async=get, put_async=obstore.put_async)
    stale = asyncio.create_task(write(store, "monday", held(2), "stale"))
    await paused.wait()
    await names_of("fence-object-store.md")["write_report"](store, "monday", held(3), "new")
    go_on.set()
    with pytest.raises(RuntimeError, match="fence 3 has written"):
        await stale


@in_any_order
async def test_redis_script_of_the_page_with_shuffled_writers_keeps_the_highest_fence(seed: int) -> None:
    """The script compares and writes in one step."""
    names = names_of("fence-redis.md")
    with redis_server() as url:
        async with Redis.from_url(url, decode_responses=True) as redis:

            async def read() -> int:
                return int((await redis.hgetall("monday"))["fence"])

            await expect_highest_stays(
                shuffled(seed), lambda fence: names["write_report"](redis, "monday", held(fence), "new"), read
            )


@in_any_order
async def test_postgresql_row_of_the_page_with_shuffled_writers_keeps_the_highest_fence(
    make_pool: MakePool, seed: int
) -> None:
    """The condition of the page is looked at after a wait for the row, with the trigger behind it."""
    names, pool = names_of("fence-postgresql.md"), await make_pool()
    async with pool.acquire() as connection:
        await names["migrate"](connection)

    async def write(fence: int) -> None:
        async with pool.acquire() as connection:
            await names["write_report"](connection, held(fence), "new")

    async def read() -> int:
        return int(await pool.fetchval("SELECT last_fence FROM report"))

    await expect_highest_stays(shuffled(seed), write, read)


@pytest.mark.parametrize(
    ("isolation", "error"),
    [("read_committed", RuntimeError), ("repeatable_read", asyncpg.SerializationError)],
)
async def test_postgresql_writer_that_waited_for_the_row_is_refused(
    make_pool: MakePool, isolation: Isolation, error: type[Exception]
) -> None:
    """A stale writer that waits behind its successor's open transaction does not write after it."""
    names, pool = names_of("fence-postgresql.md"), await make_pool()
    async with pool.acquire() as fresh, pool.acquire() as stale:
        await fresh.execute(names["TABLE"])
        await names["write_report"](fresh, held(1), "early")

        async def wait_and_write() -> None:
            async with stale.transaction(isolation=isolation):
                await names["write_report"](stale, held(2), "stale")

        async with fresh.transaction():
            await names["write_report"](fresh, held(3), "new")
            waiting = asyncio.create_task(wait_and_write())
            blocked = "SELECT cardinality(pg_blocking_pids($1)) > 0"
            async with asyncio.timeout(10):
                while not await fresh.fetchval(blocked, stale.get_server_pid()):
                    await asyncio.sleep(0.005)
        with pytest.raises(error):
            await waiting
        assert await fresh.fetchval("SELECT body FROM report") == "new"
