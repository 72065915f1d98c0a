"""Renewals and releases touch their own tenure and nothing else; each change of hands has a greater fence."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, Renewed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RENEW
from tests.support.travel import Travel

KEYS = ("k-0", "k-1", "k-2")

ANEW = (
    "INSERT INTO lease (key, holder, fence, acquired_at, expires_at)"
    " SELECT 'k-' || n, 'anew', 1, clock_timestamp(), clock_timestamp() + interval '60 s' FROM generate_series(0, 2) n"
)
# What becomes of every row at once, and why its tenure is then lost.
HARMS = {
    "deleted": ("DELETE FROM lease", "deleted"),
    "truncated": ("TRUNCATE lease", "deleted"),
    "another holder of the same fence": ("UPDATE lease SET holder = 'other'", "taken_over"),
    "another fence of the same holder": ("UPDATE lease SET fence = fence + 1", "taken_over"),
    "another holder of the next fence": ("UPDATE lease SET holder = 'other', fence = fence + 1", "taken_over"),
    "a lower fence": ("UPDATE lease SET holder = 'other', fence = 0", "taken_over"),
    # Together, since a renewal in between would find no row.
    "made anew by another": (
        f"DELETE FROM lease; {ANEW}",
        "taken_over",
    ),
}


async def rows(observe: Observer) -> list[tuple[object, ...]]:
    """Return every row and its version."""
    return [(*row, *await observe.version(row["key"])) for row in await observe.rows() if row["key"] in KEYS]


async def reach(moment: str, proxy: Proxy, travel: Travel, told: Recorder) -> None:
    """Let time pass until a moment in the life of leases has come."""
    if moment == "after renewals":
        await travel.until(lambda: len(told.of(Renewed)) >= 2 * len(KEYS), within=60)
    elif moment == "during a renewal":
        await travel.until(lambda: len(told.of(Renewed)) >= len(KEYS), within=30)
        # It has been sent, and the server gets it after the harm.
        proxy.freeze()
        sent = proxy.count(RENEW)
        await travel.until(lambda: proxy.count(RENEW) > sent, within=30)


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("harm", "moment"),
    [
        *((harm, "during a renewal") for harm in HARMS),
        ("deleted", "before the first renewal"),
        ("truncated", "after renewals"),
        ("another holder of the same fence", "before the first renewal"),
        ("made anew by another", "after renewals"),
    ],
)
async def test_row_that_is_another_s_or_gone_is_lost_and_left_alone(
    *, make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, harm: str, moment: str
) -> None:
    """Whatever became of the rows is a loss by the next renewal; nothing is inserted, extended or released."""
    statement, reason = HARMS[harm]
    told = Recorder()
    table = LeaseTable(await make_pool(proxy.dsn), observer=told)
    await warm(table)
    leases = [await acquire(table, key, ttl=60, on_lost="flag") for key in KEYS]
    async with AsyncExitStack() as stack:
        for held in leases:
            await stack.enter_async_context(held)
        await reach(moment, proxy, travel, told)
        await observe.connection.execute(statement)
        harmed = await rows(observe)
        proxy.thaw()
        # Without the rows, of which each write is seen.
        await travel.until(lambda: all(held.lost for held in leases), within=30, rows=False)
    assert [event.reason for event in told.of(Lost)] == [reason] * len(KEYS)
    await table.aclose()
    assert await rows(observe) == harmed


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("holder", [None, "app"])
async def test_row_that_is_another_s_or_gone_is_left_alone_by_the_exit(
    table: LeaseTable, observe: Observer, harm: str, holder: str | None
) -> None:
    """A renewal by hand and a release that come before any other renewal write nothing either."""
    async with lease(table, KEYS[0], ttl=30, holder=holder) as held:
        await observe.connection.execute(HARMS[harm][0])
        harmed = await rows(observe)
    assert await rows(observe) == harmed
    await observe.connection.execute("DELETE FROM lease")
    held = await acquire(table, KEYS[0], ttl=30, holder=holder)
    await observe.connection.execute(HARMS[harm][0])
    harmed = await rows(observe)
    with pytest.raises(LeaseLostError):
        await held.renew()
    await held.release()
    assert await rows(observe) == harmed


async def end(table: LeaseTable, observe: Observer, held: Lease, how: str) -> None:
    """End a tenure, in one of the ways in which one may end."""
    match how:
        case "released":
            await held.release()
        case "crashed":
            await observe.expire(held.key)
        case "revoked":
            await table.revoke(held.key, force=True)
        case "failed":
            with suppress(ZeroDivisionError):
                async with held:
                    _ = 1 / 0
        case "pruned":
            await held.release()
            assert (await table.prune(0)).deleted == 1


@pytest.mark.parametrize(
    "turns",
    [
        "A released, A released, A released, A released, A released, A crashed, B released",
        "A crashed, A crashed, A released, B crashed, A released",
        "A revoked, A failed, B revoked, A crashed, A released",
        "A pruned, A pruned, B crashed, A pruned, B released",
    ],
)
async def test_fence_of_a_key_grows_with_every_change_of_hands(
    table: LeaseTable, observe: Observer, turns: str
) -> None:
    """However a tenure ended the next one has the next fence, of one holder too; renewals and joins leave it alone."""
    fences, handles = [], []
    for turn in turns.split(", "):
        holder, how = turn.split()
        held = await acquire(table, "k", holder=holder)
        fences.append(held.fence)
        handles.append(held)
        for _ in range(3):
            await held.renew()
        joined = await acquire(table, "k", holder=holder)
        assert (joined.fence, await observe.fence("k")) == (held.fence, held.fence)
        for late in handles[:-1]:
            # One that was only thought dead.
            await late.release()
        assert not await observe.is_free("k"), "a late release must not touch the next tenure's row"
        await end(table, observe, held, how)
        await joined.release()
    assert fences == list(range(1, len(fences) + 1))
    assert len([row for row in await observe.rows() if row["key"]]) == 1
