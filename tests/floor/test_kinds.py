"""Whatever a pool is like, its table is pruned and lifted as any other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from asyncpg_lease import LeaseTable, Pruned
from tests.conftest import MakePool
from tests.floor.calls import slow_write, use
from tests.pools.kinds import KINDS
from tests.sql.calls import sessions
from tests.support.databases import Database, Server
from tests.support.inside import floor
from tests.support.observe import Observer

WHY = "a prune looks again after real time, on each kind of pool"
# Those that change what statements, numbers and rows are; the others are for the night.
BY_DAY = {
    "one connection",
    "no statement cache",
    "timestamptz in text",
    "numbers as text",
    "record that refuses",
    "serializable",
}
NAMES = {kind: f"lease {number}" for number, kind in enumerate(KINDS)}


@pytest.fixture(scope="module")
def database(server: Server) -> Iterator[Database]:
    """One database for all kinds, each of which has a table of its own in it."""
    with server.database() as database:
        yield database


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow(WHY) if kind in BY_DAY else pytest.mark.night(WHY)) for kind in KINDS],
)
async def test_floor_is_the_same_on_every_kind_of_pool(
    make_pool: MakePool, observe: Observer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Codecs, record classes, settings and hooks of a pool change nothing of what a prune or an advance does."""
    monkeypatch.setattr(floor, "BATCH", 2)
    observe.table = f'"{NAMES[kind]}"'
    table = LeaseTable(await make_pool(**KINDS[kind]), NAMES[kind])
    await table.create()
    for key in ("a", "B", "c's", "\u00e9", "z"):
        assert await use(table, key, 2) == 2
    async with sessions(observe.dsn, 1) as (slow,):
        # In the way of the first prune, which asks again until it is done.
        query = asyncio.create_task(slow.execute(slow_write(observe.table, 0.7)))
        await asyncio.sleep(0.1)
        async with observe.locked("c's", "KEY SHARE"):
            assert await table.prune(0) == Pruned(deleted=4, kept=1, floor=2)
        await query
    assert (await use(table, "a"), await use(table, "c's")) == (3, 3)
    assert await table.advance_fences(1000) == 1003
    assert [row["fence"] for row in await observe.rows()] == [1003] * 3
    assert await table.prune(0) == Pruned(deleted=2, kept=0, floor=1003)
    await table.aclose()
