"""What a guarded transaction keeps out until its end, and what it lets pass meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, LeaseUnavailableError, acquire, lease
from asyncpg_lease.events import Lost, RenewFailed
from tests.conftest import MakePool
from tests.fencing.writing import ISOLATIONS, KEY, SNAPSHOT_ISOLATIONS, run_out_while_waited, write, written
from tests.support.leasing import Recorder
from tests.support.observe import Observer
from tests.support.travel import Travel
from tests.support.typing import Connection, Pool


@pytest.mark.parametrize("ran_out", [False, True])
async def test_successor_is_told_at_once_until_the_transaction_has_ended(
    pool: Pool, make_pool: MakePool, connection: Connection, observe: Observer, ran_out: bool
) -> None:
    """A claim during the transaction is refused at once, also after the expiry, and granted after the end."""
    successors = await make_pool()
    held = await acquire(pool, KEY, ttl=30)
    async with held.transaction(connection):
        if ran_out:
            await observe.expire(KEY)
        with pytest.raises(LeaseUnavailableError):
            async with asyncio.timeout(10):
                await acquire(successors, KEY)
        await write(connection, "A")
    if not ran_out:
        await held.release()
    successor = await acquire(successors, KEY)
    assert successor.fence == 2
    assert await written(observe) == ["A"]
    await successor.release()
    await held.release()


async def test_successor_that_waits_gets_in_within_a_poll_of_the_end(
    pool: Pool, make_pool: MakePool, connection: Connection, observe: Observer, travel: Travel
) -> None:
    """A waiting claim polls on while the row is guarded, and does not get in before the end."""
    waiting = LeaseTable(await make_pool(), poll=1)
    held = await acquire(pool, KEY, ttl=30)
    async with held.transaction(connection):
        await observe.expire(KEY)
        task = asyncio.create_task(acquire(waiting, KEY, wait=30))
        await travel(5)
        assert not task.done()
        await write(connection, "A")
    successor = await travel.through(task, within=1.5)
    assert successor.fence == 2
    await successor.release()
    await held.release()


@pytest.mark.parametrize("harm", ["DELETE FROM lease", "TRUNCATE lease"])
async def test_operator_who_deletes_waits_for_the_end(
    pool: Pool, connection: Connection, observe: Observer, harm: str
) -> None:
    """A row that is deleted would start again at fence 1: that too has to wait."""
    held = await acquire(pool, KEY)
    await observe.connection.execute("SET lock_timeout = '100ms'")
    async with held.transaction(connection):
        with pytest.raises(asyncpg.LockNotAvailableError):
            await observe.connection.execute(harm)
    await observe.connection.execute(harm)
    await held.release()


@pytest.mark.parametrize("by", ["transaction", "guard"])
@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_holder_renews_and_verifies_during_its_transaction(
    pool: Pool, connection: Connection, travel: Travel, isolation: str, by: str
) -> None:
    """Renewals, of the heartbeat too, and questions pass a guarded row at once."""
    told = Recorder()
    async with lease(pool, KEY, ttl=9, observer=told) as held, _guarded(held, connection, isolation, by):
        before = held.expires_at
        async with asyncio.timeout(8):
            await held.confirm()
            await held.renew()
        by_hand = held.expires_at
        await travel.until(lambda: held.expires_at > by_hand, within=4)
        assert held.is_held
        assert by_hand > before
    assert told.of(RenewFailed) == []


async def test_holder_releases_during_its_transaction_and_the_successor_still_waits(
    pool: Pool, make_pool: MakePool, connection: Connection, observe: Observer
) -> None:
    """A release passes at once, and lets nobody in before the transaction has ended."""
    successors = await make_pool()
    held = await acquire(pool, KEY)
    async with held.transaction(connection):
        await held.release()
        assert await observe.is_free(KEY)
        with pytest.raises(LeaseUnavailableError):
            await acquire(successors, KEY)
        await write(connection, "A")
    assert await written(observe) == ["A"]
    async with lease(successors, KEY) as successor:
        assert successor.fence == 2


async def test_transactions_of_one_tenure_run_at_once(make_pool: MakePool, pool: Pool, observe: Observer) -> None:
    """Guards of one tenure do not wait for each other, and the last one to end lets the successor in."""
    own = await make_pool(min_size=0, max_size=5)
    held = await acquire(pool, KEY, ttl=30)
    async with AsyncExitStack() as stack, asyncio.timeout(10):
        for number in range(4):
            connection = await stack.enter_async_context(own.acquire())
            await stack.enter_async_context(held.transaction(connection))
            await write(connection, str(number))
        await observe.expire(KEY)
        async with own.acquire() as connection:
            with pytest.raises(LeaseLostError):
                async with held.transaction(connection):
                    await write(connection, "too late")
        with pytest.raises(LeaseUnavailableError):
            await acquire(pool, KEY)
    assert await written(observe) == ["0", "1", "2", "3"]
    async with lease(pool, KEY) as successor:
        assert successor.fence == 2


# Somebody else has the row locked ----------------------------------------------------------------


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_check_that_waited_for_a_take_over_is_a_loss(
    pool: Pool, connection: Connection, observe: Observer, isolation: str
) -> None:
    """Whoever had the row locked has taken it over: the reason is that, not what the check saw before the wait."""
    held = await acquire(pool, KEY, ttl=30)
    async with observe.locked(KEY) as foreign:
        task = asyncio.create_task(_write_guarded(held.transaction(connection, isolation=isolation), connection))  # type: ignore[arg-type]
        await observe.until_waiting()
        await Observer(foreign, observe.dsn).hand_over(KEY)
    with pytest.raises(LeaseLostError) as caught:
        await task
    assert (caught.value.reason, caught.value.taken_by) == ("taken_over", "other")
    assert held.lost is caught.value
    assert await written(observe) == []
    assert await connection.fetchval("SELECT 1") == 1


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_check_that_waited_for_a_lock_alone_passes(
    pool: Pool, connection: Connection, observe: Observer, isolation: str
) -> None:
    """A lock that ends and leaves the row as it was is waited for, and no loss."""
    held = await acquire(pool, KEY, ttl=30)
    async with observe.locked(KEY):
        task = asyncio.create_task(_write_guarded(held.transaction(connection, isolation=isolation), connection))  # type: ignore[arg-type]
        await observe.until_waiting()
    await task
    assert await written(observe) == ["A"]
    await held.release()


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_check_that_waited_for_a_change_of_a_live_row_is_no_loss(
    pool: Pool, connection: Connection, observe: Observer, isolation: str
) -> None:
    """A tenure that lives on passes in READ COMMITTED; above it the server's error comes out, and says no more."""
    held = await acquire(pool, KEY, ttl=30)
    async with observe.locked(KEY) as foreign:
        task = asyncio.create_task(_write_guarded(held.transaction(connection, isolation=isolation), connection))  # type: ignore[arg-type]
        await observe.until_waiting()
        await Observer(foreign, observe.dsn).shift(KEY, 5)
    if isolation in SNAPSHOT_ISOLATIONS:
        with pytest.raises(asyncpg.SerializationError):
            await task
    else:
        await task
    assert held.lost is None
    async with held.transaction(connection):
        pass
    await held.release()


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("by", ["transaction", "guard"])
@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_check_that_waited_past_the_expiry_is_a_loss(
    pool: Pool, connection: Connection, observe: Observer, isolation: str, by: str
) -> None:
    """What was live before the wait for a lock may have run out after it."""

    async def guarded(held: Lease) -> None:
        await _write_guarded(_guarded(held, connection, isolation, by), connection)

    _, task = await run_out_while_waited(pool, observe, guarded)
    with pytest.raises(LeaseLostError) as caught:
        await task
    assert caught.value.reason == "expired"
    assert await written(observe) == []


