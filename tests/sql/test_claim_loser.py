"""Who does not get a key: told who has it, at no cost, without waiting."""

from __future__ import annotations

import asyncio

import pytest

from asyncpg_lease import LeaseTable, LeaseUnavailableError, acquire, try_acquire
from tests.conftest import MakePool
from tests.sql.calls import Session, claim, claim_granted, claim_refused, release, until_blocked
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RESET
from tests.support.typing import Connection, Pool

LOSING = 10
"""How many lose in one round: few, so that the server's own work does not fall into each of them."""


async def cheapest(observe: Observer, session: Session | Pool) -> tuple[int, int]:
    """Return the transaction ids and bytes of WAL of the cheapest of many rounds of losing attempts.

    The server's own work, an autovacuum above all, may fall into any of the others.
    """
    costs = []
    for _ in range(50):
        async with observe.cost() as cost:
            for _ in range(LOSING):
                if isinstance(session, Session):
                    await claim_refused(session, "k", "loser")
                else:
                    assert await try_acquire(session, "k") is None
        costs.append((cost.xids, cost.wal))
        if costs[-1] == (0, 0):
            break
    return min(costs)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_loser_on_a_held_row_writes_nothing(
    table: LeaseTable, make_pool: MakePool, observe: Observer, isolation: str
) -> None:
    """In the cheapest of many rounds: no transaction id, no row lock or version, 0 bytes of WAL."""
    held = await acquire(table, "k", ttl=600)
    pool = await make_pool(server_settings={"default_transaction_isolation": isolation})
    version = await observe.version("k")
    assert await cheapest(observe, pool) == (0, 0)
    assert await observe.version("k") == version
    await held.release()


async def test_loser_on_a_resting_row_writes_nothing(session: Connection, observe: Observer) -> None:
    """A released row that min_hold keeps shut costs its losers nothing either."""
    await claim_granted(session, "k")
    assert await release(session, "k", min_hold=600) == 1
    version = await observe.version("k")
    assert await cheapest(observe, session) == (0, 0)
    assert await observe.version("k") == version


async def test_loser_on_a_free_row_that_is_locked_writes_nothing(session: Connection, observe: Observer) -> None:
    """A free row that somebody else has locked is no reason to write or to lock."""
    await claim_granted(session, "k")
    await release(session, "k")
    async with observe.locked("k"):
        version = await observe.version("k")
        assert await cheapest(observe, session) == (0, 0)
        assert await observe.version("k") == version


async def test_loser_sends_one_statement(table: LeaseTable, make_pool: MakePool, proxy: Proxy) -> None:
    """Losing is one statement, in one round trip where the connection knows it."""
    held = await acquire(table, "k")
    pool = await make_pool(proxy.dsn, max_size=1)
    assert await try_acquire(pool, "k") is None
    await proxy.wait_for(RESET)
    proxy.forget()
    assert await try_acquire(pool, "k") is None
    assert proxy.count(CLAIM) == 1
    assert proxy.round_trips == 1
    await proxy.wait_for(RESET)
    assert [RESET in statement.sql for statement in proxy.statements] == [False, True]
    await held.release()


@pytest.mark.parametrize("strength", ["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"])
async def test_loser_never_waits_for_the_lock_on_a_free_row(
    table: LeaseTable, observe: Observer, strength: str
) -> None:
    """A free row that another session has locked, however weakly, is unavailable while it is locked."""
    await (await acquire(table, "k")).release()
    async with observe.locked("k", strength), asyncio.timeout(5):
        with pytest.raises(LeaseUnavailableError):
            await acquire(table, "k")
    held = await acquire(table, "k")
    assert held.fence == 2
    await held.release()


@pytest.mark.parametrize("strength", ["UPDATE", "KEY SHARE"])
async def test_loser_never_waits_for_the_lock_on_a_held_row(
    session: Connection, observe: Observer, strength: str
) -> None:
    """A held row that its holder's renewal or guard has locked is unavailable while it is locked, too."""
    await claim_granted(session, "k", "holder")
    async with observe.locked("k", strength), asyncio.timeout(5):
        assert (await claim_refused(session, "k")).holder == "holder"


async def test_loser_is_told_the_incumbent(table: LeaseTable, pool: Pool) -> None:
    """The error has the incumbent's holder, fence and expiry, and how long it still has."""
    await (await acquire(table, "k")).release()
    held = await acquire(table, "k", ttl=30, holder="the incumbent")
    with pytest.raises(LeaseUnavailableError) as caught:
        await acquire(pool, "k")
    error = caught.value
    assert (error.key, error.holder, error.fence) == ("k", "the incumbent", 2)
    assert error.expires_at == held.expires_at
    assert error.retry_after is not None
    assert 28 < error.retry_after <= 30
    await held.release()


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_loser_of_a_first_claim_is_told_who_won(
    session: Connection, observe: Observer, make_pool: MakePool, isolation: str
) -> None:
    """A claim waits for an uncommitted first insert of its key alone; committed, that one is the incumbent."""
    transaction = session.transaction(isolation="read_committed")
    await transaction.start()
    await claim_granted(session, "k", "first")
    pool = await make_pool(max_size=1, server_settings={"default_transaction_isolation": isolation})
    pid = await pool.fetchval("SELECT pg_backend_pid()")
    task = asyncio.create_task(acquire(pool, "k", ttl=30))
    async with asyncio.timeout(5):
        while not await observe.connection.fetchval(
            "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1", pid
        ):
            await asyncio.sleep(0.005)
    await transaction.commit()
    with pytest.raises(LeaseUnavailableError) as caught:
        await task
    assert (caught.value.holder, caught.value.fence) == ("first", 1)


async def test_claim_behind_a_first_insert_that_is_rolled_back_is_granted(
    session: Connection, observe: Observer, pool: Pool
) -> None:
    """Where the first insert of a key comes to nothing, the claim that waited for it has the key."""
    transaction = session.transaction()
    await transaction.start()
    await claim_granted(session, "k", "first")
    async with pool.acquire() as other:
        task = asyncio.create_task(claim(other, "k", "second"))
        await until_blocked(observe.connection, other)
        await transaction.rollback()
        row = await task
    assert row is not None
    assert (row.how, row.holder, row.fence) == ("free", "second", 1)


async def test_claim_of_another_new_key_does_not_wait_for_a_first_insert(session: Connection, pool: Pool) -> None:
    """An uncommitted first insert holds up nobody who wants another key."""
    async with session.transaction():
        await claim_granted(session, "k", "first")
        async with pool.acquire() as other, asyncio.timeout(5):
            assert (await claim_granted(other, "l", "second")).fence == 1
