"""A claim whose caller went away: the server did it, and nobody heard."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import anyio
import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseTable, acquire, lease, try_acquire
from tests.conftest import MakePool
from tests.support.leasing import here, warm
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE
from tests.support.typing import Connection, Pool

KEY = "claimed"


async def slow_pool(make_pool: MakePool, proxy: Proxy, seconds: float) -> Pool:
    """Return a pool of one warm connection whose replies take so long from now on."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    proxy.delay_replies = seconds
    proxy.forget()
    return pool


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("after", [0.02, 0.3, 0.55])
async def test_acquire_cancelled_before_its_reply_leaves_the_row_free(
    make_pool: MakePool, proxy: Proxy, pool: Pool, observe: Observer, after: float
) -> None:
    """A claim that was carried out and not heard of is given back, and the caller gets its CancelledError."""
    slow = await slow_pool(make_pool, proxy, 0.6)
    task = asyncio.create_task(acquire(slow, KEY, ttl=30))
    await proxy.wait_for(CLAIM)
    await asyncio.sleep(after)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 1.3
    assert await observe.until_free(KEY, within=2) < 1
    async with lease(pool, KEY, wait=3) as held:
        assert held.fence == 2
    proxy.delay_replies = 0


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("anyios", [True, False])
async def test_acquire_timed_out_by_its_caller_leaves_the_row_free(
    make_pool: MakePool, proxy: Proxy, observe: Observer, anyios: bool
) -> None:
    """A timeout round acquire() is a cancellation like any other, and comes out as TimeoutError."""
    slow = await slow_pool(make_pool, proxy, 0.3)

    async def bounded() -> None:
        if anyios:
            with anyio.fail_after(0.1):
                await acquire(slow, KEY, ttl=30)
        else:
            async with asyncio.timeout(0.1):
                await acquire(slow, KEY, ttl=30)

    with pytest.raises(TimeoutError):
        await bounded()
    assert here().cancelling() == 0
    assert await observe.until_free(KEY, within=1) < 0.5
    assert proxy.count(RELEASE) == 1
    proxy.delay_replies = 0


@pytest.mark.usefixtures("table")
async def test_acquire_cancelled_while_it_waits_for_a_connection_sends_nothing(
    make_pool: MakePool, proxy: Proxy
) -> None:
    """A claim that had no connection yet is taken back: it ends at once and no statement goes out."""
    pool = await make_pool(proxy.dsn, max_size=1)
    async with pool.acquire():
        proxy.forget()
        task = asyncio.create_task(acquire(pool, KEY))
        await asyncio.sleep(0.05)
        task.cancel()
        started = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < 0.05
    assert not proxy.count(CLAIM)


class Turns:
    """A decoder of text that cancels a task so many turns of the loop after a reply was read."""

    def __init__(self) -> None:
        self.turns = 0
        self.task: asyncio.Task[object] | None = None

    def decode(self, text: str) -> str:
        """Decode, and start to count where a task is to be cancelled."""
        if self.task is not None:
            self._count(self.task, self.turns)
            self.task = None
        return text

    def _count(self, task: asyncio.Task[object], turns: int) -> None:
        if turns == 0:
            task.cancel()
        else:
            asyncio.get_running_loop().call_soon(self._count, task, turns - 1)

    async def install(self, connection: Connection) -> None:
        """Decode the text of a connection."""
        await connection.set_type_codec("text", schema="pg_catalog", encoder=str, decoder=self.decode, format="text")


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("holder", [None, "explicit"])
async def test_acquire_cancelled_in_the_turn_of_its_grant_gives_it_back(
    make_pool: MakePool, observe: Observer, holder: str | None
) -> None:
    """However few turns lie between the server's answer and the cancellation, the row is free at the end."""
    turns = Turns()
    pool = await make_pool(max_size=1, init=turns.install)
    await warm(pool)
    cancelled = 0
    for turns.turns in range(8):
        turns.task = asyncio.create_task(acquire(pool, KEY, ttl=30, holder=holder))
        task = turns.task
        await asyncio.wait([task])
        if task.cancelled():
            cancelled += 1
        else:
            await task.result().release()
        await observe.until_free(KEY, within=0.5)
    assert cancelled >= 3


