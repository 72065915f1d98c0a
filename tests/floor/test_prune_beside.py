"""A prune beside claims, guards, renewals and failures: what it holds up, what it leaves behind."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, Pruned, acquire, lease
from tests.conftest import MakePool
from tests.floor.calls import DAY, fill, paused, use
from tests.sql.calls import STATEMENTS, claim, release, sessions, until_blocked
from tests.support.inside import ask, floor
from tests.support.leasing import until
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.typing import Connection, Pool

KEY = "k"
DELETE = "), pruned AS ("


@pytest.mark.slow("takes half a second or so")
async def test_prune_passes_over_a_row_that_is_guarded(table: LeaseTable, pool: Pool, observe: Observer) -> None:
    """A guarded transaction keeps its row until it ends, though the lease has run out long ago; nobody waits."""
    await use(table, "free", 2)
    held = await acquire(table, KEY)
    async with pool.acquire() as connection, held.transaction(connection):
        await observe.expire(KEY)
        await observe.shift(KEY, -DAY)
        async with asyncio.timeout(10):
            assert await table.prune(0) == Pruned(deleted=1, kept=1, floor=2)
        assert await observe.fence(KEY) == 1
    assert await table.prune(0) == Pruned(deleted=1, kept=0, floor=2)
    assert await use(table, KEY) == 3
    await held.release()


async def test_prune_passes_over_a_row_that_is_being_claimed(
    table: LeaseTable, session: Connection, observe: Observer
) -> None:
    """A claim under way has the row: it gets it, and its next fence, beside the prune."""
    await use(table, KEY, 2)
    async with session.transaction():
        row = await claim(session, KEY)
        assert row is not None
        async with asyncio.timeout(10):
            assert await table.prune(0) == Pruned(deleted=0, kept=1, floor=2)
    assert await observe.fence(KEY) == 3


async def test_prune_statements_hold_up_no_claim_of_a_known_key_and_no_renewal(
    table: LeaseTable, session: Connection, observe: Observer
) -> None:
    """However long a step takes, whoever has a row, or claims one that is not deleted, goes on beside it."""
    await use(table, "gone")
    await table.prune(0)
    held = await acquire(table, "held")
    await use(table, "known", 3)
    await observe.shift("known", 60)
    await use(table, "old")
    await observe.shift("old", -DAY)
    for statement, args in (
        (STATEMENTS.floor_raise, ("99",)),
        (STATEMENTS.prunable, (3600.0,)),
        (STATEMENTS.prune, ("", 3600.0, "10")),
    ):
        async with session.transaction():
            await ask(session, statement, *args)
            async with asyncio.timeout(10):
                await held.renew()
                assert await ask(observe.connection, STATEMENTS.release, "nobody", "x", None, 0.0) == []
                before = await observe.fence("known")
                await observe.expire("known")
                assert (await use(table, "known"), before) == ((before or 0) + 1, before)
    await held.release()


async def test_raise_that_waits_holds_up_no_first_claim(
    table: LeaseTable, session: Connection, observe: Observer, dsn: str
) -> None:
    """A raise of the floor waits for a first claim under way, and other first claims do not wait for the raise."""
    await use(table, "gone")
    await table.prune(0)
    async with sessions(dsn, 1) as (raising,):
        async with session.transaction():
            await claim(session, KEY)
            waiting = asyncio.create_task(ask(raising, STATEMENTS.floor_raise, "50"))
            await until_blocked(observe.connection, raising)
            async with asyncio.timeout(10):
                assert await use(table, "another") == 2
            assert not waiting.done()
        await waiting
    assert await use(table, "third") == 51


@pytest.mark.parametrize("end", ["cancel", "terminate"])
async def test_prune_that_ends_between_its_steps_leaves_every_fence_in_order(
    table: LeaseTable, observe: Observer, make_pool: MakePool, end: str
) -> None:
    """A floor that was raised for rows that stay is no harm, and the next prune goes on where this one ended."""
    pool = await make_pool(max_size=1)
    await fill(observe.connection, 5, fence=7)
    await observe.connection.execute("UPDATE lease SET holder = 'slow' WHERE key = 'key-3'")
    async with paused(observe):
        pruning = asyncio.create_task(LeaseTable(pool).prune(0))
        async with asyncio.timeout(10):
            while not await observe.connection.fetchval("SELECT true FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
        if end == "cancel":
            pruning.cancel()
        else:
            await observe.connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"
            )
        await asyncio.wait([pruning], timeout=5)
        with pytest.raises((asyncio.CancelledError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await pruning
        assert await observe.fence("") == 7
        assert await observe.fence("key-1") == 7
        assert await use(table, "new") == 8
    async with asyncio.timeout(10):
        while (await table.prune(0)).kept:
            await asyncio.sleep(0.01)
    assert [(row["key"], row["fence"]) for row in await observe.rows()] == [("", 8)]
    assert await use(table, "key-1") == 9


@pytest.mark.slow("thousands of rows")
async def test_prune_of_20000_rows_goes_in_batches_and_gives_its_connection_back_in_between(
    table: LeaseTable, observe: Observer, make_pool: MakePool, proxy: Proxy
) -> None:
    """No statement deletes more than a thousand rows, and a lease on the pool's one connection is renewed beside it."""
    await fill(observe.connection, 20000, fence=3)
    pool = await make_pool(proxy.dsn, max_size=1)
    async with lease(pool, "beside", ttl=30, heartbeat=0.1) as held:
        proxy.forget()
        before = held.expires_at
        assert await LeaseTable(pool).prune(3600) == Pruned(deleted=20000, kept=0, floor=3)
        assert proxy.count(DELETE) == 21
        await until(lambda: held.expires_at > before)
    assert await use(table, "key-7") == 4


