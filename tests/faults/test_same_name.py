"""An explicit holder that comes back while its last tenure is still about to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.support.leasing import spin, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE
from tests.support.travel import Travel
from tests.support.typing import Pool

pytestmark = pytest.mark.usefixtures("table")
KEY = "named"
NAME = "worker"
LATE = 2.5
"""Seconds for which one statement is under way; a cancelled exit or call comes out before that."""


@pytest.fixture
async def late(make_pool: MakePool, proxy: Proxy) -> Pool:
    """A warm pool of two connections behind the proxy."""
    pool = await make_pool(proxy.dsn, min_size=2, max_size=2)
    await warm(pool)
    proxy.forget()
    return pool


async def leave_with_a_late_release(pool: Pool, proxy: Proxy, travel: Travel) -> None:
    """Leave a block whose release reaches the server after all that is sent later."""

    async def work() -> None:
        async with lease(pool, KEY, ttl=30, holder=NAME):
            proxy.delay_requests = LATE

    task = asyncio.create_task(work())
    await proxy.wait_for(RELEASE)
    # It waits for its release no longer than half a second now.
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await travel.through(task, within=LATE)
    proxy.delay_requests = 0


async def cancel_a_late_claim(pool: Pool, proxy: Proxy, travel: Travel) -> None:
    """Cancel a claim that was granted, and whose give-back reaches the server after all that is sent later."""
    proxy.delay_replies = LATE
    task = asyncio.create_task(acquire(pool, KEY, ttl=30, holder=NAME))
    await proxy.wait_for(CLAIM)
    await travel(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await travel.through(task, within=LATE)
    proxy.delay_replies = 0


Trouble = Callable[[Pool, Proxy, Travel], Awaitable[None]]


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("wait", [0, 5])
@pytest.mark.parametrize("trouble", [leave_with_a_late_release, cancel_a_late_claim])
async def test_explicit_holder_does_not_join_what_it_is_about_to_end(
    *, late: Pool, proxy: Proxy, observe: Observer, travel: Travel, trouble: Trouble, wait: float
) -> None:
    """The next claim of the name waits for the release, or give-back, of its last tenure, and begins one of its own."""
    await trouble(late, proxy, travel)
    claiming = asyncio.create_task(acquire(late, KEY, ttl=30, wait=wait, holder=NAME))
    async with await travel.through(claiming, within=LATE + 2) as held:
        await travel(LATE + 1)
        await held.confirm()
        assert (held.fence, held.joined) == (2, False)
    assert await observe.is_free(KEY)


async def test_explicit_holder_whose_release_never_comes_out_is_refused_in_time(
    late: Pool, proxy: Proxy, travel: Travel
) -> None:
    """A claim that would have to wait for longer than its ttl says what it waits for."""
    await leave_with_a_late_release(late, proxy, travel)
    with pytest.raises(TimeoutError, match=f"the last claim or release of '{KEY}' by '{NAME}'"):
        await travel.through(acquire(late, KEY, ttl=1, holder=NAME), within=LATE)
    held = await acquire(late, "another", ttl=30, holder=NAME)
    await held.release()


async def test_handles_of_one_name_are_refused_once_their_table_is_closed(
    late: Pool, proxy: Proxy, travel: Travel
) -> None:
    """A claim that waits for its turn begins nothing in a table that was closed meanwhile."""
    table = LeaseTable(late)
    held = await acquire(table, KEY, ttl=30, holder=NAME)
    proxy.delay_requests = LATE
    release = asyncio.create_task(held.release())
    await proxy.wait_for(RELEASE)
    proxy.delay_requests = 0
    claim = asyncio.create_task(acquire(table, KEY, ttl=30, holder=NAME))
    await spin(5)
    await travel.through(table.aclose(), within=LATE + 2)
    await release
    with pytest.raises(RuntimeError, match="is closed"):
        await claim
