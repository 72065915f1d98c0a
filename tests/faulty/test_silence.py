"""Links that die in silence, and servers that do."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncpg_lease import lease
from tests.conftest import MakePool
from tests.faulty.links import MortalLinks
from tests.support.leasing import warm
from tests.support.observe import Observer

pytestmark = pytest.mark.usefixtures("table")


async def test_release_on_a_dead_link_is_tried_again_on_another(
    make_pool: MakePool, links: MortalLinks, observe: Observer
) -> None:
    """With a ttl of 600 s the key is free some seconds after a block whose pooled link has died."""
    pool = await make_pool(links.dsn, min_size=1, max_size=2)
    await warm(pool)
    async with lease(pool, "key", ttl=600):
        await asyncio.sleep(0.1)
        links.die()
        left = time.monotonic()
    assert time.monotonic() - left < 7
    await observe.until_free("key", within=4)
