"""Workers: jobs in a burst share a connection, each has its bound, and one job's trouble is its own."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import pytest

from tests.conftest import MakePool
from tests.support.inside import Connections, Job
from tests.support.leasing import spin, until
from tests.support.leftovers import library_tasks
from tests.support.proxy import Proxy
from tests.support.statements import RESET
from tests.support.travel import Travel
from tests.support.typing import Pool, PooledConnection

# Not the library's own number: that may be what is wrong.
JOBS_IN_A_ROW = 10


def same(error: BaseException) -> BaseException:
    """Translate nothing."""
    return error


async def nothing(connection: PooledConnection) -> None:
    """Leave the connection as it is, for a turn."""
    assert not connection.is_closed()
    await asyncio.sleep(0)


async def ask(connections: Connections, sql: str) -> object:
    """Run one statement as a job, and return its value."""

    async def work(connection: PooledConnection) -> object:
        return await connection.fetchval(sql)

    return await connections.run("a question", work, 5)


def job_of(done: list[object], what: str, limit: float = 5, sleep: float = 0) -> Job:
    """Make a job that notes its backend, or its error."""

    async def work(connection: PooledConnection) -> None:
        await connection.execute("SELECT pg_sleep($1)", sleep)
        done.append(await connection.fetchval("SELECT pg_backend_pid()"))

    return Job(what, work, done.append, limit, stint=limit)


async def test_jobs_of_a_burst_share_a_connection_ten_in_a_row(make_pool: MakePool, proxy: Proxy) -> None:
    """Jobs that come in a burst are done on one connection with one reset; after ten others have their turn."""
    connections = Connections(await make_pool(proxy.dsn, max_size=1), same)
    done: list[object] = []
    proxy.forget()
    for number in range(JOBS_IN_A_ROW):
        connections.submit(job_of(done, str(number)))
    await until(lambda: len(done) == JOBS_IN_A_ROW)
    await until(lambda: not library_tasks())
    assert proxy.count(RESET) == 1
    assert len(set(done)) == 1
    for number in range(JOBS_IN_A_ROW + 1):
        connections.submit(job_of(done, str(number)))
    await until(lambda: len(done) == 2 * JOBS_IN_A_ROW + 1)
    await until(lambda: not library_tasks())
    assert proxy.count(RESET) == 3


async def test_jobs_leave_a_turn_to_others_who_wait_for_the_pool(make_pool: MakePool) -> None:
    """A stream of jobs does not starve the application: after ten the connection goes round."""
    pool = await make_pool(max_size=1)
    connections = Connections(pool, same)
    done: list[object] = []
    for number in range(60):
        connections.submit(job_of(done, str(number)))
    await asyncio.sleep(0)
    async with pool.acquire():
        assert len(done) <= 2 * JOBS_IN_A_ROW
    await until(lambda: len(done) == 60)


async def test_job_that_comes_right_after_another_is_done_on_its_connection(make_pool: MakePool, proxy: Proxy) -> None:
    """An answer's caller who asks again at once finds the worker still there: no reset in between."""
    connections = Connections(await make_pool(proxy.dsn, min_size=2), same)
    proxy.forget()
    for _ in range(3):
        await ask(connections, "SELECT 1")
    await until(lambda: not library_tasks())
    assert proxy.count(RESET) == 1
    assert len({statement.link for statement in proxy.statements}) == 1


async def test_job_whose_limit_is_over_while_queued_is_not_done(make_pool: MakePool, travel: Travel) -> None:
    """Without a connection in time the job fails, with how many are in use, and never runs."""
    pool = await make_pool(max_size=1)
    connections = Connections(pool, same)
    done: list[object] = []
    async with pool.acquire():
        connections.submit(job_of(done, "the question", limit=5))
        await travel.until(lambda: done, within=7)
    (error,) = done
    assert isinstance(error, TimeoutError)
    busy = "1 of the pool's 1 connections are in use, 1 wait in its acquire()"
    assert str(error) == f"no connection for the question within 5.000 s: {busy}"
    await until(lambda: not library_tasks())
    assert len(done) == 1


@pytest.mark.parametrize(("limit", "stint"), [(8, 60), (60, 8)])
async def test_job_past_its_limit_or_its_stint_has_its_connection_terminated(
    make_pool: MakePool, proxy: Proxy, travel: Travel, limit: float, stint: float
) -> None:
    """On a frozen link nothing but terminate() ends a statement: at whichever bound comes first."""
    pool = await make_pool(proxy.dsn, max_size=1)
    connections = Connections(pool, same)
    ended: list[BaseException] = []

    async def work(connection: PooledConnection) -> None:
        proxy.freeze()
        await connection.fetchval("SELECT 1")

    connections.submit(Job("the question", work, ended.append, limit, stint=stint))
    assert 7 < await travel.until(lambda: ended, within=20) < 10
    assert isinstance(ended[0], TimeoutError)
    assert "no answer to the question within 8.000 s" in str(ended[0])
    proxy.thaw()
    await until(lambda: not library_tasks())
    assert await pool.fetchval("SELECT 1") == 1


