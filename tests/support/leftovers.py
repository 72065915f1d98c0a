"""Nothing may outlive a test: not a task of the library's, not a connection that was never given back."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.typing import Pool

PREFIX = "asyncpg_lease:"


def library_tasks() -> list[asyncio.Task[object]]:
    """Return the library's tasks on this loop that are not done."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(PREFIX)]


async def expect_no_tasks(*, within: float = 12) -> None:
    """Fail unless all tasks of the library's end by themselves within so many seconds.

    The longest is the hand-back of a connection, which is closed after 5 s: so long does a pool of asyncpg's before
    0.32 now and then wait for a statement of a cancelled task.
    """
    if tasks := library_tasks():
        _done, pending = await asyncio.wait(tasks, timeout=within)
        if pending:
            pytest.fail(f"left behind: {sorted(task.get_name() for task in pending)}")


async def close_pool(pool: Pool, *, within: float = 10) -> None:
    """Close a pool; fail where a connection of it was never given back."""
    try:
        async with asyncio.timeout(within):
            await pool.close()
    except TimeoutError:
        pool.terminate()
        pytest.fail("the pool could not be closed: a connection was never given back")
