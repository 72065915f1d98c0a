"""Prunes beside thousands of claims of new and old keys: no fence ever falls."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, try_acquire
from tests.conftest import MakePool
from tests.floor.calls import ISOLATIONS
from tests.support.processes import Spawn, emit, receive
from tests.support.typing import Pool

pytestmark = pytest.mark.slow("races, round after round")

# When, which key, which fence.
Tenures = list[tuple[float, str, int]]


async def contend(pool: Pool, tenures: Tenures, keys: int, count: int, seed: int) -> None:
    """Acquire and release keys at random until there were so many tenures, and note each while it lasts."""
    chance = random.Random(seed)  # noqa: S311 - an order, reproducibly
    while len(tenures) < count:
        key = f"key-{chance.randrange(keys)}"
        held = await try_acquire(pool, key)
        if held is not None:
            tenures.append((time.monotonic(), key, held.fence))
            await held.release()


async def keep_pruning(table: LeaseTable, until: asyncio.Event) -> int:
    """Prune all that is free, every few milliseconds, and return how many rows that were."""
    deleted = 0
    while not until.is_set():
        deleted += (await table.prune(0)).deleted
        await asyncio.sleep(0.005)
    return deleted


def out_of_order(tenures: Tenures) -> list[tuple[str, list[int]]]:
    """Return each key whose fences did not grow from one tenure to the next, with its fences."""
    fences = defaultdict(list)
    for _, key, fence in sorted(tenures):
        fences[key].append(fence)
    return [(key, found) for key, found in fences.items() if found != sorted(set(found))]


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_prunes_beside_claims_never_lower_a_fence(
    table: LeaseTable,  # noqa: ARG001
    make_pool: MakePool,
    isolation: str,
) -> None:
    """Two pruners that delete every row as soon as it is free, beside twelve who claim a few keys again and again."""
    pools = [
        await make_pool(max_size=4, server_settings={"default_transaction_isolation": isolation}) for _ in range(4)
    ]
    tenures: Tenures = []
    ended = asyncio.Event()
    pruning = [asyncio.create_task(keep_pruning(LeaseTable(pool), ended)) for pool in pools[:2]]
    await asyncio.gather(*(contend(pools[number % 4], tenures, 10, 400, number) for number in range(12)))
    ended.set()
    deleted = await asyncio.gather(*pruning)
    assert out_of_order(tenures) == []
    assert min(deleted) > 0


async def contending(dsn: str) -> None:
    """Contend in a process of its own, and report every tenure."""
    tenures: Tenures = []
    async with asyncpg.create_pool(dsn, min_size=4, max_size=4) as pool:
        emit(ready=True)
        await asyncio.gather(*(contend(pool, tenures, 40, 1000, number) for number in range(8)))
    # In parts: a line must fit into the parent's buffer.
    for start in range(0, len(tenures), 200):
        emit(tenures=tenures[start : start + 200])
    emit(tenures=[])


async def pruning(dsn: str) -> None:
    """Prune in a process of its own until told to end."""
    ended = asyncio.Event()
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        emit(ready=True)
        deleting = asyncio.create_task(keep_pruning(LeaseTable(pool), ended))
        await receive()
        ended.set()
        emit(deleted=await deleting)


async def test_prunes_and_claims_in_several_processes_never_lower_a_fence(
    table: LeaseTable,  # noqa: ARG001
    dsn: str,
    spawn: Spawn,
) -> None:
    """Two processes that prune beside two that claim: two thousand tenures, none out of order."""
    children = [await spawn(function, dsn) for function in (contending, pruning) for _ in range(2)]
    for child in children:
        assert (await child.event())["ready"]
    tenures: Tenures = []
    for child in children[:2]:
        while found := (await child.event(within=60))["tenures"]:
            assert isinstance(found, list)
            tenures += [tuple(one) for one in found]
    for child in children[2:]:
        await child.send(end=True)
        assert (await child.event())["deleted"] != 0
    assert out_of_order(tenures) == []
    assert len(tenures) >= 2000


def test_order_of_fences_finds_what_it_is_for() -> None:
    """A fence that falls, or comes twice, is found; tenures of different keys are not compared."""
    fine = [(1.0, "a", 1), (2.0, "b", 9), (3.0, "a", 2), (4.0, "a", 7)]
    assert out_of_order(fine) == []
    assert out_of_order([*fine, (5.0, "a", 7)]) == [("a", [1, 2, 7, 7])]
    assert out_of_order([*fine, (2.5, "a", 3)]) == [("a", [1, 3, 2, 7])]
