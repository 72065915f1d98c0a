"""renew.sql: only its own live tenures, in one statement, without waiting."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from tests.sql.calls import Asked, claim_granted, outcome, release, renew
from tests.support.observe import Observer
from tests.support.typing import Connection

FIRST_TO_HURRY = 15


async def test_renew_of_many_answers_each_in_the_order_asked(session: Connection, observe: Observer) -> None:
    """One statement says renewed, busy or lost of each tenure, and touches only what it renews."""
    for key in ("mine", "also", "locked", "stolen", "resting", "expired", "free"):
        await claim_granted(session, key)
    await observe.hand_over("stolen", "other", fence=1)
    await release(session, "resting", min_hold=60)
    await release(session, "free")
    await observe.expire("expired")
    untouched = ["locked", "stolen", "resting", "expired", "free"]
    expected = dict.fromkeys(["mine", "also"], "renewed") | {"locked": "busy", "absent": "lost"}
    keys = ["mine", "also", "absent", *untouched]
    async with observe.locked("locked"):
        versions = [await observe.version(key) for key in untouched]
        for seed in range(10):
            random.Random(seed).shuffle(keys)  # noqa: S311 - an order, reproducibly
            async with asyncio.timeout(10):
                rows = await renew(session, *(Asked(key) for key in keys))
            assert [row.outcome for row in rows] == [expected.get(key, "lost") for key in keys], f"seed {seed}"
        assert [await observe.version(key) for key in untouched] == versions
    assert await observe.row("absent") is None


async def test_renew_tells_what_the_row_says(session: Connection, observe: Observer) -> None:
    """Whose row it is and with which fence, the new expiry of a renewed one, and nothing where there is no row."""
    for key in ("mine", "stolen", "resting"):
        await claim_granted(session, key)
    await observe.hand_over("stolen", "other")
    await release(session, "resting", min_hold=60)
    keys = ["mine", "stolen", "resting", "absent"]
    rows = await renew(session, *(Asked(key, ttl=90) for key in keys))
    assert [(row.holder, row.fence) for row in rows] == [("me", 1), ("other", 2), ("me", 1), (None, None)]
    mine = await observe.row("mine")
    assert mine is not None
    assert [row.expires_at for row in rows] == [mine["expires_at"], None, None, None]
    assert mine["expires_at"] - mine["acquired_at"] > timedelta(seconds=90)


async def test_renew_with_another_fence_is_lost(session: Connection, observe: Observer) -> None:
    """The same holder's stale or future fence renews nothing."""
    await claim_granted(session, "k")
    await observe.hand_over("k", "me", fence=7)
    version = await observe.version("k")
    for fence in (1, 6, 8):
        assert await outcome(session, Asked("k", fence=fence)) == "lost"
    assert await observe.version("k") == version
    assert await outcome(session, Asked("k", fence=7)) == "renewed"


async def test_renew_of_another_holders_row_of_the_same_fence_is_lost(session: Connection, observe: Observer) -> None:
    """Two keys with one fence, asked for with their holders exchanged: neither is renewed."""
    await claim_granted(session, "k", "me")
    await claim_granted(session, "l", "other")
    versions = [await observe.version(key) for key in ("k", "l")]
    rows = await renew(session, Asked("k", "other"), Asked("l", "me"))
    assert [row.outcome for row in rows] == ["lost", "lost"]
    assert [await observe.version(key) for key in ("k", "l")] == versions


async def test_renew_of_a_released_row_is_lost(session: Connection, observe: Observer) -> None:
    """A row that was released and rests under min_hold is not its holder's any more."""
    await claim_granted(session, "k")
    await release(session, "k", min_hold=60)
    version = await observe.version("k")
    assert await outcome(session, Asked("k")) == "lost"
    assert await observe.version("k") == version


async def test_renew_of_an_expired_row_is_lost(session: Connection, observe: Observer) -> None:
    """A row that ran out stays so: between its end and a renewal anybody could have been in."""
    await claim_granted(session, "k", ttl=5)
    await observe.shift("k", -5)
    version = await observe.version("k")
    assert await outcome(session, Asked("k")) == "lost"
    assert await observe.version("k") == version
    assert await observe.is_free("k")


async def test_renew_without_a_row_inserts_none(session: Connection, observe: Observer) -> None:
    """A row that an operator removed is lost, and is not there again after the renewal."""
    await claim_granted(session, "k")
    await session.execute("DELETE FROM lease")
    assert await outcome(session, Asked("k")) == "lost"
    assert await observe.rows() == []


