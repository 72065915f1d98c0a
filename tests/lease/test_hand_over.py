"""Nobody gets in while the body still runs, and a lost lease's exit touches nobody's row."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.support.bodies import Bodies
from tests.support.leasing import until
from tests.support.observe import Observer
from tests.support.typing import Pool

KEY = "handed"


async def unwind_slowly(pool: Pool, bodies: Bodies, limit: float | None) -> None:
    """Hold the key, and need more than a ttl of awaits to unwind when cancelled."""
    async with asyncio.timeout(limit), lease(pool, KEY, ttl=1):
        with bodies.running("A") as body:
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(1.2)
                await asyncio.sleep(0.3)
                body.who = "A, to its last line"


async def enter(pool: Pool, bodies: Bodies) -> int:
    """Enter as soon as the key is to be had."""
    async with lease(LeaseTable(pool, poll=0.02), KEY, wait=10) as held:
        with bodies.running("B"):
            await asyncio.sleep(0.05)
        return held.fence


@pytest.mark.parametrize("by", ["user", "timeout"])
@pytest.mark.usefixtures("table")
async def test_body_that_is_cancelled_keeps_the_key_until_its_last_line(
    make_pool: MakePool, bodies: Bodies, by: str
) -> None:
    """A body that unwinds for longer than a ttl is renewed meanwhile; the next one enters after its last line."""
    mine, others = await make_pool(), await make_pool()
    task = asyncio.create_task(unwind_slowly(mine, bodies, 0.3 if by == "timeout" else None))
    await until(lambda: bodies.all)
    rival = asyncio.create_task(enter(others, bodies))
    if by == "user":
        await asyncio.sleep(0.1)
        task.cancel()
    assert await rival == 2
    with suppress(asyncio.CancelledError, TimeoutError):
        await task
    assert [body.who for body in bodies.all] == ["A, to its last line", "B"]
    assert not bodies.overlapping()


@pytest.mark.usefixtures("table")
async def test_body_that_lost_its_lease_touches_no_row_when_it_ends(
    make_pool: MakePool, bodies: Bodies, observe: Observer
) -> None:
    """The loser unwinds as slowly as it likes; the row of who has the key now stays as it is."""
    task = asyncio.create_task(unwind_slowly(await make_pool(), bodies, None))
    await until(lambda: bodies.all)
    await observe.hand_over(KEY, ttl=60)
    before = await observe.version(KEY)
    with pytest.raises(LeaseLostError):
        await task
    await asyncio.sleep(0.05)
    assert [body.who for body in bodies.all] == ["A, to its last line"]
    assert await observe.version(KEY) == before


async def test_joined_handle_neither_releases_nor_ends_the_tenure(table: LeaseTable, observe: Observer) -> None:
    """Only the handle that began a tenure releases it; one that joined leaves the row to it."""
    async with lease(table, KEY, ttl=30, holder="app") as owner:
        async with lease(table, KEY, ttl=30, holder="app") as joined:
            assert joined.joined
            assert not owner.joined
            assert (joined.fence, joined.acquired_at) == (owner.fence, owner.acquired_at)
        assert not await observe.is_free(KEY)
        again = await acquire(table, KEY, ttl=30, holder="app")
        await again.release()
        assert not await observe.is_free(KEY)
        await owner.verify()
    assert await observe.is_free(KEY)


async def test_joined_handle_with_a_shorter_ttl_never_shortens(table: LeaseTable, observe: Observer) -> None:
    """Joining, and renewing what was joined, keeps the longer expiry of the two."""
    async with lease(table, KEY, ttl=60, holder="app"):
        first = await observe.row(KEY)
        assert first is not None
        async with lease(table, KEY, ttl=1, holder="app") as joined:
            await joined.renew()
            second = await observe.row(KEY)
            assert second is not None
            assert second["expires_at"] >= first["expires_at"]


async def test_joined_handle_is_lost_when_its_owner_has_released(table: LeaseTable) -> None:
    """When the owner is done, the tenure is over for every handle of it."""
    owner = await acquire(table, KEY, ttl=30, holder="app")
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=0.6, holder="app"):
            await owner.release()
            await asyncio.sleep(5)
    assert caught.value.reason == "expired"


async def test_release_from_a_stale_handle_does_not_touch_its_own_later_tenure(
    table: LeaseTable, observe: Observer
) -> None:
    """The same explicit holder's next tenure has another fence, and the old handle's release misses it."""
    old = await acquire(table, KEY, ttl=30, holder="app")
    await observe.expire(KEY)
    new = await acquire(table, KEY, ttl=30, holder="app")
    assert (new.fence, new.joined) == (old.fence + 1, False)
    before = await observe.version(KEY)
    await old.release()
    assert await observe.version(KEY) == before
    await new.release()


async def test_process_that_ends_without_leaving_its_block_frees_nothing_early(
    table: LeaseTable, observe: Observer
) -> None:
    """Nothing but leaving the block frees the row: not a dropped reference, not the garbage collector."""
    context = lease(table, KEY, ttl=30)
    held = await context.__aenter__()
    started = time.monotonic()
    del context
    assert not await observe.is_free(KEY)
    assert held.is_held
    await held.release()
    assert time.monotonic() - started < 5
