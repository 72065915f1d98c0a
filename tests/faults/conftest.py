"""Fixtures for the failure modes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from asyncpg_lease import LeaseTable
from tests.conftest import MakePool
from tests.faults.modes import Scene
from tests.support.leasing import warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel


@pytest.fixture
async def scene(
    make_pool: MakePool,
    proxy: Proxy,
    table: LeaseTable,  # noqa: ARG001 - that it is there
    observe: Observer,
    travel: Travel,
) -> AsyncIterator[Scene]:
    """A table on a pool of 1 to 3 connections behind the proxy, warm; the faults are over when it is left."""
    pool = await make_pool(proxy.dsn, min_size=1, max_size=3)
    mine = LeaseTable(pool, poll=0.1)
    await warm(mine)
    yield Scene(pool, mine, proxy, observe, travel)
    proxy.thaw()
    proxy.delay_replies = 0
    await proxy.accept()
    await travel.through(mine.aclose(), within=120)
