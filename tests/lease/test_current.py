"""current_lease(): deep code finds the lease whose block it runs in."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from contextvars import copy_context

import pytest

from asyncpg_lease import LeaseTable, acquire, current_lease, lease
from tests.support.inside import tenure_of
from tests.support.leasing import until
from tests.support.observe import Observer
from tests.support.travel import Travel


async def test_current_lease_outside_of_a_block_is_a_lookup_error(table: LeaseTable) -> None:
    """Before, after and without a block there is none, and the error says which was looked for."""
    with pytest.raises(LookupError, match="no lease is entered"):
        current_lease()
    async with lease(table, "a"):
        with pytest.raises(LookupError, match="no lease of 'b'"):
            current_lease("b")
    with pytest.raises(LookupError):
        current_lease()
    held = await acquire(table, "c")
    with pytest.raises(LookupError):
        current_lease("c")
    await held.release()


async def test_current_lease_of_nested_blocks_is_the_innermost(table: LeaseTable) -> None:
    """Without a key it is the innermost, with one it is that key's."""
    async with lease(table, "a") as outer, lease(table, "b") as inner:
        assert current_lease() is inner
        assert current_lease("a") is outer
        assert current_lease("b") is inner
        await inner.release()
        assert current_lease() is outer


async def test_current_lease_in_a_child_task_ends_with_the_block(table: LeaseTable) -> None:
    """A task started inside sees the lease until the block is left, and not after it."""
    left = asyncio.Event()

    async def child() -> list[int]:
        seen = [current_lease().fence]
        await left.wait()
        with pytest.raises(LookupError):
            current_lease()
        return seen

    async with lease(table, "a") as held:
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
    left.set()
    assert await task == [held.fence]


async def test_current_lease_of_a_block_left_in_another_context_is_gone(table: LeaseTable) -> None:
    """Where the block was left by somebody else, this context does not show it any more."""
    context = lease(table, "a")
    held = await context.__aenter__()
    assert current_lease() is held
    await asyncio.get_running_loop().create_task(context.__aexit__(None, None, None), context=copy_context())
    with pytest.raises(LookupError):
        current_lease()


@pytest.mark.slow("takes half a second or so")
async def test_leases_left_in_another_context_are_kept_by_nobody(table: LeaseTable) -> None:
    """A context that enters one lease after the other, and leaves none itself, keeps the last one alone."""
    left = []
    for number in range(3):
        context = lease(table, f"key {number}")
        left.append(tenure_of(await context.__aenter__()))
        await asyncio.get_running_loop().create_task(context.__aexit__(None, None, None), context=copy_context())

    def kept() -> list[bool]:
        gc.collect()
        return [held() is not None for held in left]

    with suppress(TimeoutError):
        await until(lambda: kept() == [False, False, True])
    assert kept() == [False, False, True]


async def test_current_lease_that_is_lost_is_still_the_current_one(
    table: LeaseTable, observe: Observer, travel: Travel
) -> None:
    """What is written after a loss must carry its fence all the same."""
    async with lease(table, "a", ttl=30, on_lost="flag") as held:
        await observe.expire("a")
        await travel.through(held.wait_lost(), within=15)
        assert held.lost
        assert current_lease() is held
