"""A server clock that stepped back: rows that seem to begin in the future do no harm."""

from __future__ import annotations

from datetime import timedelta

import pytest

from asyncpg_lease import LeaseTable, lease
from tests.sql.calls import Asked, claim, claim_granted, claim_refused, outcome, release
from tests.support.observe import Observer
from tests.support.travel import Travel
from tests.support.typing import Connection

STEPS = [5.0, 3600.0, 86400.0 * 400]


@pytest.mark.parametrize("step", STEPS)
async def test_clock_that_stepped_back_leaves_renewals_valid(
    session: Connection, observe: Observer, step: float
) -> None:
    """A renewal of a row from the future is no violation of lease_validity, and brings the row back to now."""
    await claim_granted(session, "k", ttl=40)
    await observe.shift("k", step)
    for _ in range(3):
        assert await outcome(session, Asked("k", ttl=30)) == "renewed"
    now = await session.fetchval("SELECT clock_timestamp()")
    row = await observe.row("k")
    assert row is not None
    assert row["acquired_at"] <= now
    assert row["expires_at"] <= now + timedelta(seconds=30)


@pytest.mark.parametrize("step", STEPS)
async def test_clock_that_stepped_back_does_not_keep_a_released_key_shut(
    session: Connection, observe: Observer, step: float
) -> None:
    """A released row from the future is free at once, or when min_hold from now is over."""
    for key in ("k", "l"):
        await claim_granted(session, key)
        await observe.shift(key, step)
    assert await release(session, "k") == 1
    assert await observe.is_free("k")
    assert (await claim_granted(session, "k", "other")).fence == 2
    assert await release(session, "l", min_hold=5) == 1
    left = await session.fetchval("SELECT expires_at - clock_timestamp() FROM lease WHERE key = 'l'")
    assert timedelta(seconds=4) < left <= timedelta(seconds=5)


@pytest.mark.parametrize("step", STEPS)
async def test_clock_that_stepped_back_opens_what_was_released_before(
    session: Connection, table: LeaseTable, observe: Observer, step: float
) -> None:
    """A key that was released before the step is free at once, by every statement's word."""
    await claim_granted(session, "k")
    assert await release(session, "k") == 1
    await observe.shift("k", step)
    info = await table.get("k")
    assert info is not None
    assert info.expires_in > step / 2
    assert (info.state, (await table.leases())[0].state) == ("free", "free")
    assert [(await table.revoke("k", force=force)).outcome for force in (False, True)] == ["free", "free"]
    row = await claim_granted(session, "k", "other", ttl=5)
    assert (row.how, row.fence) == ("free", 2)
    assert 4 < row.expires_in <= 5


@pytest.mark.parametrize(("step", "state"), [(1.0, "resting"), (28.0, "resting"), (32.0, "free"), (3600.0, "free")])
async def test_clock_that_stepped_back_keeps_a_resting_key_shut_for_twice_its_rest_at_most(
    session: Connection, table: LeaseTable, observe: Observer, step: float, state: str
) -> None:
    """A rest from the future goes on where it may not be over, and is over where the step was longer than the rest."""
    await claim_granted(session, "k")
    assert await release(session, "k", min_hold=30) == 1
    await observe.shift("k", step)
    info = await table.get("k")
    assert info is not None
    assert (info.state, (await table.leases())[0].state) == (state, state)
    assert (await table.revoke("k")).outcome == state
    claimed = await claim(session, "k", "other")
    assert claimed is not None
    assert (claimed.how, claimed.resting) == (("free", False) if state == "free" else (None, True))


async def test_clock_that_stepped_back_tells_losers_of_a_released_key_no_wait(
    session: Connection, observe: Observer
) -> None:
    """Who finds such a key locked by its next holder's claim is told nothing of the time that was."""
    await claim_granted(session, "k")
    assert await release(session, "k") == 1
    await observe.shift("k", 3600)
    async with observe.locked("k"):
        refused = await claim_refused(session, "k", "other")
        assert not refused.resting
        assert refused.expires_in <= 0


async def test_clock_that_stepped_back_leaves_joins_valid(session: Connection, observe: Observer) -> None:
    """A join of a tenure from the future brings its beginning back, and never shortens it."""
    await claim_granted(session, "k")
    await observe.shift("k", 3600)
    row = await claim_granted(session, "k")
    assert (row.how, row.fence) == ("joined", 1)
    assert row.acquired_at <= await session.fetchval("SELECT clock_timestamp()")
    assert row.expires_in > 3600


@pytest.mark.slow("takes half a second or so")
async def test_clock_that_stepped_back_costs_no_lease(table: LeaseTable, observe: Observer, travel: Travel) -> None:
    """A lease whose row is suddenly in the future is renewed as before and released at the end."""
    async with lease(table, "k", ttl=30) as held:
        await observe.shift("k", 1000)
        await travel(45)
        assert held.is_held
        info = await table.get("k")
        assert info is not None
        assert info.expires_in <= 30
    assert await observe.is_free("k")
