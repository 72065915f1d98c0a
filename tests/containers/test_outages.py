"""A lease while its server's container is restarted or stands still."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from testcontainers.community.postgres import PostgresContainer

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.containers import IMAGE_VARIABLE
from tests.containers.engine import dsn_of, postgres
from tests.support.inside import free_port
from tests.support.leasing import until
from tests.support.observe import observing
from tests.support.typing import Pool

pytestmark = pytest.mark.slow("restarts and pauses containers")

KEY = "job"


@pytest.fixture
def container() -> Iterator[PostgresContainer]:
    """A container for one test alone, which may restart and pause it."""
    with postgres(os.environ[IMAGE_VARIABLE], {"fsync": "off"}, port=free_port()) as started:
        yield started


@pytest.fixture
async def pool(container: PostgresContainer, make_pool: MakePool) -> Pool:
    """A pool on the container's server, with the lease table there."""
    pool = await make_pool(dsn_of(container), max_size=2)
    await LeaseTable(pool).create()
    return pool


async def test_lease_outlasts_a_restart_of_its_container(container: PostgresContainer, pool: Pool) -> None:
    """A restart that is over before the lease's deadline costs nothing: the same tenure is renewed and released."""
    async with lease(pool, KEY, ttl=40, heartbeat=2) as held:
        before = held.expires_at
        await asyncio.to_thread(container.get_wrapped_container().restart, timeout=1)
        await until(lambda: held.expires_at > before, within=35)
        assert held.is_held
        assert held.fence == 1
    async with observing(dsn_of(container)) as observer:
        assert await observer.is_free(KEY)
        assert await observer.fence(KEY) == 1


async def test_lease_of_a_container_that_stands_still_is_given_up(container: PostgresContainer, pool: Pool) -> None:
    """A server that stands still closes no connection either; the body is cancelled before its lease runs out."""
    loop = asyncio.get_running_loop()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(pool, KEY, ttl=12):
            await asyncio.to_thread(container.get_wrapped_container().pause)
            paused = loop.time()
            try:
                await asyncio.sleep(90)
            finally:
                cancelled = loop.time()
                await asyncio.to_thread(container.get_wrapped_container().unpause)
    assert caught.value.reason == "unreachable"
    assert cancelled - paused < 12
    successor = await acquire(pool, KEY, wait=60)
    assert successor.fence == 2
    await successor.release()
