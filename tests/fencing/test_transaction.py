"""Lease.transaction(): what is written under a live tenure is committed, what is not is not."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import asyncpg
import psycopg
import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Lost
from tests.conftest import MakePool
from tests.fencing.writing import HARMS, ISOLATIONS, KEY, is_shut, write, written
from tests.support.leasing import Recorder, here, spin
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel
from tests.support.typing import Connection, Pool


@pytest.mark.parametrize("given", [True, False], ids=["given", "the session's"])
@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_transaction_is_committed_at_its_end(
    pool: Pool, connection: Connection, observe: Observer, isolation: str, given: bool
) -> None:
    """Nobody sees what was written before the block's end, everybody after it, under every isolation."""
    words = isolation.replace("_", " ")
    if not given:
        await connection.execute(f"SET default_transaction_isolation = '{words}'")
    held = await acquire(pool, KEY)
    async with held.transaction(connection, isolation=isolation if given else None):  # type: ignore[arg-type]
        assert await connection.fetchval("SHOW transaction_isolation") == words
        await write(connection, "A")
        assert await written(observe) == []
    assert await written(observe) == ["A"]
    assert not connection.is_in_transaction()
    await held.release()


@pytest.mark.parametrize("kind", [ValueError, StopAsyncIteration, KeyError, asyncio.CancelledError, SystemExit])
async def test_transaction_with_an_error_is_rolled_back(
    pool: Pool, connection: Connection, observe: Observer, kind: type[BaseException]
) -> None:
    """Any exception of the body comes out as itself, and nothing is written."""
    held = await acquire(pool, KEY)
    error = kind("the body's own")
    with pytest.raises(kind) as caught:
        async with held.transaction(connection):
            await write(connection, "A")
            raise error
    assert caught.value is error
    assert not connection.is_in_transaction()
    assert await written(observe) == []
    async with held.transaction(connection):
        await write(connection, "B")
    assert await written(observe) == ["B"]
    await held.release()