@pytest.mark.slow("takes half a second or so")
async def test_loss_while_the_check_waits_ends_the_wait(
    pool: Pool, connection: Connection, observe: Observer, travel: Travel
) -> None:
    """A lock that does not go away is waited for until the loss cancels the body, and the connection is sane."""

    async def job() -> None:
        async with lease(pool, KEY, ttl=9) as held, observe.locked(KEY):
            await _write_guarded(held.transaction(connection), connection)

    with pytest.raises(LeaseLostError) as caught:
        await travel.through(job(), within=9, rows=False)
    assert caught.value.reason == "unreachable"
    assert not connection.is_in_transaction()
    await write(connection, "B")
    assert await written(observe) == ["B"]


@pytest.mark.parametrize("by", ["transaction", "guard"])
async def test_check_that_passes_after_the_loss_starts_nothing(
    pool: Pool, connection: Connection, observe: Observer, travel: Travel, by: str
) -> None:
    """The row is live still, but the lease was given up here while the lock was waited for: its body must not begin."""
    held = await acquire(pool, KEY, ttl=30, heartbeat=5, grace=18)

    async def guarded() -> None:
        if by == "transaction":
            await _write_guarded(held.transaction(connection), connection)
        else:
            async with connection.transaction():
                await held.guard(connection)
                await write(connection, "A")

    async with observe.locked(KEY):
        task = asyncio.create_task(guarded())
        await observe.until_waiting()
        await travel.through(held.wait_lost(), within=15, rows=False)
        assert not await observe.is_free(KEY)
    with pytest.raises(LeaseLostError):
        await task
    assert await written(observe) == []


@pytest.mark.parametrize("taken", [True, False])
async def test_check_that_ends_after_the_lease_was_left_starts_nothing(
    pool: Pool, connection: Connection, observe: Observer, taken: bool
) -> None:
    """A lease that was released while the lock was waited for is over: for the caller, and told to nobody as a loss."""
    told = Recorder()
    held = await acquire(pool, KEY, ttl=30, observer=told)
    async with observe.locked(KEY) as foreign:
        task = asyncio.create_task(_write_guarded(held.transaction(connection), connection))
        await observe.until_waiting()
        release = asyncio.create_task(held.release())
        await observe.until_waiting(2)
        if taken:
            await Observer(foreign, observe.dsn).hand_over(KEY)
    with pytest.raises((LeaseLostError, RuntimeError), match=r"is lost: taken_over|left or released"):
        await task
    await release
    assert held.lost is None
    assert told.of(Lost) == []
    assert await written(observe) == []


async def _write_guarded(transaction: AbstractAsyncContextManager[None], connection: Connection) -> None:
    async with transaction:
        await write(connection, "A")


@asynccontextmanager
async def _guarded(held: Lease, connection: Connection, isolation: str, by: str) -> AsyncIterator[None]:
    """Guard a transaction by the one check or by the other."""
    if by == "transaction":
        async with held.transaction(connection, isolation=isolation, idle_timeout=None):  # type: ignore[arg-type]
            yield
    else:
        async with connection.transaction(isolation=isolation):  # type: ignore[arg-type]
            await held.guard(connection)
            yield
