"""Links that die in silence, and servers that do."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncpg_lease import Lease, LeaseLostError, lease
from tests.conftest import MakePool
from tests.faulty.links import MortalLinks
from tests.support.leasing import warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy

pytestmark = pytest.mark.usefixtures("table")
UNWIND = 2.0
"""Seconds from a loss to the end of its body, at most; without the guard it is 3.6 to 5."""


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


async def _moment_of_loss(held: Lease) -> float:
    await held.wait_lost()
    return time.monotonic()


async def test_inner_exit_under_way_does_not_hold_up_the_outer_loss(make_pool: MakePool, proxy: Proxy) -> None:
    """Where the server falls silent an inner exit that waits for its release lets the outer body unwind."""
    pool = await make_pool(proxy.dsn)
    with pytest.raises(LeaseLostError):
        async with lease(pool, "outer", ttl=1.5) as outer:
            loss = asyncio.create_task(_moment_of_loss(outer))
            try:
                async with lease(pool, "inner", ttl=60):
                    proxy.freeze()
            finally:
                unwound = time.monotonic()
    assert unwound - await loss < UNWIND
    proxy.thaw()


async def test_inner_exit_after_the_outer_loss_does_not_hold_up_its_body(make_pool: MakePool, proxy: Proxy) -> None:
    """Where the outer's loss cancels the inner body, its exit does not wait long for a release nobody answers."""
    pool = await make_pool(proxy.dsn)
    with pytest.raises(LeaseLostError):
        async with lease(pool, "outer", ttl=1.5) as outer:
            loss = asyncio.create_task(_moment_of_loss(outer))
            try:
                async with lease(pool, "inner", ttl=60):
                    proxy.freeze()
                    await asyncio.sleep(30)
            finally:
                unwound = time.monotonic()
    assert unwound - await loss < UNWIND
    proxy.thaw()
