"""Links that die in silence, while new ones work."""

from __future__ import annotations

import pytest

from asyncpg_lease import lease
from tests.conftest import MakePool
from tests.support.leasing import until, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_release_on_a_dead_link_is_tried_again_on_another(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """With a ttl of 600 s the key is free some seconds after a block whose pooled link has died."""
    pool = await make_pool(proxy.dsn, min_size=1, max_size=2)
    await warm(pool)

    async def use() -> None:
        async with lease(pool, "key", ttl=600):
            await until(lambda: pool.get_idle_size() == pool.get_size())
            proxy.silence_links()

    await travel.through(use(), within=7)
    await travel.until(lambda: observe.is_free("key"), within=4)
    assert await observe.fence("key") == 1
