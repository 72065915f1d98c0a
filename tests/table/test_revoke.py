"""revoke(), as the operator sees it: one answer for each state of a key, and nobody else's tenure touched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncpg_lease import Lease, LeaseTable, Revocation, acquire, lease, try_acquire
from tests.sql.calls import STATEMENTS
from tests.support.inside import ask
from tests.support.observe import Observer
from tests.support.typing import Pool

KEY = "steered"


async def _held(table: LeaseTable, observe: Observer) -> Lease:  # noqa: ARG001 - one shape for all
    return await acquire(table, KEY)


async def _resting(table: LeaseTable, observe: Observer) -> Lease:  # noqa: ARG001 - one shape for all
    held = await acquire(table, KEY, min_hold=60)
    await held.release()
    return held


async def _released(table: LeaseTable, observe: Observer) -> Lease:  # noqa: ARG001 - one shape for all
    held = await acquire(table, KEY)
    await held.release()
    return held


async def _crashed(table: LeaseTable, observe: Observer) -> Lease:
    held = await acquire(table, KEY)
    await observe.expire(KEY)
    return held


async def _revoked(table: LeaseTable, observe: Observer) -> Lease:  # noqa: ARG001 - one shape for all
    held = await acquire(table, KEY)
    assert (await table.revoke(KEY)).outcome == "requested"
    return held


State = Callable[[LeaseTable, Observer], Awaitable[Lease]]


@pytest.mark.parametrize(
    ("state", "force", "outcome"),
    [
        (_held, False, "requested"),
        (_resting, False, "resting"),
        (_released, False, "free"),
        (_crashed, False, "free"),
        (_revoked, False, "already_revoked"),
        (_held, True, "ended"),
        (_resting, True, "ended"),
        (_released, True, "free"),
        (_crashed, True, "free"),
        (_revoked, True, "ended"),
    ],
)
async def test_revoke_answers_what_it_did_or_why_it_did_nothing(
    table: LeaseTable, observe: Observer, state: State, outcome: str, *, force: bool
) -> None:
    """Each state of a key has its own answer, which comes with the row, and says in a sentence what it means."""
    held = await state(table, observe)
    before = await observe.row(KEY)
    revocation = await table.revoke(KEY, force=force)
    assert revocation.outcome == outcome
    assert revocation.info == await _info_of(table, like=revocation)
    assert str(revocation).startswith(f"lease {KEY!r} of {held.holder!r} with fence 1: {outcome}: ")
    after = await observe.row(KEY)
    assert before is not None
    assert after is not None
    unchanged = {"requested": {"revoked_at"}, "ended": {"revoked_at", "expires_at", "acquired_at"}}
    assert {name for name in after.keys() if after[name] != before[name]} <= unchanged.get(outcome, set())  # noqa: SIM118 - a record's
    assert await observe.is_free(KEY) == (outcome in {"ended", "free"})
    await held.release()


async def _info_of(table: LeaseTable, *, like: Revocation) -> object:
    """Read the key, with the moment of reading of the revocation's own info, which is another one each time."""
    info = await table.get(KEY)
    assert info is not None
    assert like.info is not None
    return type(info)(**{**_fields(info), "expires_in": like.info.expires_in})


def _fields(info: object) -> dict[str, Any]:
    return {name: getattr(info, name) for name in info.__slots__}  # type: ignore[attr-defined]


@pytest.mark.parametrize("force", [False, True])
async def test_revoke_of_a_key_that_nobody_ever_had_is_unknown(
    table: LeaseTable, observe: Observer, *, force: bool
) -> None:
    """A key without a row is told, and gets none."""
    revocation = await table.revoke(KEY, force=force)
    assert (revocation.outcome, revocation.info) == ("unknown", None)
    assert str(revocation) == f"lease {KEY!r}: unknown: there is no such key"
    assert await observe.rows() == []


@pytest.mark.parametrize("force", [False, True])
async def test_revoke_with_a_fence_spares_the_successor(table: LeaseTable, observe: Observer, *, force: bool) -> None:
    """The tenure that the operator saw, and never the one after it, whatever that is doing."""
    await (await acquire(table, KEY)).release()
    successor = await acquire(table, KEY)
    row = await observe.row(KEY)
    for fence in (1, 3):
        revocation = await table.revoke(KEY, fence=fence, force=force)
        assert revocation.outcome == "other_tenure"
        assert revocation.info is not None
        assert revocation.info.fence == 2
    assert await observe.row(KEY) == row
    assert (await table.revoke(KEY, fence=2, force=force)).outcome == ("ended" if force else "requested")
    await successor.release()


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ("UPDATE lease SET expires_at = clock_timestamp(), released_at = clock_timestamp()", "free"),
        ("UPDATE lease SET fence = 2, holder = 'next', revoked_at = NULL", "other_tenure"),
        ("UPDATE lease SET released_at = clock_timestamp()", "resting"),
        ("DELETE FROM lease", "unknown"),
    ],
)
async def test_revoke_that_waited_for_the_row_answers_what_is_there_then(
    table: LeaseTable, observe: Observer, change: str, outcome: str
) -> None:
    """A tenure that ends between the look and the write is told as it is then, and not touched."""
    held = await acquire(table, KEY, ttl=600)
    async with observe.locked(KEY) as session:
        task = asyncio.create_task(table.revoke(KEY, fence=1))
        await observe.until_waiting()
        await session.execute(change)
    assert (await task).outcome == outcome
    row = await observe.row(KEY)
    assert row is None or row["revoked_at"] is None
    await held.release()