async def test_transaction_takes_transactions_of_the_driver_inside(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """The driver's own blocks inside are savepoints of it, and the guard is not theirs to undo."""
    held = await acquire(pool, KEY)
    async with held.transaction(connection):
        inside = ValueError("inside")
        with pytest.raises(ValueError, match="inside"):
            async with connection.transaction():
                await write(connection, "A")
                raise inside
        await write(connection, "B")
        await observe.expire(KEY)
        assert await is_shut(pool)
    assert await written(observe) == ["B"]
    await held.release()


@pytest.mark.parametrize(
    ("kind", "name"), [("same pool", "ein Tisch"), ("other pool", 'q"uote'), ("pool of one", "$1"), ("plain", "stamp")]
)
async def test_transaction_works_on_every_connection_to_the_database(
    make_pool: MakePool, dsn: str, observe: Observer, kind: str, name: str
) -> None:
    """A connection of the same pool, of another, of a pool of one, or of none will do, whatever the table's name."""
    await observe.connection.execute('CREATE SCHEMA "Other Place"')
    pool = await make_pool(max_size=1 if kind == "pool of one" else 2)
    table = LeaseTable(pool, name, schema="Other Place")
    await table.create()
    held = await acquire(table, KEY)
    if kind == "plain":
        connection = await asyncpg.connect(dsn)
        try:
            async with held.transaction(connection):
                await write(connection, "A")
        finally:
            await connection.close()
    else:
        other = await make_pool() if kind == "other pool" else pool
        async with other.acquire() as pooled, held.transaction(pooled):
            await write(pooled, "A")
    assert await written(observe) == ["A"]
    await held.release()
    await table.aclose()


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("harm", HARMS)
async def test_transaction_of_a_tenure_that_is_over_is_refused(
    pool: Pool, connection: Connection, observe: Observer, harm: str, isolation: str
) -> None:
    """The body does not begin, the loss has its reason and is told once, and the connection is as it was."""
    act, reason, taken_by = HARMS[harm]
    told = Recorder()
    held = await acquire(pool, KEY, ttl=30, observer=told)
    await act(observe)
    for _ in range(2):
        with pytest.raises(LeaseLostError) as caught:
            async with held.transaction(connection, isolation=isolation):  # type: ignore[arg-type]
                await write(connection, "A")
        assert (caught.value.reason, caught.value.taken_by) == (reason, taken_by)
        assert held.lost is caught.value
        assert not connection.is_in_transaction()
    assert [event.reason for event in told.of(Lost)] == [reason]
    await write(connection, "B")
    assert await written(observe) == ["B"]


async def test_loss_that_a_transaction_finds_cancels_its_own_task_after_the_rollback(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """The task that runs into the loss is the body's own: the end of its transaction is not what is cancelled."""
    seen: list[object] = []
    with pytest.raises(LeaseLostError) as caught:
        async with lease(pool, KEY, ttl=30) as held:
            await observe.expire(KEY)
            with pytest.raises(LeaseLostError):
                async with held.transaction(connection):
                    seen.append("body")
            seen += [connection.is_closed(), connection.is_in_transaction(), here().cancelling()]
            await asyncio.sleep(10)
    assert caught.value.reason == "expired"
    assert seen == [False, False, 1]
    assert await connection.fetchval("SELECT 1") == 1
    assert here().cancelling() == 0


async def test_loss_that_a_transaction_finds_under_flag_cancels_nothing(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """The caller of the transaction is told, whoever waits for the loss as well, and the block's end is as ever."""
    async with lease(pool, KEY, ttl=30, on_lost="flag") as held:
        await observe.hand_over(KEY)
        with pytest.raises(LeaseLostError):
            async with held.transaction(connection):
                await write(connection, "A")
        assert await held.wait_lost() is held.lost
        await spin(20)
    assert await written(observe) == []


async def test_error_of_the_body_comes_out_where_the_rollback_fails(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """A connection that is gone by then hides nothing of what the body ended with."""
    held = await acquire(pool, KEY)
    error = ValueError("the body's own")
    with pytest.raises(ValueError, match="own") as caught:
        async with held.transaction(connection):
            await write(connection, "A")
            await observe.connection.execute("SELECT pg_terminate_backend($1, 5000)", connection.get_server_pid())
            raise error
    assert caught.value is error
    assert "connection" in error.__notes__[0]
    assert connection.is_closed()
    assert await written(observe) == []
    await held.release()


async def test_rollback_that_cannot_be_asked_for_closes_the_connection(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """A connection that is busy elsewhere takes no rollback: it is closed, or the transaction would stay open."""
    held = await acquire(pool, KEY)
    error, server = ValueError("the body's own"), connection.get_server_pid()
    with pytest.raises(ValueError, match="own"):
        async with held.transaction(connection):
            await write(connection, "A")
            busy = asyncio.create_task(connection.execute("SELECT pg_sleep(10)"))
            await spin(5)
            raise error
    assert connection.is_closed()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await busy
    await observe.connection.execute("SELECT pg_terminate_backend($1, 5000)", server)
    assert await written(observe) == []
    await held.release()


@pytest.mark.parametrize("times", [1, 2])
async def test_rollback_on_a_frozen_link_is_bounded(pool: Pool, proxy: Proxy, travel: Travel, times: int) -> None:
    """A cancelled body is out in a second, also where the server does not answer the rollback; twice, at once."""
    frozen_now = asyncio.Event()
    held = await acquire(pool, KEY)
    frozen = await asyncpg.connect(proxy.dsn)

    async def body() -> None:
        async with held.transaction(frozen):
            proxy.freeze()
            frozen_now.set()
            await asyncio.sleep(1000)

    task = asyncio.create_task(body())
    await frozen_now.wait()
    before = travel.moved
    for _ in range(times):
        task.cancel()
        await spin(20)
    await travel.until(task.done, within=10)
    assert travel.moved - before <= (1 if times == 1 else 0.1)
    assert task.cancelled()
    assert frozen.is_closed()
    proxy.thaw()
    await held.release()


async def test_rollback_of_a_session_that_has_ended_while_the_process_was_paused_comes_to_an_end(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """A statement that is cancelled at the moment at which its session turns out to be gone leaves nobody waiting."""
    held = await acquire(pool, KEY)

    async def body() -> None:
        async with held.transaction(connection):
            await write(connection, "A")
            # Blocking, as a pause is: the loop hears of the end together with the cancellation.
            with psycopg.connect(observe.dsn, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.get_server_pid()])
            here().cancel()
            await write(connection, "B")

    task = asyncio.create_task(body())
    done, _ = await asyncio.wait([task], timeout=5)
    task.cancel()
    assert done
    with pytest.raises(asyncio.CancelledError):
        await task
    assert connection.is_closed()
    assert await written(observe) == []
    await held.release()


async def test_body_that_swallows_a_database_error_has_written_nothing(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """An error fails the whole transaction, which is documented: its commit is a rollback, and the driver is silent."""
    held = await acquire(pool, KEY)
    async with held.transaction(connection):
        await write(connection, "A")
        with suppress(asyncpg.DivisionByZeroError):
            await connection.fetchval("SELECT 1/0")
    assert await written(observe) == []
    assert not connection.is_in_transaction()
    await held.release()


async def test_commit_that_the_database_refuses_comes_out(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """An error of the commit itself is the driver's, and no loss."""
    await observe.connection.execute("ALTER TABLE journal ADD UNIQUE (who) DEFERRABLE INITIALLY DEFERRED")
    held = await acquire(pool, KEY)
    with pytest.raises(asyncpg.UniqueViolationError):
        async with held.transaction(connection):
            await write(connection, "A")
            await write(connection, "A")
    assert held.lost is None
    assert not connection.is_in_transaction()
    assert await written(observe) == []
    await held.release()


async def test_transaction_costs_its_begin_its_check_and_its_commit(make_pool: MakePool, proxy: Proxy) -> None:
    """Three round trips; a connection of another pool is asked once, at its first use, where it leads."""
    own, other = await make_pool(proxy.dsn, max_size=2), await make_pool(proxy.dsn, max_size=1)
    held = await acquire(own, KEY)
    for pool, asked in ((own, 0), (other, 1)):
        proxy.forget()
        async with pool.acquire() as connection, held.transaction(connection):
            pass
        assert sum("pg_control_system" in statement.sql for statement in proxy.statements) == 2 * asked
        async with pool.acquire() as connection:
            proxy.forget()
            before = proxy.round_trips
            async with held.transaction(connection):
                pass
            assert proxy.round_trips - before == 3
            seen = [statement.sql for statement in proxy.statements]
            assert [seen[0], "guarded AS" in seen[1], seen[2]] == ["BEGIN;", True, "COMMIT;"]
    await held.release()
