"""A claim whose caller went away: the server did it, and nobody heard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire, lease, try_acquire
from tests.cancellation.ends import come_to_an_end
from tests.conftest import MakePool
from tests.support.leasing import here, spin, until, warm
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE
from tests.support.travel import Travel
from tests.support.typing import Connection, Pool

KEY = "claimed"


async def slow_pool(make_pool: MakePool, proxy: Proxy, seconds: float) -> Pool:
    """Return a pool of one warm connection whose replies take so long from now on."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    proxy.delay_replies = seconds
    proxy.forget()
    return pool


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("after", [0.0, 1.2])
async def test_acquire_cancelled_before_its_reply_leaves_the_row_free(
    *, make_pool: MakePool, proxy: Proxy, pool: Pool, observe: Observer, travel: Travel, after: float
) -> None:
    """A claim that was carried out and not heard of is given back, and the caller gets its CancelledError.

    The caller waits for a second: that is too short for the reply, or long enough.
    """
    slow = await slow_pool(make_pool, proxy, 2)
    task = asyncio.create_task(acquire(slow, KEY, ttl=300))
    await proxy.wait_for(CLAIM)
    await travel(after)
    assert not await observe.is_free(KEY)
    task.cancel()
    await travel.until(task.done, within=5)
    assert task.cancelled()
    assert travel.moved < after + 1.1
    await travel.until(lambda: observe.is_free(KEY), within=5)
    async with lease(pool, KEY, wait=3) as held:
        assert held.fence == 2
    await come_to_an_end(slow, proxy, travel)


async def by_asyncio(seconds: float, call: Callable[[], Awaitable[object]]) -> None:
    """Bound a call by asyncio.timeout()."""
    async with asyncio.timeout(seconds):
        await call()


async def by_anyio(seconds: float, call: Callable[[], Awaitable[object]]) -> None:
    """Bound a call by anyio.fail_after()."""
    with anyio.fail_after(seconds):
        await call()


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("bounded", [by_asyncio, by_anyio])
async def test_acquire_timed_out_by_its_caller_leaves_the_row_free(
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    bounded: Callable[[float, Callable[[], Awaitable[object]]], Awaitable[None]],
) -> None:
    """A timeout round acquire() is a cancellation like any other, and comes out as TimeoutError."""
    slow = await slow_pool(make_pool, proxy, 2)

    async def call() -> int:
        with pytest.raises(TimeoutError):
            await bounded(1.2, lambda: acquire(slow, KEY, ttl=300))
        return here().cancelling()

    assert await travel.through(call(), within=5) == 0
    # The caller waits for a second at most until its claim is given back.
    assert travel.moved < 2.3
    await travel.until(lambda: observe.is_free(KEY), within=5)
    assert await observe.fence(KEY) == 1
    assert proxy.count(RELEASE) == 1
    await come_to_an_end(slow, proxy, travel)


@pytest.mark.usefixtures("table")
async def test_acquire_cancelled_while_it_waits_for_a_connection_sends_nothing(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """A claim that had no connection yet is taken back: it ends at once and no statement goes out."""
    pool = await make_pool(proxy.dsn, max_size=1)
    async with pool.acquire():
        proxy.forget()
        task = asyncio.create_task(acquire(pool, KEY))
        await spin(10)
        task.cancel()
        # No time has to pass.
        await travel.until(task.done, within=0)
        assert task.cancelled()
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
    left: list[int] = []
    for turns.turns in range(8):
        turns.task = asyncio.create_task(acquire(pool, KEY, ttl=30, holder=holder))
        task = turns.task
        await asyncio.wait([task])
        if task.cancelled():
            cancelled += 1
        else:
            await task.result().release()
        if not await observe.is_free(KEY):
            left.append(turns.turns)
            await observe.expire(KEY)
    assert left == []
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
    await observe.until_free(KEY, within=5)
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
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """A network that has gone silent holds a cancelled acquire() up for a second at most; later it is cleaned up."""
    pool = await make_pool(proxy.dsn, max_size=1)
    await warm(pool)
    before = proxy.count(CLAIM)
    task = asyncio.create_task(acquire(pool, KEY, ttl=30))
    await asyncio.sleep(0)
    proxy.freeze()
    await proxy.wait_for(CLAIM, count=before + 1)
    task.cancel()
    await travel.until(task.done, within=5)
    assert task.cancelled()
    assert travel.moved < 1.1
    assert library_tasks()
    proxy.thaw()
    await until(lambda: not library_tasks())
    assert await observe.is_free(KEY)


@pytest.mark.usefixtures("table")
async def test_acquire_answered_after_its_own_deadline_is_given_back(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """A claim whose answer comes after the trust in it is over is no lease: TimeoutError, and nothing is left."""
    slow = await slow_pool(make_pool, proxy, 2.4)
    task = asyncio.create_task(acquire(slow, KEY, ttl=4, grace=2.5, heartbeat=0.5))
    await travel.until(task.done, within=4)
    with pytest.raises(TimeoutError, match="answered after its own deadline"):
        await task
    record = await observe.row(KEY)
    assert record is not None
    assert record["released_at"] is not None
    await come_to_an_end(slow, proxy, travel)


@pytest.mark.usefixtures("table")
async def test_acquire_closed_by_hand_while_it_waits_leaves_the_row_free(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """A coroutine that is closed in the middle of its claim is a caller that went away as well."""
    slow = await slow_pool(make_pool, proxy, 1)
    call = acquire(slow, KEY, ttl=30)
    call.send(None)
    await proxy.wait_for(CLAIM)
    call.close()
    await come_to_an_end(slow, proxy, travel)
    assert await observe.is_free(KEY)
    assert await observe.fence(KEY) == 1
    assert proxy.count(RELEASE) == 1


@pytest.mark.usefixtures("table")
async def test_try_acquire_cancelled_before_its_reply_leaves_the_row_free(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """try_acquire() takes care of its claim as acquire() does."""
    slow = await slow_pool(make_pool, proxy, 2)

    async def call() -> bool:
        with anyio.move_on_after(1.2) as scope:
            await try_acquire(slow, KEY, ttl=300)
        return scope.cancelled_caught

    assert await travel.through(call(), within=5)
    await travel.until(lambda: observe.is_free(KEY), within=5)
    assert await observe.fence(KEY) == 1
    await come_to_an_end(slow, proxy, travel)


async def test_acquire_cancelled_while_waiting_for_a_holder_touches_nothing(
    table: LeaseTable, pool: Pool, observe: Observer, travel: Travel
) -> None:
    """A waiter that is cancelled between two tries leaves the incumbent's row as it was."""
    async with lease(table, KEY, ttl=60):
        before = await observe.version(KEY)
        task = asyncio.create_task(acquire(pool, KEY, wait=100))
        # Not for the row, whose version that would change.
        await travel(5, rows=False)
        task.cancel()
        await travel.until(task.done, within=0, rows=False)
        assert task.cancelled()
        assert await observe.version(KEY) == before


async def test_acquire_cancelled_before_it_begins_sends_nothing(pool: Pool, table: LeaseTable) -> None:
    """A task that is cancelled before its first step claims nothing."""
    task = asyncio.create_task(acquire(pool, KEY))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await table.get(KEY) is None
