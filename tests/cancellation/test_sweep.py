"""A cancellation at every turn of the loop, from the call to the end, in every way that there is."""

from __future__ import annotations

import pytest

from asyncpg_lease import LeaseTable, acquire
from tests.cancellation.sweep import WAYS, sweep_turns
from tests.cancellation.uses import Stage, Use, acquire_and_release, enter_and_leave, enter_by_name, leave, work
from tests.conftest import MakePool
from tests.support.leasing import warm
from tests.support.observe import Observer
from tests.support.rings import quick_few
from tests.support.typing import Pool

KEY = "swept"

LEAST = 3
"""Uses that a sweep has to cancel, or it has swept nothing: on a slow loop a turn may be as long as a round trip."""

FEW = 4
"""A short sweep tries each turn in two of the eight ways."""


@pytest.mark.parametrize("way", quick_few(WAYS, 3))
@pytest.mark.parametrize(
    "use",
    [
        enter_and_leave,
        acquire_and_release,
        leave,
        enter_by_name,
        pytest.param(work, marks=pytest.mark.slow("40 times six statements and more; its short form is quick")),
    ],
)
async def test_lease_cancelled_at_any_turn_leaves_nothing_claimed(
    table: LeaseTable, make_pool: MakePool, observe: Observer, use: Use, way: str
) -> None:
    """Wherever a cancellation comes, it comes out as itself, nothing is left, and the key is to be had at once."""
    stage = Stage(await make_pool(), KEY, table)
    await warm(stage.table)

    async def same() -> Stage:
        return stage

    assert await sweep_turns(way, use, same, observe) > LEAST


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("way", WAYS)
async def test_work_under_a_lease_cancelled_at_some_turns_leaves_nothing_claimed(
    table: LeaseTable, make_pool: MakePool, observe: Observer, way: str
) -> None:
    """So it is inside a block: here each turn is tried in two ways."""
    stage = Stage(await make_pool(), KEY, table)
    await warm(stage.table)

    async def same() -> Stage:
        return stage

    assert await sweep_turns(way, work, same, observe, every=FEW) > LEAST


@pytest.mark.parametrize("way", quick_few(WAYS, 3))
async def test_joined_lease_cancelled_at_any_turn_leaves_the_tenure_to_who_began_it(
    table: LeaseTable, make_pool: MakePool, observe: Observer, way: str
) -> None:
    """A cancelled handle that joined, or was about to, gives nothing back: the tenure goes on."""
    shared = await acquire(table, KEY, ttl=30, holder="app")
    stage = Stage(await make_pool(), KEY, table, shared)
    await warm(stage.table)

    async def same() -> Stage:
        return stage

    assert await sweep_turns(way, enter_by_name, same, observe) > LEAST
    await shared.release()
    assert await observe.fence(KEY) == shared.fence


@pytest.mark.parametrize(
    "every", [FEW, pytest.param(1, marks=pytest.mark.slow("a new pool for each turn; its short form is quick"))]
)
@pytest.mark.parametrize("way", ["cancel", "scope"])
async def test_first_lease_of_a_pool_cancelled_at_any_turn_leaves_nothing_claimed(
    table: LeaseTable, make_pool: MakePool, observe: Observer, way: str, every: int
) -> None:
    """So it is where the schema is looked up and the statements are prepared first."""
    pools: list[Pool] = []

    async def cold() -> Stage:
        if pools:
            await pools.pop().close()
        pools.append(await make_pool(max_size=1))
        return Stage(pools[0], KEY, table)

    assert await sweep_turns(way, enter_and_leave, cold, observe, every=every) > LEAST
