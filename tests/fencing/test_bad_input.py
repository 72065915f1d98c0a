"""What cannot be guarded, and says so before anything is written."""

from __future__ import annotations

import asyncio
import math
import os
import re
import threading
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import timedelta

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseLostError, acquire
from tests.conftest import MakePool
from tests.fencing.writing import KEY
from tests.support.loops import run
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.typing import Connection, Pool, PooledConnection

BOTH = pytest.mark.parametrize("by", ["transaction", "guard"])


async def use(held: Lease, connection: object, by: str, **options: object) -> None:
    """Call one of the two, as someone without a type checker would."""
    if by == "guard":
        await held.guard(connection)  # type: ignore[arg-type]
    else:
        async with held.transaction(connection, **options):  # type: ignore[arg-type]
            pytest.fail("the body must not begin")


async def refusal(work: Awaitable[None]) -> str:
    """Return the type and the text of the error with which something is refused."""
    try:
        await work
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def around(connection: Connection | PooledConnection, by: str) -> AbstractAsyncContextManager[object]:
    """Open the transaction that a guard needs, and a transaction must not have."""
    return connection.transaction() if by == "guard" else nullcontext()


@BOTH
async def test_what_is_no_connection_is_refused(pool: Pool, connection: Connection, by: str) -> None:
    """The error names the type, and what is wanted."""
    held = await acquire(pool, KEY)
    things = (pool, None, connection.cursor("SELECT 1"), pool.acquire(), "postgresql://localhost")
    said = {type(thing).__name__: await refusal(use(held, thing, by)) for thing in things}
    assert [
        name for name in said if not re.match(f"TypeError: .*must be a connection.*not {name}", said[name])
    ] == [], said
    await held.release()


@BOTH
async def test_connection_that_is_closed_is_refused(pool: Pool, connection: Connection, by: str) -> None:
    """A closed connection has no transaction to guard."""
    held = await acquire(pool, KEY)
    await connection.close()
    with pytest.raises(RuntimeError, match="is closed"):
        await use(held, connection, by)
    await held.release()


@BOTH
async def test_connection_that_went_back_to_its_pool_is_refused(pool: Pool, by: str) -> None:
    """It may be somebody else's by now."""
    held = await acquire(pool, KEY)
    async with pool.acquire() as pooled:
        pass
    with pytest.raises(RuntimeError, match="released back to the pool"):
        await use(held, pooled, by)
    await held.release()


@BOTH
async def test_connection_of_another_loop_is_refused(pool: Pool, dsn: str, by: str) -> None:
    """Awaiting it here would hang, or break it for its own loop."""
    held = await acquire(pool, KEY)
    ready, done = threading.Event(), threading.Event()
    made: list[Connection] = []

    async def elsewhere() -> None:
        made.append(await asyncpg.connect(dsn))
        ready.set()
        await asyncio.to_thread(done.wait)
        await made[0].close()

    thread = threading.Thread(target=run, args=(elsewhere(),))
    thread.start()
    await asyncio.to_thread(ready.wait)
    try:
        with pytest.raises(RuntimeError, match="belongs to another event loop"):
            await use(held, made[0], by)
    finally:
        done.set()
        await asyncio.to_thread(thread.join)
    await held.release()


@pytest.mark.parametrize("how", ["the driver's", "by hand", "failed"])
async def test_transaction_that_is_open_already_is_refused(pool: Pool, connection: Connection, how: str) -> None:
    """A savepoint's end is not the transaction's: the guard would be the outer one's to undo."""
    held = await acquire(pool, KEY)
    transaction = connection.transaction()
    if how == "the driver's":
        await transaction.start()
    else:
        await connection.execute("BEGIN")
    if how == "failed":
        with pytest.raises(asyncpg.DivisionByZeroError):
            await connection.execute("SELECT 1 / 0")
    with pytest.raises(RuntimeError, match=r"a transaction is open on .* held\.guard"):
        await use(held, connection, "transaction")
    await connection.execute("ROLLBACK")
    await held.release()


async def test_guard_without_a_transaction_is_refused(pool: Pool, connection: Connection) -> None:
    """It would end with its own statement."""
    held = await acquire(pool, KEY)
    with pytest.raises(RuntimeError, match=r"no transaction is open on .* held\.transaction"):
        await use(held, connection, "guard")
    await held.release()


