"""What is said on stderr when an event loop ends with leases held."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from asyncpg_lease import acquire, lease
from tests.support.leasing import warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy

pytestmark = [pytest.mark.usefixtures("table"), pytest.mark.slow("each runs asyncio.run in a process of its own")]
_ROOT = Path(__file__).parents[2]
_kept: list[object] = []
SLOW = 0.1
"""Seconds that each answer takes on a slow link."""


async def return_with_leases_held(dsn: str) -> None:
    """Return while five tasks of the background hold leases."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)

    async def hold(number: int) -> None:
        async with lease(pool, f"k{number}", ttl=60):
            entered.release()
            await asyncio.sleep(60)

    entered = asyncio.Semaphore(0)
    _kept.extend(asyncio.create_task(hold(number)) for number in range(5))
    for _ in range(5):
        await entered.acquire()


async def return_with_a_generator_open(dsn: str) -> None:
    """Return while a generator that holds a lease is open."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)

    async def numbers() -> AsyncIterator[int]:
        async with lease(pool, "generator", ttl=60):
            for number in range(10):
                yield number

    counting = numbers()
    _kept.append(counting)
    async for _ in counting:
        break


def _cancel_me(after: float) -> None:
    """Cancel the calling task in so many seconds, as a Ctrl-C does the main task of asyncio.run."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_later(after, task.cancel)


async def return_from_a_cancelled_claim(dsn: str) -> None:
    """Return as soon as a claim that was cancelled in the middle lets go."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)
    await warm(pool)
    await asyncio.sleep(2 * SLOW)
    _cancel_me(SLOW / 2)
    with suppress(asyncio.CancelledError):
        await acquire(pool, "k0", ttl=60)


async def return_from_a_cancelled_body(dsn: str) -> None:
    """Return as soon as a block whose body was cancelled lets go."""
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=3)
    with suppress(asyncio.CancelledError):
        async with lease(pool, "k0", ttl=60):
            _cancel_me(2 * SLOW)
            await asyncio.sleep(60)


async def _run(function: Callable[[str], Awaitable[None]], dsn: str) -> str:
    where = f"{function.__module__}:{function.__qualname__}"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.processes",
        where,
        json.dumps([dsn]),
        stderr=asyncio.subprocess.PIPE,
        cwd=_ROOT,
    )
    async with asyncio.timeout(60):
        _out, said = await process.communicate()
    assert process.returncode == 0
    return said.decode()


async def test_loop_that_ends_with_leases_held_by_tasks_is_silent(dsn: str, observe: Observer) -> None:
    """Tasks that are cancelled by asyncio.run release their leases, and nothing is destroyed while it is pending."""
    said = await _run(return_with_leases_held, dsn)
    assert "Task was destroyed" not in said
    assert "Traceback" not in said
    for number in range(5):
        assert await observe.is_free(f"k{number}")


@pytest.mark.parametrize("ending", [return_from_a_cancelled_claim, return_from_a_cancelled_body])
async def test_loop_that_ends_right_after_a_cancellation_cuts_off_no_hand_back(
    proxy: Proxy, observe: Observer, ending: Callable[[str], Awaitable[None]]
) -> None:
    """What was cancelled comes out when its connection is back in the pool: nothing is left that could be cut off.

    Where it is cut off, asyncpg's pool sets out to restore its floor in a loop that is gone.
    """
    proxy.delay_replies = SLOW
    said = await _run(ending, proxy.dsn)
    assert "Task was destroyed" not in said
    assert "Traceback" not in said
    assert await observe.fence("k0") == 1
    assert await observe.is_free("k0")


async def test_loop_that_ends_with_a_generator_open_raises_nothing(dsn: str) -> None:
    """A generator that asyncio.run closes breaks nothing; its release is cut off, and its row runs out by itself."""
    said = await _run(return_with_a_generator_open, dsn)
    # asyncpg's own: its pool sets out to restore its floor in the closed loop.
    said = said.replace("coroutine 'Pool._maintain_min_size' was never awaited", "")
    for noise in ("never awaited", "Exception ignored", "Traceback"):
        assert noise not in said
