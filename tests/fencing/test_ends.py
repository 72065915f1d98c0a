"""How a guarded transaction begins and ends where a cancellation, a link or the body's own SQL comes between."""

from __future__ import annotations

import asyncio
from importlib.resources import files

import asyncpg
import pytest

from asyncpg_lease import LeaseUnavailableError, acquire, lease
from tests.conftest import MakePool
from tests.fencing.test_stopped_clients import sessions
from tests.fencing.writing import KEY, is_shut, write, written
from tests.support.leasing import until
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel
from tests.support.typing import Connection, Pool


@pytest.mark.parametrize("phase", ["question", "begin", "commit"])
async def test_block_that_is_cancelled_on_a_frozen_link_is_left_in_bounded_time(  # noqa: PLR0917
    pool: Pool, make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, phase: str
) -> None:
    """A question, BEGIN or COMMIT that is never answered keeps neither the job nor its key, on a pool either."""
    frozen = await make_pool(proxy.dsn, min_size=1, max_size=1)
    reached = asyncio.Event()

    def freeze() -> None:
        proxy.freeze()
        proxy.forget()
        reached.set()

    async def job() -> None:
        async with lease(pool, KEY, ttl=60) as held, frozen.acquire() as connection:
            if phase == "begin":
                # The first transaction on a connection asks which database it leads to.
                async with held.transaction(connection):
                    pass
            if phase != "commit":
                freeze()
            async with held.transaction(connection):
                freeze()

    task = asyncio.create_task(job())
    try:
        await reached.wait()
        await until(lambda: proxy.bytes_from_client)
        task.cancel()
        await travel.until(task.done, within=5)
        assert await observe.is_free(KEY)
    finally:
        proxy.thaw()
    assert task.cancelled()


async def test_commit_that_is_cancelled_on_a_frozen_link_closes_the_connection(
    pool: Pool, proxy: Proxy, observe: Observer, travel: Travel
) -> None:
    """What became of it is unknown; the connection is closed, so that no open transaction is handed on."""
    held = await acquire(pool, KEY)
    frozen = await asyncpg.connect(proxy.dsn)

    async def job() -> None:
        async with held.transaction(frozen):
            await write(frozen, "A")
            proxy.freeze()

    task = asyncio.create_task(job())
    await proxy.wait_for("COMMIT")
    task.cancel()
    await travel.until(task.done, within=5)
    closed = frozen.is_closed()
    proxy.thaw()
    await held.release()
    frozen.terminate()
    assert task.cancelled()
    assert closed
    assert await written(observe) in ([], ["A"])


async def test_begin_that_is_cancelled_leaves_no_transaction_open(pool: Pool, proxy: Proxy, observe: Observer) -> None:
    """The next transaction on the same connection is no savepoint of it and is committed, or it is closed."""
    held = await acquire(pool, KEY)
    slow = await asyncpg.connect(proxy.dsn)
    async with held.transaction(slow):
        pass
    proxy.forget()
    proxy.delay_replies = 5
    enter = asyncio.ensure_future(held.transaction(slow).__aenter__())
    await proxy.wait_for("BEGIN")
    enter.cancel()
    await asyncio.wait({enter})
    proxy.delay_replies = 0
    if not slow.is_closed():
        async with held.transaction(slow):
            await write(slow, "A")
        assert await written(observe) == ["A"]
        await slow.close()
    await held.release()


async def test_transaction_after_a_begin_of_the_drivers_own_that_was_cut_off_is_refused(
    pool: Pool, proxy: Proxy
) -> None:
    """The driver counts that one as open, and takes the next for a savepoint of it, which nobody would commit."""
    held = await acquire(pool, KEY)
    slow = await asyncpg.connect(proxy.dsn)
    async with held.transaction(slow):
        pass
    proxy.forget()
    proxy.delay_replies = 5
    begin = asyncio.ensure_future(slow.transaction().start())
    await proxy.wait_for("BEGIN")
    begin.cancel()
    await asyncio.wait({begin})
    with pytest.raises(RuntimeError, match="this one would be a savepoint of it"):
        async with held.transaction(slow):
            pass
    proxy.delay_replies = 0
    slow.terminate()
    await held.release()


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
async def test_body_that_ends_the_transaction_itself_is_told(
    pool: Pool, connection: Connection, observe: Observer, sql: str
) -> None:
    """What it writes after that is guarded by nothing: a successor may have begun, and silence would hide it."""
    held = await acquire(pool, KEY)

    async def job() -> None:
        async with held.transaction(connection):
            await connection.execute(sql)
            await observe.hand_over(KEY)
            await write(connection, "stale")

    ended, *_ = await asyncio.gather(job(), return_exceptions=True)
    await held.release()
    assert isinstance(ended, Exception)


