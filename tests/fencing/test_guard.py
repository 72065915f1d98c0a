"""Lease.guard(): the check alone, in a transaction that is open already."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseSnapshotError, acquire, lease
from asyncpg_lease.events import Lost
from tests.conftest import MakePool
from tests.fencing.writing import HARMS, ISOLATIONS, KEY, SNAPSHOT_ISOLATIONS, is_shut, write, written
from tests.support.leasing import Recorder
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel
from tests.support.typing import Connection, Pool

GUARD = "guarded AS"
PARSED = "SELECT query LIKE '%guarded AS%' FROM pg_stat_activity WHERE pid = $1"


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_guard_keeps_the_successor_out_until_the_transaction_ends(
    pool: Pool, connection: Connection, observe: Observer, isolation: str
) -> None:
    """As the first statement it works under every isolation, and the end of the transaction is its end."""
    held = await acquire(pool, KEY, ttl=30)
    async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
        await held.guard(connection)
        await observe.expire(KEY)
        await write(connection, "A")
        assert await is_shut(pool)
    assert not await is_shut(pool)
    assert await written(observe) == ["A"]
    await held.release()


async def test_guard_in_read_committed_works_at_any_time(pool: Pool, connection: Connection, observe: Observer) -> None:
    """Each statement of READ COMMITTED sees what is there: a guard that comes late passes or finds the loss."""
    await connection.execute("BEGIN")
    await write(connection, "A")
    held = await acquire(pool, KEY, ttl=30)
    await held.guard(connection)
    await held.renew()
    await held.guard(connection)
    await observe.expire(KEY)
    with pytest.raises(LeaseLostError) as caught:
        await held.guard(connection)
    assert caught.value.reason == "expired"
    await connection.execute("ROLLBACK")
    assert await written(observe) == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("harm", HARMS)
async def test_guard_of_a_tenure_that_is_over_is_a_loss(
    pool: Pool, connection: Connection, observe: Observer, harm: str, isolation: str
) -> None:
    """What a new snapshot shows is evidence; where it shows no row at all, above READ COMMITTED, it is not."""
    act, reason, taken_by = HARMS[harm]
    told = Recorder()
    held = await acquire(pool, KEY, ttl=30, observer=told)
    await act(observe)
    expected: type[Exception] = LeaseLostError
    if reason == "deleted" and isolation in SNAPSHOT_ISOLATIONS:
        expected = LeaseSnapshotError
    with pytest.raises(expected) as caught:
        async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
            await held.guard(connection)
    if isinstance(caught.value, LeaseLostError):
        assert (caught.value.reason, caught.value.taken_by) == (reason, taken_by)
        assert held.lost is caught.value
        assert len(told.of(Lost)) == 1
    else:
        assert held.lost is None
        await held.release()


async def test_guard_is_undone_by_an_older_savepoint_alone(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """A ROLLBACK TO before the guard lets the successor in, a RELEASE does not."""
    held = await acquire(pool, KEY, ttl=30)
    async with connection.transaction():
        await connection.execute("SAVEPOINT kept")
        await held.guard(connection)
        await connection.execute("RELEASE kept")
        await connection.execute("SAVEPOINT younger; ROLLBACK TO younger")
        await observe.expire(KEY)
        assert await is_shut(pool)
    again = await acquire(pool, KEY, ttl=30)
    async with connection.transaction():
        await connection.execute("SAVEPOINT older")
        await again.guard(connection)
        await connection.execute("ROLLBACK TO older")
        await observe.expire(KEY)
        assert not await is_shut(pool)
    await held.release()
    await again.release()


async def _renew(held: Lease, _observe: Observer) -> None:
    await held.renew()


async def _release_by_hand(held: Lease, observe: Observer) -> None:
    await observe.connection.execute("UPDATE lease SET released_at = clock_timestamp() WHERE holder = $1", held.holder)


async def _take_over(held: Lease, observe: Observer) -> None:
    await observe.hand_over(held.key)


async def _take_over_by_a_claim(held: Lease, observe: Observer) -> None:
    await observe.expire(held.key)
    async with asyncpg.create_pool(observe.dsn, min_size=1, max_size=1) as pool, lease(pool, held.key) as successor:
        assert successor.fence == held.fence + 1


async def _delete(held: Lease, observe: Observer) -> None:
    await observe.connection.execute("DELETE FROM lease WHERE key = $1", held.key)


Change = Callable[[Lease, Observer], Awaitable[None]]
CHANGES: list[Change] = [_renew, _release_by_hand, _take_over, _take_over_by_a_claim, _delete]


@pytest.mark.parametrize("isolation", SNAPSHOT_ISOLATIONS)
@pytest.mark.parametrize("change", CHANGES)
async def test_guard_in_a_snapshot_older_than_the_row_says_so(
    pool: Pool, connection: Connection, observe: Observer, isolation: str, change: Change
) -> None:
    """What changed since the snapshot cannot be judged: neither a pass, nor a loss."""
    held = await acquire(pool, KEY, ttl=30)
    with pytest.raises(LeaseSnapshotError) as caught:
        async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
            await connection.fetch("SELECT 1")
            await change(held, observe)
            await held.guard(connection)
    assert (caught.value.key, caught.value.holder, caught.value.fence) == (KEY, held.holder, held.fence)
    assert held.lost is None
    await held.release()


@pytest.mark.parametrize("isolation", SNAPSHOT_ISOLATIONS)
@pytest.mark.parametrize("before", ["no row", "a tenure that is over"])
async def test_guard_in_a_snapshot_older_than_the_claim_says_so(
    pool: Pool, connection: Connection, isolation: str, before: str
) -> None:
    """A snapshot of before the claim shows no tenure, or the one before: no evidence of a loss."""
    if before != "no row":
        async with lease(pool, KEY):
            pass
    with pytest.raises(LeaseSnapshotError):
        async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
            await connection.fetch("SELECT 1")
            held = await acquire(pool, KEY, ttl=30)
            await held.guard(connection)
    assert held.lost is None
    async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
        await held.guard(connection)
    await held.release()


async def test_guard_with_the_row_run_out_in_its_snapshot_alone_is_no_loss(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """A renewal since the snapshot may be what the snapshot lacks: its own expiry is no evidence."""
    held = await acquire(pool, KEY, ttl=30)
    await observe.shift(KEY, -31)
    with pytest.raises(LeaseSnapshotError):
        async with connection.transaction(isolation="repeatable_read"):
            await connection.fetch("SELECT 1")
            # As if it had run out in the snapshot only after it was renewed.
            await observe.shift(KEY, 31)
            await held.renew()
            await held.guard(connection)
    assert held.lost is None
    await held.release()


@pytest.mark.parametrize("isolation", SNAPSHOT_ISOLATIONS)
async def test_guard_in_an_older_snapshot_that_nothing_has_changed_since_passes(
    pool: Pool, connection: Connection, observe: Observer, isolation: str
) -> None:
    """What the snapshot shows is the row's latest version: that can be judged at any time."""
    held = await acquire(pool, KEY, ttl=30)
    async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
        await write(connection, "A")
        await held.guard(connection)
        await held.guard(connection)
    assert await written(observe) == ["A"]
    assert [record["fence"] for record in await observe.rows()] == [1]
    await held.release()


