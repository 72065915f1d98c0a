"""A row that an operator removed or another holder has: the lease is lost and the row is left alone."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, LossReason, lease
from tests.support.observe import Observer


async def hold_until_lost(table: LeaseTable, key: str, ttl: float = 1.5) -> tuple[LeaseLostError, float]:
    """Hold a key until it is lost; return the loss and when it came out of the block."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, key, ttl=ttl):
            await asyncio.sleep(10)
    return caught.value, time.monotonic()


async def all_held(observe: Observer, count: int) -> float:
    """Wait until so many keys are claimed; return 0.3 s later, and when they were."""
    async with asyncio.timeout(5):
        while len(await observe.rows()) < count:
            await asyncio.sleep(0.005)
    held = time.monotonic()
    await asyncio.sleep(0.3)
    return held


@pytest.mark.parametrize(("removal", "count"), [("DELETE FROM lease", 1), ("TRUNCATE lease", 3)])
async def test_row_that_was_removed_is_lost_and_not_created_again(
    table: LeaseTable, observe: Observer, removal: str, count: int
) -> None:
    """A removed row is a loss by the next heartbeat, and the table stays empty."""
    bodies = [asyncio.create_task(hold_until_lost(table, f"k{number}")) for number in range(count)]
    held = await all_held(observe, count)
    await observe.connection.execute(removal)
    for body in bodies:
        loss, lost = await body
        assert loss.reason == "deleted"
        assert lost - held < 1.1
    assert await observe.rows() == []


@pytest.mark.parametrize(
    ("holder", "fence", "reason"),
    [("other", 1, "taken_over"), ("other", 2, "taken_over"), ("A", 2, "taken_over")],
)
async def test_row_that_another_tenure_has_is_lost_and_left_alone(
    table: LeaseTable, observe: Observer, holder: str, fence: int, reason: LossReason
) -> None:
    """Another holder with the same fence, or another fence, is a loss; neither renewal nor exit touches it."""
    body = asyncio.create_task(hold_until_lost(table, "k"))
    held = await all_held(observe, 1)
    await observe.hand_over("k", holder, fence=fence)
    version = await observe.version("k")
    loss, lost = await body
    assert (loss.reason, loss.taken_by, loss.fence) == (reason, holder, 1)
    assert lost - held < 1.1
    await table.aclose()
    assert await observe.version("k") == version


async def test_row_removed_and_made_anew_by_another_is_left_alone(table: LeaseTable, observe: Observer) -> None:
    """A key that starts again at fence 1 after a removal is another's, whoever had fence 1 before."""
    body = asyncio.create_task(hold_until_lost(table, "k", ttl=0.9))
    await all_held(observe, 1)
    # Together, since a renewal in between would find no row.
    await observe.connection.execute(
        "DELETE FROM lease;"
        " INSERT INTO lease (key, holder, fence, acquired_at, expires_at)"
        " VALUES ('k', 'anew', 1, clock_timestamp(), clock_timestamp() + interval '60 s')"
    )
    version = await observe.version("k")
    loss, _ = await body
    assert (loss.reason, loss.taken_by) == ("taken_over", "anew")
    await table.aclose()
    assert await observe.version("k") == version