@pytest.mark.usefixtures("table")
async def test_acquire_with_a_lost_reply_is_given_back_on_another_connection(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """A link that breaks after the claim was carried out raises the driver's error, and leaves no row."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    drop = proxy.drop_reply(CLAIM)
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InternalClientError, OSError)):
        await acquire(pool, KEY, ttl=30)
    assert drop.happened.is_set()
    await observe.until_free(KEY, within=1)
    record = await observe.row(KEY)
    assert record is not None
    assert record["released_at"] is not None


@pytest.mark.usefixtures("table")
async def test_acquire_of_an_explicit_holder_with_a_lost_reply_stays_to_be_joined(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """A lost claim of an explicit holder may be another handle's tenure: it is not given back, and can be joined."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    proxy.drop_reply(CLAIM)
    with suppress(asyncpg.PostgresError, asyncpg.InternalClientError, OSError):
        await acquire(pool, KEY, ttl=30, holder="app")
    assert not await observe.is_free(KEY)
    again = await acquire(pool, KEY, ttl=30, holder="app")
    await again.release()
    assert again.joined
    assert not await observe.is_free(KEY)


@pytest.mark.usefixtures("table")
async def test_acquire_cancelled_on_a_frozen_link_comes_out_within_a_second(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """A network that has gone silent holds a cancelled acquire() up for a second at most; later it is cleaned up."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    task = asyncio.create_task(acquire(pool, KEY, ttl=5))
    await asyncio.sleep(0)
    proxy.freeze()
    await asyncio.sleep(0.1)
    started = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 1.25
    assert library_tasks()
    proxy.thaw()
    await observe.until_free(KEY, within=1)


@pytest.mark.usefixtures("table")
async def test_acquire_answered_after_its_own_deadline_is_given_back(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """A claim whose answer comes after the trust in it is over is no lease: TimeoutError, and nothing is left."""
    slow = await slow_pool(make_pool, proxy, 0.6)
    (outcome,) = await asyncio.gather(acquire(slow, KEY, ttl=1.2, grace=0.7, heartbeat=0.2), return_exceptions=True)
    if isinstance(outcome, Lease):
        await outcome.release()
    assert isinstance(outcome, TimeoutError)
    assert "answered after its own deadline" in str(outcome)
    record = await observe.row(KEY)
    assert record is not None
    assert record["released_at"] is not None
    proxy.delay_replies = 0


@pytest.mark.usefixtures("table")
async def test_acquire_closed_by_hand_while_it_waits_leaves_the_row_free(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """A coroutine that is closed in the middle of its claim is a caller that went away as well."""
    slow = await slow_pool(make_pool, proxy, 0.1)
    call = acquire(slow, KEY, ttl=30)
    call.send(None)
    await proxy.wait_for(CLAIM)
    call.close()
    await asyncio.sleep(0.2)
    await observe.until_free(KEY, within=1)
    proxy.delay_replies = 0


@pytest.mark.usefixtures("table")
async def test_try_acquire_cancelled_before_its_reply_leaves_the_row_free(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """try_acquire() takes care of its claim as acquire() does."""
    slow = await slow_pool(make_pool, proxy, 0.2)
    with anyio.move_on_after(0.05) as scope:
        await try_acquire(slow, KEY, ttl=30)
    assert scope.cancelled_caught
    assert await observe.until_free(KEY, within=1) < 0.5
    proxy.delay_replies = 0


async def test_acquire_cancelled_while_waiting_for_a_holder_touches_nothing(
    table: LeaseTable, pool: Pool, observe: Observer
) -> None:
    """A waiter that is cancelled between two tries leaves the incumbent's row as it was."""
    async with lease(table, KEY, ttl=30):
        before = await observe.version(KEY)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await acquire(pool, KEY, wait=10)
        assert await observe.version(KEY) == before


async def test_acquire_cancelled_before_it_begins_sends_nothing(pool: Pool, table: LeaseTable) -> None:
    """A task that is cancelled before its first step claims nothing."""
    task = asyncio.create_task(acquire(pool, KEY))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await table.get(KEY) is None