async def test_renew_of_a_sole_tenure_sets_the_expiry(session: Connection, observe: Observer) -> None:
    """A tenure that no other handle shares ends a ttl after the renewal, also where it ended later before."""
    await claim_granted(session, "k", ttl=600)
    assert await outcome(session, Asked("k", ttl=20)) == "renewed"
    row = await observe.row("k")
    assert row is not None
    assert row["expires_at"] - row["acquired_at"] < timedelta(seconds=30)
    assert await outcome(session, Asked("k", ttl=900)) == "renewed"
    row = await observe.row("k")
    assert row is not None
    assert row["expires_at"] - row["acquired_at"] > timedelta(seconds=890)


async def test_renew_of_a_shared_tenure_never_shortens_it(session: Connection, observe: Observer) -> None:
    """The handle with the shorter ttl leaves what the one with the longer ttl was promised."""
    granted = await claim_granted(session, "k", ttl=600)
    assert await outcome(session, Asked("k", ttl=20, shared=True)) == "renewed"
    row = await observe.row("k")
    assert row is not None
    assert row["expires_at"] == granted.expires_at
    assert await outcome(session, Asked("k", ttl=900, shared=True)) == "renewed"
    row = await observe.row("k")
    assert row is not None
    assert row["expires_at"] > granted.expires_at


@pytest.mark.parametrize("strength", ["UPDATE", "NO KEY UPDATE", "SHARE"])
async def test_renew_of_a_locked_row_is_busy(session: Connection, observe: Observer, strength: str) -> None:
    """A live row that cannot be locked is not lost, and not waited for; once unlocked it is renewed."""
    await claim_granted(session, "k")
    async with observe.locked("k", strength):
        assert await outcome(session, Asked("k")) == "busy"
        assert await outcome(session, Asked("k", fence=2)) == "lost"
    assert await outcome(session, Asked("k")) == "renewed"


async def test_renew_passes_a_fenced_transactions_lock(session: Connection, observe: Observer) -> None:
    """FOR KEY SHARE, by which a transaction is fenced, keeps neither the renewal nor the release out."""
    await claim_granted(session, "k")
    async with observe.locked("k", "KEY SHARE"), asyncio.timeout(5):
        assert await outcome(session, Asked("k")) == "renewed"
        assert await release(session, "k") == 1


async def test_renew_of_one_tenure_twice_in_a_batch_grants_the_longest(session: Connection, observe: Observer) -> None:
    """Handles of one tenure in one statement are each renewed, and none gets less than it asked for."""
    await claim_granted(session, "k", ttl=5)
    asked = [Asked("k", ttl=ttl, shared=True) for ttl in (20, 600, 1)]
    rows = await renew(session, *asked, Asked("k", fence=9), Asked("k", "other"))
    assert [row.outcome for row in rows] == ["renewed"] * 3 + ["lost"] * 2
    row = await observe.row("k")
    assert row is not None
    assert row["expires_at"] - row["acquired_at"] > timedelta(seconds=599)


async def test_renew_of_a_thousand_tenures_is_one_statement(session: Connection) -> None:
    """A thousand tenures, every tenth of them lost, are answered at once and in order."""
    await session.execute(
        "INSERT INTO lease SELECT 'k' || n, 'me', n, clock_timestamp(), clock_timestamp() + interval '60 s'"
        " FROM generate_series(1, 1000) n"
    )
    asked = [Asked(f"k{n}", "me", n if n % 10 else n + 1) for n in range(1000, 0, -1)]
    async with asyncio.timeout(10):
        rows = await renew(session, *asked)
    assert [row.outcome for row in rows] == ["renewed" if n % 10 else "lost" for n in range(1000, 0, -1)]


async def test_renewals_are_heap_only_updates(session: Connection, observe: Observer) -> None:
    """No renewal touches an index: every one of 200 is HOT."""
    await claim_granted(session, "k")
    for _ in range(200):
        assert await outcome(session, Asked("k")) == "renewed"
    counted: tuple[int, ...] = ()
    async with asyncio.timeout(20):
        while not counted or counted[0] < 200:
            # A session hands in what it counted after a statement: once a second, or when it is told to.
            if session.get_server_version().major >= FIRST_TO_HURRY:
                await session.fetchval("SELECT pg_stat_force_next_flush()")
            else:
                await session.fetchval("SELECT 1")
                await asyncio.sleep(0.1)
            row = await observe.connection.fetchrow(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'lease'"
            )
            assert row is not None
            counted = tuple(row)
    assert counted == (200, 200)
