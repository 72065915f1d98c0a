"""An explicit holder that comes back while its last tenure is still about to end."""

from __future__ import annotations

import asyncio

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.support.leasing import until, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE
from tests.support.typing import Pool

KEY = "named"
NAME = "worker"
LATE = 1.5
"""Seconds for which one statement is under way; a cancelled exit or call comes out before that."""


@pytest.fixture
async def late(make_pool: MakePool, proxy: Proxy, table: LeaseTable) -> Pool:
    """A warm pool of two connections behind the proxy."""
    assert table.name
    pool = await make_pool(proxy.dsn, min_size=2, max_size=2)
    await warm(pool)
    await asyncio.gather(*(pool.fetchval("SELECT pg_sleep(0.05)") for _ in range(2)))
    proxy.forget()
    return pool


async def leave_with_a_late_release(pool: Pool, proxy: Proxy) -> None:
    """Leave a block whose release reaches the server after all that is sent later."""

    async def work() -> None:
        async with lease(pool, KEY, ttl=30, holder=NAME):
            proxy.delay_requests = LATE

    task = asyncio.create_task(work())
    await until(lambda: proxy.delay_requests)
    await asyncio.sleep(0.1)
    # It waits for its release no longer than half a second now.
    task.cancel()
    await asyncio.wait([task])
    proxy.delay_requests = 0


async def cancel_a_late_claim(pool: Pool, proxy: Proxy) -> None:
    """Cancel a claim that was granted, and whose give-back reaches the server after all that is sent later."""
    proxy.delay_replies = LATE
    task = asyncio.create_task(acquire(pool, KEY, ttl=30, holder=NAME))
    await proxy.wait_for(CLAIM)
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    proxy.delay_replies = 0


@pytest.mark.parametrize("wait", [0, 5])
@pytest.mark.parametrize("trouble", [leave_with_a_late_release, cancel_a_late_claim])
async def test_explicit_holder_does_not_join_what_it_is_about_to_end(
    late: Pool, proxy: Proxy, observe: Observer, trouble: object, wait: float
) -> None:
    """The next claim of the name waits for the release, or give-back, of its last tenure, and begins one of its own."""
    assert callable(trouble)
    await trouble(late, proxy)
    async with lease(late, KEY, ttl=30, wait=wait, holder=NAME) as held:
        await asyncio.sleep(LATE + 0.3)
        await held.verify()
        assert (held.fence, held.joined) == (2, False)
    assert await observe.is_free(KEY)


async def test_explicit_holder_whose_release_never_comes_out_is_refused_in_time(late: Pool, proxy: Proxy) -> None:
    """A claim that would have to wait for longer than its ttl says what it waits for."""
    await leave_with_a_late_release(late, proxy)
    with pytest.raises(TimeoutError, match=f"the last claim or release of '{KEY}' by '{NAME}'"):
        await acquire(late, KEY, ttl=0.5, holder=NAME)
    held = await acquire(late, "another", ttl=30, holder=NAME)
    await held.release()


async def test_handles_of_one_name_are_refused_once_their_table_is_closed(late: Pool, proxy: Proxy) -> None:
    """A claim that waits for its turn begins nothing in a table that was closed meanwhile."""
    table = LeaseTable(late)
    held = await acquire(table, KEY, ttl=30, holder=NAME)
    proxy.delay_requests = LATE
    release = asyncio.create_task(held.release())
    await proxy.wait_for(RELEASE)
    proxy.delay_requests = 0
    claim = asyncio.create_task(acquire(table, KEY, ttl=30, holder=NAME))
    await asyncio.sleep(0.05)
    await table.aclose()
    await release
    with pytest.raises(RuntimeError, match="is closed"):
        await claim