async def test_key_that_a_transaction_keeps_shut_is_not_said_to_rest(pool: Pool, connection: Connection) -> None:
    """Who is refused after the release is told what keeps the key: a transaction, and no min_hold."""
    held = await acquire(pool, KEY)
    async with held.transaction(connection):
        await held.release()
        with pytest.raises(LeaseUnavailableError) as caught:
            await acquire(pool, KEY)
    assert "a guarded transaction keeps the key shut" in str(caught.value)
    assert not caught.value.resting


async def test_second_query_of_the_page_names_a_guard_that_was_made_in_a_savepoint(
    pool: Pool, connection: Connection, observe: Observer
) -> None:
    """Once the savepoint is released the first one does not, though the key stays shut."""
    held = await acquire(pool, "report")
    async with connection.transaction():
        async with connection.transaction():
            await held.guard(connection)
        assert await sessions(observe) == []
        assert [found["pid"] for found in await sessions(observe, of_any_key=True)] == [connection.get_server_pid()]
    await held.release()


@pytest.mark.parametrize("where", ["in a temporary table", "in the role's own schema"])
async def test_assertion_looks_at_no_other_table_of_that_name(
    connection: Connection, observe: Observer, where: str
) -> None:
    """A table `lease` that this session or this role has to itself answers for nobody."""
    await observe.connection.execute(files("asyncpg_lease").joinpath("sql/fencing.sql").read_text())
    prepare = "CREATE TEMPORARY TABLE lease (LIKE public.lease)"
    if where == "in the role's own schema":
        prepare = "CREATE SCHEMA AUTHORIZATION CURRENT_USER CREATE TABLE lease (LIKE public.lease)"
    await connection.execute(prepare)
    name = "pg_temp.lease" if "temporary" in where else "lease"
    await connection.execute(f"INSERT INTO {name} VALUES ('job', 'nobody', 7, now(), 'infinity')")
    with pytest.raises(asyncpg.PostgresError, match="is not held"):
        await connection.execute("SELECT lease_assert_held('job', 'nobody', 7)")


async def test_handle_of_the_same_holder_joins_during_a_guarded_transaction(pool: Pool, connection: Connection) -> None:
    """An explicit holder's own live lease is joined, whatever its transactions have locked."""
    async with lease(pool, KEY, holder="batch") as held, held.transaction(connection):
        joined = await acquire(pool, KEY, holder="batch")
        await joined.release()
        assert joined.joined
        assert await is_shut(pool)


async def test_guard_after_a_cancelled_commit_is_refused(
    make_pool: MakePool, pool: Pool, proxy: Proxy, travel: Travel
) -> None:
    """The driver says that a transaction is open until the COMMIT is answered; a guard would end with its statement."""
    held = await acquire(pool, KEY)
    slow = await make_pool(proxy.dsn, min_size=1, max_size=1)
    async with slow.acquire() as connection:
        await connection.execute("BEGIN")
        await held.guard(connection)
        proxy.delay_replies = 10
        commit = asyncio.create_task(connection.execute("COMMIT"))
        await travel(5)
        proxy.delay_replies = 0
        commit.cancel()
        await asyncio.wait({commit})
        assert connection.is_in_transaction()
        (outcome,) = await travel.through(asyncio.gather(held.guard(connection), return_exceptions=True), within=60)
    await held.release()
    assert isinstance(outcome, RuntimeError)


@pytest.mark.slow("takes half a second or so")
async def test_body_that_is_told_of_a_loss_in_a_transaction_is_left_within_its_grace(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """A rollback that is not answered takes half of the grace at most, and the body's clean-up has the other half."""
    frozen = await make_pool(proxy.dsn, min_size=1, max_size=2)
    moved: list[float] = []
    error = ValueError("the body's own")

    async def job() -> None:
        async with lease(frozen, KEY, ttl=16, grace=4) as held:
            try:
                async with frozen.acquire() as connection, held.transaction(connection):
                    proxy.freeze()
                    try:
                        await asyncio.sleep(1000)
                    except asyncio.CancelledError:
                        moved.append(travel.moved)
                        # The rollback of a cancellation would have half a second, however long the grace is.
                        raise error from None
            finally:
                moved.append(travel.moved)

    try:
        with pytest.raises(ValueError, match="own"):
            await travel.through(job(), within=40)
    finally:
        proxy.thaw()
    told, left = moved
    # Without a lease that is lost, a rollback has 5 s.
    assert left - told < 3