async def test_guard_waits_in_an_old_snapshot_for_a_change_under_way(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """A change that is not committed yet passes a lock of the key; what becomes of it decides."""
    held = await acquire(pool, KEY, ttl=30)

    async def guarded() -> None:
        async with connection.transaction(isolation="repeatable_read"):
            await held.guard(connection)

    async with observe.locked(KEY, "NO KEY UPDATE") as foreign:
        await Observer(foreign, observe.dsn).shift(KEY, 1)
        task = asyncio.create_task(guarded())
        await observe.until_waiting()
    with pytest.raises(LeaseSnapshotError):
        await task
    await held.release()


async def test_guard_that_waited_for_a_take_over_is_a_loss(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """The reason is what the one who had the row locked has done, not what was there before the wait."""
    held = await acquire(pool, KEY, ttl=30)

    async def guarded() -> None:
        async with connection.transaction():
            await held.guard(connection)

    async with observe.locked(KEY) as foreign:
        task = asyncio.create_task(guarded())
        await observe.until_waiting()
        await Observer(foreign, observe.dsn).hand_over(KEY)
    with pytest.raises(LeaseLostError) as caught:
        await task
    assert (caught.value.reason, caught.value.taken_by) == ("taken_over", "other")


@pytest.mark.slow("takes half a second or so")
async def test_guard_of_a_tenure_that_came_back_to_life_is_no_loss(
    pool: Pool, proxy: Proxy, make_pool: MakePool, observe: Observer, travel: Travel
) -> None:
    """Where a second look finds live what the check did not, neither is evidence."""
    held = await acquire(pool, KEY, ttl=30)
    slow = await make_pool(proxy.dsn)
    async with slow.acquire() as connection:
        # So that the next one is parsed already.
        async with connection.transaction():
            await held.guard(connection)

        async def guarded() -> None:
            async with connection.transaction():
                await held.guard(connection)

        await _release_by_hand(held, observe)
        proxy.forget()
        proxy.delay_replies = 4
        task = asyncio.create_task(guarded())
        await travel.until(lambda: proxy.count(GUARD), within=10)
        # The check is done, and its answer under way.
        await travel(1)
        await observe.connection.execute("UPDATE lease SET released_at = NULL")
        with pytest.raises(LeaseSnapshotError):
            await travel.through(task, within=20)
        proxy.delay_replies = 0
    assert held.lost is None
    await held.release()


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("isolation", SNAPSHOT_ISOLATIONS)
async def test_transaction_whose_check_is_parsed_before_a_renewal_is_no_loss(  # noqa: PLR0917
    pool: Pool, proxy: Proxy, make_pool: MakePool, observe: Observer, travel: Travel, isolation: str
) -> None:
    """On a new connection the snapshot is of a round trip before the check: an expiry in it is no evidence."""
    held = await acquire(pool, KEY, ttl=300)
    slow = await make_pool(proxy.dsn)
    async with slow.acquire() as connection:

        async def guarded() -> None:
            async with held.transaction(connection, isolation=isolation):  # type: ignore[arg-type]
                pass

        async def is_parsed() -> bool:
            return bool(await observe.connection.fetchval(PARSED, connection.get_server_pid()))

        await observe.shift(KEY, -301)
        proxy.delay_replies = 4
        task = asyncio.create_task(guarded())
        await travel.until(is_parsed, within=50, rows=False)
        # As if it had run out in the snapshot only after it was renewed.
        await observe.shift(KEY, 301)
        await held.renew()
        with pytest.raises(LeaseSnapshotError):
            await travel.through(task, within=100, rows=False)
        proxy.delay_replies = 0
        await guarded()
    assert held.lost is None
    await held.release()


async def test_confirm_asks_the_server_and_raise_if_stopping_does_not(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """raise_if_stopping() knows what the heartbeat knows, for nothing; confirm() goes and sees."""
    held = await acquire(await make_pool(proxy.dsn), KEY, ttl=30)
    await held.confirm()
    await observe.hand_over(KEY)
    proxy.forget()
    before = proxy.round_trips
    held.raise_if_stopping()
    assert (proxy.round_trips, proxy.statements) == (before, [])
    with pytest.raises(LeaseLostError) as caught:
        await held.confirm()
    assert proxy.round_trips > before
    assert caught.value.reason == "taken_over"
    held.raise_if_stopping()
    await held.release()
