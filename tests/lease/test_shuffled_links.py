"""Leases behind a pooler that gives each transaction to whichever server link chance will have."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from asyncpg_lease import LeaseTable, LeaseTableError, acquire, lease
from asyncpg_lease.events import Lost, Renewed, RenewFailed
from tests.conftest import MakePool
from tests.support.leasing import Recorder
from tests.support.shuffler import Shuffler
from tests.support.travel import Travel


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize(("links", "pools"), [(2, 4), (2, 1), (3, 2), (1, 4)])
async def test_leases_on_shuffled_links_are_all_kept(
    dsn: str, make_pool: MakePool, travel: Travel, links: int, pools: int
) -> None:
    """With statement_cache_size=0 six leases are kept by many renewals, whichever link a transaction gets."""
    recorder = Recorder()
    async with Shuffler(dsn, links=links, seed=pools) as shuffler:
        targets = [await make_pool(shuffler.dsn, statement_cache_size=0) for _ in range(pools)]
        await asyncio.gather(*(LeaseTable(target).create() for target in targets))
        async with AsyncExitStack() as stack:
            for number in range(6):
                target = targets[number % pools]
                await stack.enter_async_context(lease(target, f"k{number}", ttl=30, observer=recorder))
            await travel(25)
        infos = await LeaseTable(targets[0]).leases()
        assert [info.state for info in infos] == ["free"] * 6
        for target in targets:
            await target.close()
        assert set(shuffler.transactions) == set(range(links))
    assert recorder.of(Lost) == []
    assert recorder.of(RenewFailed) == []
    assert len(recorder.of(Renewed)) >= 12


@pytest.mark.parametrize("seed", range(3))
async def test_pool_on_shuffled_links_without_the_setting_is_told_so(dsn: str, make_pool: MakePool, seed: int) -> None:
    """Without the setting acquire and release fail before long, with an error that names it."""
    async with Shuffler(dsn, seed=seed) as shuffler:
        await LeaseTable(await make_pool(shuffler.dsn, statement_cache_size=0)).create()
        pool = await make_pool(shuffler.dsn, max_size=1)
        with pytest.raises(LeaseTableError, match=r"statement_cache_size=0"):
            for _ in range(100):
                held = await acquire(pool, "k", ttl=30)
                await held.release()
        await pool.close()
