"""release.sql: only its own live tenure; the row runs out and stays."""

from __future__ import annotations

from datetime import timedelta

import pytest

from asyncpg_lease import LeaseTable, LeaseUnavailableError, acquire
from tests.sql.calls import Asked, claim_granted, claim_refused, outcome, release
from tests.support.observe import Observer
from tests.support.typing import Connection


async def test_release_expires_the_row_and_keeps_it(session: Connection, observe: Observer) -> None:
    """A released lease is an expired row with its fence, its holder, and when it was released."""
    await claim_granted(session, "k", ttl=600)
    assert await release(session, "k") == 1
    row = await observe.row("k")
    assert row is not None
    assert (row["holder"], row["fence"]) == ("me", 1)
    assert row["released_at"] is not None
    assert row["acquired_at"] < row["expires_at"] <= row["released_at"] + timedelta(milliseconds=1)
    assert await observe.is_free("k")


@pytest.mark.parametrize(("holder", "fence"), [("other", 1), ("me", 2), ("me", 0), ("other", None)])
async def test_release_of_another_tenure_touches_nothing(
    session: Connection, observe: Observer, holder: str, fence: int | None
) -> None:
    """Another holder's or another fence's release answers nothing and leaves the row as it is."""
    await claim_granted(session, "k")
    await claim_granted(session, "l")
    versions = [await observe.version(key) for key in ("k", "l")]
    assert await release(session, "k", holder, fence) is None
    assert [await observe.version(key) for key in ("k", "l")] == versions
    assert await outcome(session, Asked("k")) == "renewed"


async def test_release_of_one_key_leaves_another_of_the_same_tenure(session: Connection, observe: Observer) -> None:
    """One holder with the same fence on two keys releases the one it names."""
    await claim_granted(session, "k")
    await claim_granted(session, "l")
    assert await release(session, "k") == 1
    assert not await observe.is_free("l")


async def test_release_of_an_expired_row_touches_nothing(session: Connection, observe: Observer) -> None:
    """A tenure that ran out is over: releasing it would hide that its holder let it."""
    await claim_granted(session, "k", ttl=5)
    await observe.shift("k", -5)
    version = await observe.version("k")
    assert await release(session, "k") is None
    assert await observe.version("k") == version


async def test_release_twice_does_not_move_the_resting_row(session: Connection, observe: Observer) -> None:
    """A second release, with another min_hold, neither opens nor prolongs the rest."""
    await claim_granted(session, "k")
    assert await release(session, "k", min_hold=60) == 1
    version = await observe.version("k")
    assert await release(session, "k", min_hold=0) is None
    assert await release(session, "k", min_hold=600) is None
    assert await observe.version("k") == version


async def test_release_of_an_unknown_fence_takes_the_holders_own(session: Connection, observe: Observer) -> None:
    """After a claim whose answer was lost the holder releases whatever fence it got, and nobody else's."""
    await claim_granted(session, "k", "before")
    await observe.expire("k")
    await claim_granted(session, "k", "me")
    assert await release(session, "k", "me", None) == 2
    assert await release(session, "k", "me", None) is None


async def test_min_hold_keeps_a_released_key_shut_until_it_is_over(session: Connection, observe: Observer) -> None:
    """The row runs out min_hold after acquired_at, exactly, however early it is released."""
    granted = await claim_granted(session, "k", ttl=5)
    assert await release(session, "k", min_hold=40) == 1
    row = await observe.row("k")
    assert row is not None
    assert row["expires_at"] == row["acquired_at"] + timedelta(seconds=40)
    assert abs(row["acquired_at"] - granted.acquired_at) < timedelta(milliseconds=1)
    await observe.shift("k", -39)
    refused = await claim_refused(session, "k", "other")
    assert 0 < refused.expires_in < 1.1
    await observe.shift("k", -1)
    assert (await claim_granted(session, "k", "other")).fence == 2


async def test_min_hold_that_is_over_already_releases_at_once(session: Connection, observe: Observer) -> None:
    """A lease held for longer than its min_hold is free as soon as it is released."""
    await claim_granted(session, "k", ttl=600)
    await observe.shift("k", -50)
    assert await release(session, "k", min_hold=40) == 1
    assert await observe.is_free("k")


async def test_min_hold_shorter_than_the_ttl_ends_before_it(session: Connection) -> None:
    """min_hold takes the place of the ttl that was left: the rest is not the longer of both."""
    await claim_granted(session, "k", ttl=600)
    await release(session, "k", min_hold=2)
    assert (await claim_refused(session, "k", "other")).expires_in <= 2


async def test_min_hold_of_an_acquired_lease_rests_the_key(table: LeaseTable, observe: Observer) -> None:
    """acquire(min_hold=...) reaches the statement: the key rests, says so, and opens when it is over."""
    held = await acquire(table, "k", min_hold=30, holder="A")
    await held.release()
    info = await table.get("k")
    assert info is not None
    assert info.state == "resting"
    assert 28 < info.expires_in <= 30
    with pytest.raises(LeaseUnavailableError):
        await acquire(table, "k", holder="A")
    await observe.shift("k", -31)
    info = await table.get("k")
    assert info is not None
    assert info.state == "free"
    again = await acquire(table, "k", holder="A")
    assert again.fence == 2
    await again.release()
