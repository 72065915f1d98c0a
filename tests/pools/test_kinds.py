"""Whatever a pool is like, a lease on it lives as on any other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asyncpg_lease import LeaseTable
from tests.conftest import MakePool
from tests.pools.kinds import KINDS
from tests.pools.life import expect_a_whole_life
from tests.support.databases import Database, Server
from tests.support.observe import Observer
from tests.support.rings import quick_few

NAMES = {kind: f"lease {number}" for number, kind in enumerate(KINDS)}


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[Database]:
    """One database for all kinds, each of which has a table of its own in it."""
    with server.database() as database:
        yield database


@pytest.mark.parametrize("kind", quick_few(KINDS, 5))
async def test_life_of_a_lease_is_the_same_on_every_kind_of_pool(
    make_pool: MakePool, observe: Observer, kind: str
) -> None:
    """Codecs, record classes, settings and hooks of a pool change nothing of what a lease does or tells."""
    observe.table = f'"{NAMES[kind]}"'
    await expect_a_whole_life(LeaseTable(await make_pool(**KINDS[kind]), NAMES[kind], poll=0.05), observe)
