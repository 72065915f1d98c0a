"""Bodies that have lost their lease and end in their own time, beside whoever has the key now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Literal

import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.support.leasing import warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel

KEY = "lost"
TTL = 20.0
Lose = Callable[[LeaseTable, Observer, Proxy, Travel, str | None], Awaitable[Lease]]


async def taken(table: LeaseTable, observe: Observer, _proxy: Proxy, _travel: Travel, holder: str | None) -> Lease:
    """Let the row run out, and somebody else take it."""
    await observe.expire(KEY)
    return await acquire(table, KEY, holder=holder)


async def frozen(table: LeaseTable, _observe: Observer, proxy: Proxy, travel: Travel, holder: str | None) -> Lease:
    """Keep everything of the first holder's back, until its row has run out and was taken over."""
    proxy.freeze()
    await travel(1.1 * TTL)
    successor = await acquire(table, KEY, holder=holder)
    proxy.thaw()
    return successor


async def forced(table: LeaseTable, _observe: Observer, _proxy: Proxy, _travel: Travel, holder: str | None) -> Lease:
    """End the tenure by force, and take the key."""
    await table.revoke(KEY, force=True)
    return await acquire(table, KEY, holder=holder)


async def made_anew(table: LeaseTable, observe: Observer, _proxy: Proxy, _travel: Travel, holder: str | None) -> Lease:
    """Delete the row, so that its successor's has the same fence."""
    await observe.connection.execute("DELETE FROM lease")
    return await acquire(table, KEY, holder=holder)


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("on_lost", ["cancel", "flag"])
@pytest.mark.parametrize(
    ("lose", "holder"),
    # A name that is shared would join a tenure that is live, so a frozen one has to have run out.
    [(taken, None), (taken, "app"), (frozen, None), (forced, None), (forced, "app"), (made_anew, None)],
)
async def test_body_that_lost_its_lease_touches_no_row_when_it_ends(
    *,
    table: LeaseTable,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    lose: Lose,
    holder: str | None,
    on_lost: Literal["cancel", "flag"],
) -> None:
    """The loser ends as slowly as it likes; the row of who has the key now stays as it is, also under one name."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    entered = asyncio.Event()

    async def work() -> None:
        with pytest.raises(LeaseLostError) if on_lost == "cancel" else nullcontext():
            async with lease(pool, KEY, ttl=TTL, holder=holder, on_lost=on_lost) as held:
                entered.set()
                try:
                    await held.wait_lost()
                finally:
                    await asyncio.sleep(1.5 * TTL)

    task = asyncio.create_task(work())
    await entered.wait()
    successor = await lose(table, observe, proxy, travel, holder)
    before = await observe.version(KEY)
    # The rows stay where they are: to move them is to write them.
    await travel.through(task, within=3 * TTL, rows=False)
    await travel(TTL, rows=False)
    assert await observe.version(KEY) == before
    await successor.release()