async def test_job_with_somebody_to_tell_of_its_limit_goes_on_to_its_stint(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """Where the limit is told the work goes on, for as long as one stint may take, and not for ever."""
    connections = Connections(await make_pool(proxy.dsn, max_size=1), same)
    limits: list[float] = []
    ended: list[BaseException] = []
    started = time.monotonic()

    async def work(connection: PooledConnection) -> None:
        proxy.freeze()
        await connection.fetchval("SELECT 1")

    job = Job(
        "the question",
        work,
        ended.append,
        8,
        stint=16,
        on_limit=lambda: limits.append(time.monotonic() - started),
    )
    connections.submit(job)
    await travel.until(lambda: limits, within=12)
    assert 7 < limits[0] < 12
    assert not ended
    await travel.until(lambda: ended, within=12)
    assert 15 < time.monotonic() - started < 20
    assert len(limits) == 1
    assert isinstance(ended[0], TimeoutError)
    proxy.thaw()
    await until(lambda: not library_tasks())


async def test_job_that_is_withdrawn_is_not_done_and_its_worker_not_kept(make_pool: MakePool) -> None:
    """A job that nobody wants any more gives its place in the pool's queue up."""
    pool = await make_pool(max_size=1)
    connections = Connections(pool, same)
    done: list[object] = []
    async with pool.acquire():
        jobs = [job_of(done, str(number)) for number in range(3)]
        for job in jobs:
            connections.submit(job)
        await spin(5)
        assert "jobs waiting" in repr(connections)
        for job in jobs:
            assert connections.withdraw(job)
            assert not connections.withdraw(job)
        await until(lambda: not library_tasks())
    assert not done


async def test_urgent_job_goes_before_those_that_wait(make_pool: MakePool) -> None:
    """What is urgent is done first."""
    pool = await make_pool(max_size=1)
    connections = Connections(pool, same)
    order: list[str] = []

    def noting(what: str) -> Job:
        async def work(connection: PooledConnection) -> None:
            order.append(what)
            await nothing(connection)

        return Job(what, work, lambda error: order.append(repr(error)), 5, stint=5)

    async with pool.acquire():
        connections.submit(noting("first"))
        connections.submit(noting("second"))
        connections.submit(noting("urgent"), urgent=True)
    await until(lambda: len(order) == 3)
    assert order == ["urgent", "first", "second"]


async def test_connection_that_cannot_be_made_fails_one_job_and_not_all(make_pool: MakePool, proxy: Proxy) -> None:
    """Each failed attempt to connect is one job's error; the next job has an attempt of its own."""
    pool = await make_pool(proxy.dsn, min_size=0, max_size=1)
    connections = Connections(pool, same)
    proxy.refuse()
    with pytest.raises(OSError, match="onnect"):
        await ask(connections, "SELECT 1")
    await proxy.accept()
    refusals = [ConnectionError("the first attempt")]

    async def prepare(_: PooledConnection) -> None:
        if refusals:
            raise refusals.pop()

    connections = Connections(await make_pool(proxy.dsn, min_size=0, max_size=1, setup=prepare), same)
    answers = await asyncio.gather(*(ask(connections, f"SELECT {one}") for one in (1, 2, 3)), return_exceptions=True)
    assert [str(answer) for answer in answers] == ["the first attempt", "2", "3"]


async def test_job_whose_connection_breaks_leaves_the_next_one_another(make_pool: MakePool, proxy: Proxy) -> None:
    """A worker whose connection is gone does no further job on it."""
    pool = await make_pool(proxy.dsn, max_size=1)
    connections = Connections(pool, same)
    drop = proxy.drop_reply("SELECT 41")
    first = asyncio.create_task(ask(connections, "SELECT 41"))
    second = asyncio.create_task(ask(connections, "SELECT 42"))
    with pytest.raises((OSError, asyncpg.PostgresConnectionError, asyncpg.InternalClientError)):
        await first
    assert drop.happened.is_set()
    assert await second == 42


@pytest.mark.slow("takes half a second or so")
async def test_question_whose_caller_is_cancelled_is_taken_back(make_pool: MakePool, proxy: Proxy) -> None:
    """A question that was not sent yet is not sent; one that was goes on by itself."""
    pool = await make_pool(proxy.dsn, max_size=1)
    connections = Connections(pool, same)
    async with pool.acquire():
        task = asyncio.create_task(ask(connections, "SELECT 41"))
        await spin(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not library_tasks())
    assert proxy.count("SELECT 41") == 0
    task = asyncio.create_task(ask(connections, "SELECT pg_sleep(0.1)"))
    await proxy.wait_for("pg_sleep")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not library_tasks())
    assert proxy.count("pg_sleep") == 1


async def test_connection_that_cannot_be_reset_is_closed(make_pool: MakePool, proxy: Proxy) -> None:
    """What a job answered stands, whatever becomes of its connection afterwards."""
    pool: Pool = await make_pool(proxy.dsn, max_size=1)
    connections = Connections(pool, same)
    proxy.drop_reply(RESET)
    assert await ask(connections, "SELECT 1")
    await until(lambda: not library_tasks())
    assert await pool.fetchval("SELECT 1") == 1


async def test_pool_that_is_not_initialized_is_refused(dsn: str) -> None:
    """create_pool() without await is a pool that cannot be used yet, and the error says so."""
    pool = asyncpg.create_pool(dsn)
    connections = Connections(pool, same)
    with pytest.raises(RuntimeError, match="not initialized"):
        connections.check_loop()
