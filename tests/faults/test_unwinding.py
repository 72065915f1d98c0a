"""Bodies that wait for this library when their lease is lost: no wait of it may last until others are let in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import asyncpg
import pytest

from asyncpg_lease import LeaseLostError, acquire, lease
from tests.faults.modes import Scene
from tests.faults.rivals import waiting_rival
from tests.support.bodies import Bodies
from tests.support.inside import tasks
from tests.support.leasing import until
from tests.support.travel import Travel

KEY = "outer"
TTL = 30.0
GRACE = TTL / 10
"""Seconds that a body has to unwind."""

TAKEN = "taken"


async def leave_one(scene: Scene) -> None:
    """Be inside another lease."""
    async with lease(scene.pool, "inner", ttl=600):
        scene.proxy.freeze()
        await asyncio.sleep(1000)


async def be_leaving_one(scene: Scene) -> None:
    """Be at the exit of another lease."""
    async with lease(scene.pool, "inner", ttl=600):
        scene.proxy.freeze()
    await asyncio.sleep(1000)


async def leave_five(scene: Scene) -> None:
    """Be inside five of them."""
    async with AsyncExitStack() as stack:
        for number in range(5):
            await stack.enter_async_context(lease(scene.pool, f"inner {number}", ttl=600))
        scene.proxy.freeze()
        await asyncio.sleep(1000)


async def release_another(scene: Scene) -> None:
    """Be at the release of another one."""
    held = await acquire(scene.pool, "inner", ttl=600)
    scene.proxy.freeze()
    await held.release()
    await asyncio.sleep(1000)


async def release_another_at_the_end(scene: Scene) -> None:
    """Release another one as the last thing to do."""
    held = await acquire(scene.pool, "inner", ttl=600)
    scene.proxy.freeze()
    try:
        await asyncio.sleep(1000)
    finally:
        await held.release()


async def claim_another(scene: Scene) -> None:
    """Be at the claim of another one."""
    scene.proxy.freeze()
    # Shortly before the loss: a claim that is given up sooner for its silence tells nothing.
    await asyncio.sleep(TTL / 2)
    await acquire(scene.pool, "inner", ttl=600)


async def wait_for_another(scene: Scene) -> None:
    """Wait for what somebody else has."""
    scene.proxy.freeze()
    with suppress(TimeoutError):
        await acquire(scene.table, TAKEN, ttl=600, wait=600)


async def roll_back(scene: Scene) -> None:
    """Be in a transaction of another one."""
    async with AsyncExitStack() as stack:
        inner = await stack.enter_async_context(lease(scene.pool, "inner", ttl=600))
        connection = await stack.enter_async_context(scene.pool.acquire())
        await stack.enter_async_context(inner.transaction(connection))
        scene.proxy.freeze()
        await asyncio.sleep(1000)


async def use_a_connection(scene: Scene) -> None:
    """Use one of the pool's, taken so that the driver gives it back in time: what the documentation tells people to."""
    with suppress(TimeoutError):
        async with scene.pool.acquire(timeout=GRACE / 4) as connection:
            scene.proxy.freeze()
            await connection.execute("SELECT pg_sleep(1000)")


@asynccontextmanager
async def taken(scene: Scene) -> AsyncIterator[None]:
    """Have somebody else hold a key."""
    async with asyncpg.create_pool(scene.observe.dsn, min_size=1, max_size=1) as pool, lease(pool, TAKEN, ttl=600):
        yield


@pytest.mark.slow("takes half a second or so")
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
    scene: Scene, dsn: str, travel: Travel, bodies: Bodies, body: Callable[[Scene], Awaitable[None]]
) -> None:
    """On a frozen network, where nothing is answered any more, the body still ends within its grace."""
    entered = asyncio.Event()

    async def work() -> None:
        async with lease(scene.pool, KEY, ttl=TTL):
            entered.set()
            with bodies.running("holder"):
                await body(scene)

    async with taken(scene):
        task = asyncio.create_task(work())
        await until(entered.is_set)
        async with waiting_rival(dsn, KEY, bodies) as rival:
            await travel.through(rival, within=2 * TTL)
        with pytest.raises(LeaseLostError) as caught:
            await task
    assert caught.value.reason == "unreachable"
    assert [body.who for body in bodies.all] == ["holder", "rival"]
    assert not bodies.overlapping()


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("body", [be_leaving_one, release_another])
async def test_body_that_was_cancelled_just_before_its_loss_is_over_before_others_start(
    *,
    scene: Scene,
    dsn: str,
    travel: Travel,
    bodies: Bodies,
    monkeypatch: pytest.MonkeyPatch,
    body: Callable[[Scene], Awaitable[None]],
) -> None:
    """A wait that a cancellation has cut short is cut to less by the loss that comes meanwhile."""
    # Longer than the grace: the half second that it is would leave no time in which a machine may be slow.
    monkeypatch.setattr(tasks, "CANCELLED_LIMIT", 20)
    entered = asyncio.Event()

    async def work() -> None:
        async with lease(scene.pool, KEY, ttl=4.6, heartbeat=1, grace=2) as held:
            asyncio.get_running_loop().call_later(held.remaining - 2 - 0.05, task.cancel)
            entered.set()
            with bodies.running("holder"):
                await body(scene)

    task = asyncio.create_task(work())
    await until(entered.is_set)
    async with waiting_rival(dsn, KEY, bodies) as rival:
        await travel.through(rival, within=20)
    await asyncio.wait([task])
    assert task.cancelled()
    assert [body.who for body in bodies.all] == ["holder", "rival"]
    assert not bodies.overlapping()


async def test_body_that_works_on_after_its_loss_has_its_other_leases_as_ever(scene: Scene, travel: Travel) -> None:
    """A flagged body may go on: its transactions are rolled back, and its releases waited for."""
    error = ValueError("mine")
    async with lease(scene.pool, KEY, ttl=30, on_lost="flag") as lost:
        await scene.observe.expire(KEY)
        await travel.until(lambda: lost.lost, within=20)
        # Past the end of its trust.
        await travel(31)
        async with scene.pool.acquire() as connection:
            async with lease(scene.pool, "inner", ttl=60) as inner:
                with pytest.raises(ValueError, match="mine"):
                    async with inner.transaction(connection):
                        raise error
                assert not connection.is_closed()
            assert await scene.observe.is_free("inner")
