"""What a claim writes: the fence, the join, the floor, and what it clears."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire
from asyncpg_lease.events import Acquired
from tests.sql.calls import Asked, claim, claim_granted, claim_refused, outcome, release, until_blocked
from tests.support.leasing import Recorder
from tests.support.observe import Observer
from tests.support.typing import Connection, Pool


async def set_floor(session: Connection, fence: int) -> None:
    """Write the reserved row as a prune leaves it: run out, with this fence."""
    await session.execute(
        "INSERT INTO lease (key, holder, fence, acquired_at, expires_at)"
        " VALUES ('', '', $1, 'epoch', timestamptz 'epoch' + interval '1 s')"
        " ON CONFLICT (key) DO UPDATE SET fence = excluded.fence",
        fence,
    )


async def test_fence_of_each_key_is_its_own(session: Connection, observe: Observer) -> None:
    """Take-overs of one key, after a release or a run-out, leave another key's fence alone."""
    await claim_granted(session, "still")
    fences = []
    for number in range(6):
        row = await claim_granted(session, "k", f"h{number % 2}")
        fences.append((row.how, row.fence))
        if number % 2:
            await observe.expire("k")
        else:
            await release(session, "k", row.holder, row.fence)
    assert fences == [
        ("free", 1),
        ("free", 2),
        ("taken_over", 3),
        ("free", 4),
        ("taken_over", 5),
        ("free", 6),
    ]
    assert await observe.fence("still") == 1


async def test_fence_beyond_32_bits_goes_on_growing(session: Connection, observe: Observer) -> None:
    """A fence is 64 bits wide on the whole way to Python and back."""
    await claim_granted(session, "k")
    await session.execute("UPDATE lease SET fence = $1", 2**40)
    assert await outcome(session, Asked("k", fence=2**40)) == "renewed"
    await observe.expire("k")
    row = await claim_granted(session, "k")
    assert row.fence == 2**40 + 1
    assert await release(session, "k", fence=2**40 + 1) == 2**40 + 1


async def test_join_of_the_same_holder_keeps_the_tenure(session: Connection) -> None:
    """A holder that claims its own live lease gets the same fence and acquired_at, and the later expiry."""
    first = await claim_granted(session, "k", ttl=10)
    second = await claim_granted(session, "k", ttl=60)
    assert (second.how, second.fence, second.acquired_at) == ("joined", first.fence, first.acquired_at)
    assert second.expires_at - first.expires_at > timedelta(seconds=49)


async def test_join_with_a_shorter_ttl_never_shortens(session: Connection) -> None:
    """The expiry of a joined tenure is the later of what it was and what is asked for."""
    first = await claim_granted(session, "k", ttl=60)
    second = await claim_granted(session, "k", ttl=0.5)
    assert second.how == "joined"
    assert second.expires_at == first.expires_at


async def test_join_of_a_resting_row_is_refused(session: Connection, observe: Observer) -> None:
    """What its holder has released and min_hold keeps shut is nobody's to join, its holder's neither."""
    await claim_granted(session, "k")
    assert await release(session, "k", min_hold=60) == 1
    version = await observe.version("k")
    row = await claim_refused(session, "k")
    assert (row.holder, row.fence) == ("me", 1)
    assert await observe.version("k") == version
    await observe.shift("k", -61)
    assert (await claim_granted(session, "k")).fence == 2


async def test_join_of_an_expired_row_is_a_new_tenure(session: Connection, observe: Observer) -> None:
    """The same holder after its own row ran out is a successor, with the next fence and a new beginning."""
    first = await claim_granted(session, "k", ttl=5)
    await observe.shift("k", -5)
    second = await claim_granted(session, "k", ttl=5)
    assert (second.how, second.fence, second.before) == ("taken_over", 2, "me")
    assert second.acquired_at > first.acquired_at


async def test_claim_of_a_revoked_tenure_of_its_own_is_refused_and_keeps_the_request(
    session: Connection, observe: Observer
) -> None:
    """A revocation is of the tenure, which nobody joins any more: it would be kept alive by that."""
    await claim_granted(session, "k")
    await session.execute("UPDATE lease SET revoked_at = clock_timestamp()")
    row = await observe.row("k")
    refused = await claim_refused(session, "k")
    assert (refused.holder, refused.fence) == ("me", 1)
    assert await observe.row("k") == row


async def test_take_over_clears_what_was_the_old_tenures(session: Connection, observe: Observer) -> None:
    """released_at and revoked_at are a tenure's and go with it; a completed tick is the key's and stays."""
    await claim_granted(session, "k")
    await session.execute("UPDATE lease SET revoked_at = clock_timestamp(), completed_tick = clock_timestamp()")
    assert await release(session, "k") == 1
    await claim_granted(session, "k", "other")
    row = await observe.row("k")
    assert row is not None
    assert (row["holder"], row["released_at"], row["revoked_at"]) == ("other", None, None)
    assert row["completed_tick"] is not None
    assert await outcome(session, Asked("k", "other", 2)) == "renewed"


async def test_take_over_tells_whom_it_took_over_from(pool: Pool, observe: Observer) -> None:
    """The event of a take-over names the holder that let the lease run out; one after a release names it too."""
    recorder = Recorder()
    table = LeaseTable(pool, observer=recorder)
    await table.create()
    crashed = await acquire(table, "k", holder="crashed")
    await observe.expire("k")
    held = await acquire(table, "k", holder="next")
    await held.release()
    await crashed.release()
    told = [(event.how, event.before) for event in recorder.of(Acquired)]
    assert told == [("free", None), ("taken_over", "crashed")]


async def test_floor_is_where_new_keys_start(session: Connection, observe: Observer) -> None:
    """A new key's fence is above the reserved row's, and a key that is there already is not moved by it."""
    await claim_granted(session, "old")
    await set_floor(session, 41)
    assert (await claim_granted(session, "new")).fence == 42
    assert (await claim_granted(session, "newer")).fence == 42
    await release(session, "old")
    assert (await claim_granted(session, "old")).fence == 2
    assert await observe.fence("") == 41


async def test_floor_that_is_being_raised_is_waited_for(session: Connection, observe: Observer, pool: Pool) -> None:
    """A first claim beside a prune starts above the raised floor, or it would repeat a pruned key's fences."""
    await set_floor(session, 41)
    async with pool.acquire() as other:
        async with observe.locked("") as prune:
            task = asyncio.create_task(claim(other, "new"))
            await until_blocked(observe.connection, other)
            await prune.execute("UPDATE lease SET fence = 100 WHERE key = ''")
        row = await task
    assert row is not None
    assert row.fence == 101


async def test_floor_cannot_be_raised_under_a_first_claim(session: Connection, observe: Observer) -> None:
    """A prune waits for first claims under way: their fences are to be counted."""
    await set_floor(session, 41)
    async with session.transaction():
        await claim_granted(session, "new")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await observe.connection.execute("SELECT FROM lease WHERE key = '' FOR UPDATE NOWAIT")


async def test_floor_that_is_locked_holds_up_no_claim_of_a_known_key(session: Connection, observe: Observer) -> None:
    """Only a first claim looks at the floor."""
    await set_floor(session, 41)
    await claim_granted(session, "k")
    await release(session, "k", fence=42)
    async with observe.locked(""), asyncio.timeout(5):
        assert (await claim_granted(session, "k")).fence == 43
        assert (await claim_refused(session, "k", "other")).holder == "me"