@pytest.mark.slow("thousands of rows")
async def test_prune_on_a_pool_of_one_lets_others_in_between_its_statements(
    table: LeaseTable, observe: Observer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for the pool's one connection has it long before the prune is done."""
    monkeypatch.setattr(floor, "BATCH", 10)
    await fill(observe.connection, 3000)
    pool = await make_pool(max_size=1)
    pruning = asyncio.create_task(LeaseTable(pool).prune(0))
    for number in range(3):
        async with asyncio.timeout(10):
            assert await pool.fetchval("SELECT $1::int", number) == number
            await use(pool, f"beside-{number}")
    assert not pruning.done()
    assert (await pruning).deleted >= 3000
    assert len(await table.leases()) <= 3


async def test_prune_cancelled_in_the_middle_leaves_nothing_undone_that_matters(
    table: LeaseTable, observe: Observer, make_pool: MakePool, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled after a few batches it ends at once; what is left the next one deletes."""
    monkeypatch.setattr(floor, "BATCH", 10)
    await fill(observe.connection, 500, fence=2)
    steered = LeaseTable(await make_pool(proxy.dsn))
    pruning = asyncio.create_task(steered.prune(0))
    await proxy.wait_for(DELETE, count=5)
    pruning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pruning
    await steered.aclose()
    left = len(await table.leases())
    assert 0 < left < 500
    assert await table.prune(0) == Pruned(deleted=left, kept=0, floor=2)


async def test_release_and_renewal_of_a_pruned_row_touch_nothing(
    table: LeaseTable, session: Connection, observe: Observer
) -> None:
    """A holder that comes back after its key was pruned and made anew is told that its tenure is over."""
    await claim(session, KEY, "stale", 60)
    await observe.expire(KEY)
    assert (await table.prune(0)).deleted == 1
    held = await acquire(table, KEY, holder="stale")
    before = await observe.version(KEY)
    assert await release(session, KEY, "stale", 1) is None
    assert await observe.version(KEY) == before
    assert held.fence == 2
    await held.release()