@pytest.mark.parametrize("own", [True, False], ids=["its own pool", "no pool"])
async def test_guard_in_a_failed_transaction_is_refused(pool: Pool, connection: Connection, own: bool) -> None:
    """The transaction can only be rolled back, which says nothing of the lease."""
    held = await acquire(pool, KEY)
    async with pool.acquire() as pooled:
        used = pooled if own else connection
        await used.execute("BEGIN")
        with pytest.raises(asyncpg.DivisionByZeroError):
            await used.execute("SELECT 1 / 0")
        with pytest.raises(RuntimeError, match="has failed already"):
            await use(held, used, "guard")
        await used.execute("ROLLBACK")
    assert held.lost is None
    await held.release()


@BOTH
async def test_transaction_that_is_read_only_is_refused(pool: Pool, connection: Connection, by: str) -> None:
    """It takes no lock, and has nothing to fence."""
    held = await acquire(pool, KEY)
    with pytest.raises(RuntimeError, match="is read-only"):
        if by == "guard":
            async with connection.transaction(readonly=True):
                await use(held, connection, by)
        else:
            await connection.execute("SET default_transaction_read_only = on")
            await use(held, connection, by)
    assert not connection.is_in_transaction()
    assert held.lost is None
    await held.release()


@BOTH
@pytest.mark.parametrize("how", ["released", "left"])
async def test_lease_that_is_over_here_is_refused(pool: Pool, connection: Connection, how: str, by: str) -> None:
    """A lease that was released or left guards nothing more."""
    held = await acquire(pool, KEY)
    if how == "left":
        async with held:
            pass
    await held.release()
    async with around(connection, by):
        with pytest.raises(RuntimeError, match="left or released"):
            await use(held, connection, by)


@BOTH
async def test_lease_that_is_known_to_be_lost_is_refused_without_a_statement(
    make_pool: MakePool, proxy: Proxy, observe: Observer, by: str
) -> None:
    """The loss comes out again, and nobody is asked."""
    own = await make_pool(proxy.dsn)
    held = await acquire(own, KEY)
    await observe.hand_over(KEY)
    with pytest.raises(LeaseLostError):
        await held.renew()
    async with own.acquire() as pooled:
        proxy.forget()
        with pytest.raises(LeaseLostError):
            await use(held, pooled, by)
        assert proxy.statements == []


@BOTH
async def test_lease_in_a_forked_child_is_refused(
    pool: Pool, connection: Connection, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A child's copy must send nothing on its parent's connection."""
    held = await acquire(pool, KEY)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(RuntimeError, match="a forked child must acquire its own"):
            await use(held, connection, by)
    await held.release()


@BOTH
async def test_lease_of_another_loop_is_refused(pool: Pool, dsn: str, by: str) -> None:
    """The lease's own statements and timers are in the loop of its pool."""
    held = await acquire(pool, KEY)

    async def elsewhere() -> None:
        connection = await asyncpg.connect(dsn)
        with pytest.raises(RuntimeError, match="belongs to another event loop"):
            await use(held, connection, by)
        await connection.close()

    await asyncio.to_thread(run, elsewhere())
    await held.release()


async def test_isolation_that_there_is_not_is_refused(pool: Pool, connection: Connection) -> None:
    """The error names those that there are."""
    held = await acquire(pool, KEY)
    wrong = ("snapshot", "read uncommitted", "READ_COMMITTED", "", 1, ["serializable"])
    said = {str(value): await refusal(use(held, connection, "transaction", isolation=value)) for value in wrong}
    expected = "ValueError: isolation must be None or one of 'read_committed', "
    assert [value for value in said if not said[value].startswith(expected)] == [], said
    assert not connection.is_in_transaction()
    await held.release()


VALUES: list[tuple[object, type[Exception]]] = [
    (0, ValueError),
    (0.0009, ValueError),
    (-1, ValueError),
    (math.nan, ValueError),
    (math.inf, ValueError),
    (2_147_484, ValueError),
    (timedelta(days=25), ValueError),
    (timedelta(seconds=-1), ValueError),
    (True, TypeError),
    ("30s", TypeError),
    ([], TypeError),
]


async def test_idle_timeout_that_the_server_cannot_have_is_refused(pool: Pool, connection: Connection) -> None:
    """The error names the argument and its bounds, before anything is sent."""
    held = await acquire(pool, KEY)
    said = [await refusal(use(held, connection, "transaction", idle_timeout=value)) for value, _ in VALUES]
    expected = [f"{error.__name__}: idle_timeout must be" for _, error in VALUES]
    assert [text[: len(start)] for text, start in zip(said, expected, strict=True)] == expected
    assert not connection.is_in_transaction()
    await held.release()
