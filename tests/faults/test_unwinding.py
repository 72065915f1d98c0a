"""Bodies that wait for this library when their lease is lost: no wait of it may last until others are let in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import asyncpg
import pytest

from asyncpg_lease import LeaseLostError, acquire, lease
from tests.faults.means import rival
from tests.faults.modes import Scene
from tests.support.bodies import Bodies

KEY = "outer"
TTL = 4.0
GRACE = TTL / 10
"""Seconds that a body has to unwind."""

TAKEN = "taken"


async def leave_one(scene: Scene) -> None:
    """Be inside another lease."""
    async with lease(scene.pool, "inner", ttl=60):
        scene.proxy.freeze()
        await asyncio.sleep(30)


async def be_leaving_one(scene: Scene) -> None:
    """Be at the exit of another lease."""
    async with lease(scene.pool, "inner", ttl=60):
        scene.proxy.freeze()
    await asyncio.sleep(30)


async def leave_five(scene: Scene) -> None:
    """Be inside five of them."""
    async with AsyncExitStack() as stack:
        for number in range(5):
            await stack.enter_async_context(lease(scene.pool, f"inner {number}", ttl=60))
        scene.proxy.freeze()
        await asyncio.sleep(30)


async def release_another(scene: Scene) -> None:
    """Be at the release of another one."""
    held = await acquire(scene.pool, "inner", ttl=60)
    scene.proxy.freeze()
    await held.release()
    await asyncio.sleep(30)


async def release_another_at_the_end(scene: Scene) -> None:
    """Release another one as the last thing to do."""
    held = await acquire(scene.pool, "inner", ttl=60)
    scene.proxy.freeze()
    try:
        await asyncio.sleep(30)
    finally:
        await held.release()


async def claim_another(scene: Scene) -> None:
    """Be at the claim of another one."""
    scene.proxy.freeze()
    # Shortly before the loss: a claim that is given up sooner for its silence tells nothing.
    await asyncio.sleep(TTL / 2)
    await acquire(scene.pool, "inner", ttl=60)


async def wait_for_another(scene: Scene) -> None:
    """Wait for what somebody else has."""
    scene.proxy.freeze()
    with suppress(TimeoutError):
        await acquire(scene.table, TAKEN, ttl=60, wait=60)


async def roll_back(scene: Scene) -> None:
    """Be in a transaction of another one."""
    async with AsyncExitStack() as stack:
        inner = await stack.enter_async_context(lease(scene.pool, "inner", ttl=60))
        connection = await stack.enter_async_context(scene.pool.acquire())
        await stack.enter_async_context(inner.transaction(connection))
        scene.proxy.freeze()
        await asyncio.sleep(30)


async def use_a_connection(scene: Scene) -> None:
    """Use one of the pool's, taken so that the driver gives it back in time: what the documentation tells people to."""
    with suppress(TimeoutError):
        async with scene.pool.acquire(timeout=GRACE / 4) as connection:
            scene.proxy.freeze()
            await connection.execute("SELECT pg_sleep(30)")


@asynccontextmanager
async def taken(scene: Scene) -> AsyncIterator[None]:
    """Have somebody else hold a key."""
    async with asyncpg.create_pool(scene.observe.dsn, min_size=1, max_size=1) as pool, lease(pool, TAKEN, ttl=60):
        yield


@pytest.mark.parametrize(
    "body",
    [
        leave_one,
        be_leaving_one,
        leave_five,
        release_another,
        release_another_at_the_end,
        claim_another,
        wait_for_another,
        roll_back,
        use_a_connection,
    ],
)
async def test_body_that_waits_for_the_library_when_it_is_told_is_over_before_others_start(
    scene: Scene, dsn: str, body: Callable[[Scene], Awaitable[None]]
) -> None:
    """On a frozen network, where nothing is answered any more, the body still ends within its grace."""
    bodies = Bodies()
    async with taken(scene), rival_after(scene, dsn, bodies) as entered:
        with pytest.raises(LeaseLostError) as caught:
            async with lease(scene.pool, KEY, ttl=TTL):
                entered.set()
                with bodies.running("holder"):
                    await body(scene)
        assert caught.value.reason == "unreachable"
    assert len(bodies.all) == 2
    assert not bodies.overlapping()


@pytest.mark.parametrize("body", [be_leaving_one, release_another])
async def test_body_that_was_cancelled_just_before_its_loss_is_over_before_others_start(
    scene: Scene, dsn: str, body: Callable[[Scene], Awaitable[None]]
) -> None:
    """A wait that a cancellation has cut to half a second is cut to less by the loss that comes meanwhile."""
    bodies, outer_ttl = Bodies(), TTL / 2
    entered = asyncio.Event()

    async def work() -> None:
        async with lease(scene.pool, KEY, ttl=outer_ttl) as held:
            entered.set()
            asyncio.get_running_loop().call_later(held.remaining - outer_ttl / 10 - 0.05, task.cancel)
            with bodies.running("holder"):
                await body(scene)

    async with rival_after(scene, dsn, bodies) as started:
        task = asyncio.create_task(work())
        await entered.wait()
        started.set()
        await asyncio.wait([task])
        assert task.cancelled()
    assert len(bodies.all) == 2
    assert not bodies.overlapping()


async def test_body_that_works_on_after_its_loss_has_its_other_leases_as_ever(scene: Scene) -> None:
    """A flagged body may go on: its transactions are rolled back, and its releases waited for."""
    error = ValueError("mine")
    async with lease(scene.pool, KEY, ttl=0.6, on_lost="flag") as lost:
        await scene.observe.expire(KEY)
        await lost.wait_lost()
        await asyncio.sleep(lost.remaining + 0.7)
        async with scene.pool.acquire() as connection:
            async with lease(scene.pool, "inner", ttl=60) as inner:
                with pytest.raises(ValueError, match="mine"):
                    async with inner.transaction(connection):
                        raise error
                assert not connection.is_closed()
            assert await scene.observe.is_free("inner")


@asynccontextmanager
async def rival_after(scene: Scene, dsn: str, bodies: Bodies) -> AsyncIterator[asyncio.Event]:
    """Have a rival try for the key once it is held; wait for its body at the end."""
    entered = asyncio.Event()

    async def compete() -> None:
        await entered.wait()
        async with rival(dsn, KEY, bodies) as body:
            await body

    task = asyncio.create_task(compete())
    try:
        yield entered
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])
        scene.proxy.thaw()