async def test_revoke_asks_once_and_keeps_the_first_time(table: LeaseTable, observe: Observer) -> None:
    """Asking again changes nothing; the time of the first request stays, and get() and leases() tell it."""
    held = await acquire(table, KEY)
    first = await table.revoke(KEY)
    assert first.info is not None
    for force in (False, True):
        again = await table.revoke(KEY, force=force)
        assert again.info is not None
        assert again.info.revoked_at == first.info.revoked_at
    (listed,) = await table.leases()
    assert listed.revoked_at == first.info.revoked_at
    assert listed.released_at is None
    record = await observe.row(KEY)
    assert record is not None
    assert record["revoked_at"] == first.info.revoked_at
    await held.release()


async def test_force_that_ends_a_rest_keeps_when_its_tenure_was_revoked(table: LeaseTable, observe: Observer) -> None:
    """What was asked of a tenure is told until the next one begins, and a rest is nobody's to be asked."""
    held = await acquire(table, KEY, min_hold=60)
    await table.revoke(KEY)
    await held.release()
    before = await observe.row(KEY)
    assert (await table.revoke(KEY, force=True)).outcome == "ended"
    after = await observe.row(KEY)
    assert before is not None
    assert after is not None
    assert after["revoked_at"] == before["revoked_at"]


async def test_tenure_after_a_revocation_is_not_revoked(table: LeaseTable, observe: Observer) -> None:
    """A new tenure clears the request, after a release and after a crash."""
    for end in (None, observe.expire):
        held = await acquire(table, KEY, holder="app")
        info = await table.get(KEY)
        assert info is not None
        assert (info.revoked_at, info.released_at) == (None, None)
        await table.revoke(KEY)
        if end is not None:
            await end(KEY)
        await held.release()
    held = await acquire(table, KEY, holder="app")
    assert (await table.revoke(KEY)).outcome == "requested"
    await held.release()


async def test_forced_revocation_frees_the_key_at_once(table: LeaseTable, observe: Observer) -> None:
    """The next claim gets the key, with a greater fence, also of a tenure that has just begun; resting keys open."""
    fences = []
    for _ in range(5):
        held = await acquire(table, KEY, ttl=600, min_hold=600)
        assert (await table.revoke(KEY, force=True)).outcome == "ended"
        fences.append(held.fence)
        await held.release()
    record = await observe.row(KEY)
    assert record is not None
    assert record["released_at"] is None
    assert fences == [1, 2, 3, 4, 5]


async def test_forced_revocation_passes_a_guarded_transaction_whose_successor_still_waits(
    table: LeaseTable, pool: Pool
) -> None:
    """The row runs out while a fenced transaction is open; nobody has the key before that has ended."""
    held = await acquire(table, KEY, ttl=600)
    async with pool.acquire() as connection, held.transaction(connection):
        async with asyncio.timeout(5):
            assert (await table.revoke(KEY, force=True)).outcome == "ended"
        assert await try_acquire(table, KEY) is None
    async with lease(table, KEY) as successor:
        assert successor.fence == 2
    await held.release()


async def test_revoke_never_touches_the_reserved_row(table: LeaseTable, observe: Observer) -> None:
    """Not even its statement alone would."""
    await observe.connection.execute(
        "INSERT INTO lease VALUES ('', 'floor', 7, clock_timestamp(), clock_timestamp() + '1h')"
    )
    row = await observe.row("")
    assert await ask(observe.connection, STATEMENTS.revoke, "", None, "true", "1000") == []
    assert await observe.row("") == row
    assert await table.leases() == []


async def test_revoke_is_logged_with_what_came_of_it(table: LeaseTable, caplog: pytest.LogCaptureFixture) -> None:
    """One line each: INFO, or WARNING where a tenure was ended by force."""
    caplog.set_level(logging.INFO, "asyncpg_lease")
    held = await acquire(table, KEY)
    revocations = [await table.revoke(KEY, force=force) for force in (False, False, True)]
    records = [record for record in caplog.records if hasattr(record, "lease_outcome")]
    assert [record.levelname for record in records] == ["INFO", "INFO", "WARNING"]
    assert [record.getMessage() for record in records] == [f"revocation asked for: {each}" for each in revocations]
    assert {record.msg for record in records} == {"revocation asked for: %s"}
    outcomes = [getattr(record, "lease_outcome", None) for record in records]
    assert outcomes == ["requested", "already_revoked", "ended"]
    for record in records:
        found = [getattr(record, f"lease_{name}", None) for name in ("key", "holder", "fence")]
        assert found == [KEY, held.holder, 1]
    await held.release()
