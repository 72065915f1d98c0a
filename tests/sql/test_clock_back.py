"""A server clock that stepped back: rows that seem to begin in the future do no harm."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from asyncpg_lease import LeaseTable, lease
from tests.sql.calls import Asked, claim_granted, outcome, release
from tests.support.observe import Observer
from tests.support.typing import Connection

STEPS = [0.5, 3600.0, 86400.0 * 400]


@pytest.mark.parametrize("step", STEPS)
async def test_clock_that_stepped_back_leaves_renewals_valid(
    session: Connection, observe: Observer, step: float
) -> None:
    """A renewal of a row from the future is no violation of lease_validity, and brings the row back to now."""
    await claim_granted(session, "k", ttl=0.4)
    await observe.shift("k", step)
    for _ in range(3):
        assert await outcome(session, Asked("k", ttl=0.3)) == "renewed"
    now = await session.fetchval("SELECT clock_timestamp()")
    row = await observe.row("k")
    assert row is not None
    assert row["acquired_at"] <= now
    assert row["expires_at"] <= now + timedelta(seconds=0.3)


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


async def test_clock_that_stepped_back_leaves_joins_valid(session: Connection, observe: Observer) -> None:
    """A join of a tenure from the future brings its beginning back, and never shortens it."""
    await claim_granted(session, "k")
    await observe.shift("k", 3600)
    row = await claim_granted(session, "k")
    assert (row.how, row.fence) == ("joined", 1)
    assert row.acquired_at <= await session.fetchval("SELECT clock_timestamp()")
    assert row.expires_in > 3600


async def test_clock_that_stepped_back_costs_no_lease(table: LeaseTable, observe: Observer) -> None:
    """A lease whose row is suddenly in the future is renewed as before and released at the end."""
    async with lease(table, "k", ttl=0.6):
        await observe.shift("k", 1000)
        await asyncio.sleep(0.9)
    assert await observe.is_free("k")
