"""The proxy does what it says, with plain asyncpg and a real server."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tests.conftest import MakePool
from tests.support.leasing import until
from tests.support.link import Link
from tests.support.loops import EARLY
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel

pytestmark = pytest.mark.usefixtures("dsn")
SLOW = 0.1


async def test_proxy_without_faults_is_transparent(make_pool: MakePool, proxy: Proxy) -> None:
    """Statements, large replies and errors pass through unchanged."""
    pool = await make_pool(proxy.dsn)
    assert await pool.fetchval("SELECT length(repeat('x', $1))", 1000) == 1000
    assert len(await pool.fetchval("SELECT repeat('x', 1000000)")) == 1_000_000
    with pytest.raises(asyncpg.DivisionByZeroError):
        await pool.fetchval("SELECT 1/0")


async def test_proxy_warm_statement_costs_one_delay(proxy: Proxy, travel: Travel) -> None:
    """A statement that the server knows already is one round trip: one reply's latency."""
    connection = await asyncpg.connect(proxy.dsn)
    await connection.fetchval("SELECT 1")
    proxy.delay_replies = 10
    proxy.forget()
    before = travel.moved
    await travel.through(connection.fetchval("SELECT 1"), within=60)
    assert 5 < travel.moved - before <= 10
    assert proxy.round_trips == 1
    proxy.delay_replies = 0
    await connection.close()


async def test_proxy_cold_statement_counts_two_round_trips(proxy: Proxy) -> None:
    """A statement that is new to the connection is prepared first, which the counter shows."""
    connection = await asyncpg.connect(proxy.dsn)
    proxy.forget()
    await connection.fetchval("SELECT 2")
    assert proxy.round_trips == 2
    await connection.close()


async def test_proxy_delay_is_latency_not_throughput(proxy: Proxy, travel: Travel) -> None:
    """Replies of many packets arrive together after one delay, and so do those of several links."""
    connections = [await asyncpg.connect(proxy.dsn) for _ in range(3)]
    for connection in connections:
        await connection.fetchval("SELECT repeat('x', 1000000)")
    proxy.forget()
    proxy.delay_replies = 20
    replies = asyncio.gather(*(each.fetchval("SELECT repeat('x', 1000000)") for each in connections))
    await until(lambda: proxy.bytes_from_server > 3_000_000, within=20)
    assert not replies.done()
    # The proxy reads at most 64 KiB at once: one after the other, the replies of one link would take 16 delays.
    await travel(1.5 * proxy.delay_replies)
    async with asyncio.timeout(proxy.delay_replies):
        assert [len(reply) for reply in await replies] == [1_000_000] * 3
    for connection in connections:
        connection.terminate()


async def test_proxy_delay_of_requests_holds_the_statement_back(proxy: Proxy, observe: Observer) -> None:
    """With delay_requests the server gets the statement later."""
    connection = await asyncpg.connect(proxy.dsn)
    await connection.execute("CREATE TABLE t (at timestamptz)")
    proxy.delay_requests = SLOW
    started = await observe.connection.fetchval("SELECT clock_timestamp()")
    await connection.execute("INSERT INTO t VALUES (clock_timestamp())")
    written = await observe.connection.fetchval("SELECT at FROM t")
    assert (written - started).total_seconds() > SLOW - EARLY
    connection.terminate()


async def test_proxy_drops_the_nth_reply_after_the_server_has_committed(proxy: Proxy, observe: Observer) -> None:
    """The second INSERT is in the table, its client has lost the link, and other statements did not count."""
    await observe.connection.execute("CREATE TABLE t (n int)")
    connection = await asyncpg.connect(proxy.dsn)
    dropped = proxy.drop_reply("INSERT INTO t", nth=2)
    for number in (1, 2):
        insert = connection.execute("INSERT INTO t VALUES ($1)", number)
        if number == 1:
            await insert
            assert await connection.fetchval("SELECT count(*) FROM t") == 1
        else:
            with pytest.raises((ConnectionError, asyncpg.PostgresConnectionError)):
                await insert
    await asyncio.wait_for(dropped.happened.wait(), 5)
    assert await observe.connection.fetchval("SELECT array_agg(n ORDER BY n) FROM t") == [1, 2]
    assert connection.is_closed()


async def test_proxy_drop_finds_a_prepared_statement_by_its_sql(proxy: Proxy) -> None:
    """A statement that went out as a name only, on its third run, is still found by its SQL."""
    connection = await asyncpg.connect(proxy.dsn)
    for _ in range(2):
        await connection.fetchval("SELECT 42 -- mine")
    proxy.drop_reply("-- mine")
    with pytest.raises((ConnectionError, asyncpg.PostgresConnectionError)):
        await connection.fetchval("SELECT 42 -- mine")
    assert proxy.count("-- mine") == 3


async def test_proxy_reset_links_breaks_open_links_and_accepts_new_ones(proxy: Proxy) -> None:
    """After a reset the old connection fails and a new one works."""
    connection = await asyncpg.connect(proxy.dsn)
    proxy.reset_links()
    with pytest.raises((ConnectionError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError)):
        await connection.fetchval("SELECT 1")
    again = await asyncpg.connect(proxy.dsn)
    assert await again.fetchval("SELECT 1") == 1
    await again.close()


async def test_proxy_refuse_turns_away_new_links_only(proxy: Proxy) -> None:
    """While it refuses, open links work; after accept() the same DSN works again."""
    connection = await asyncpg.connect(proxy.dsn)
    proxy.refuse()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncpg.connect(proxy.dsn)
    assert await connection.fetchval("SELECT 1") == 1
    await proxy.accept()
    await (await asyncpg.connect(proxy.dsn)).close()
    await connection.close()


async def test_proxy_freeze_keeps_everything_back_until_thaw(proxy: Proxy, travel: Travel) -> None:
    """A frozen link gives neither answer nor error, nor does a new one; the thaw delivers the answer."""
    connection = await asyncpg.connect(proxy.dsn)
    proxy.freeze()
    waiting = asyncio.create_task(connection.fetchval("SELECT 1"))
    newcomer = asyncio.create_task(asyncpg.connect(proxy.dsn))
    await travel(10)
    assert not waiting.done()
    assert not newcomer.done()
    proxy.thaw()
    assert await asyncio.wait_for(waiting, 5) == 1
    await (await asyncio.wait_for(newcomer, 5)).close()
    await connection.close()


async def test_proxy_silence_is_of_open_links_alone(proxy: Proxy) -> None:
    """A link that was open gives neither answer nor error any more; a new one works."""
    silent = await asyncpg.connect(proxy.dsn)
    proxy.silence_links()
    waiting = asyncio.create_task(silent.fetchval("SELECT 1"))
    other = await asyncpg.connect(proxy.dsn)
    assert await other.fetchval("SELECT 2") == 2
    assert not waiting.done()
    silent.terminate()
    with pytest.raises(asyncpg.ConnectionDoesNotExistError):
        await waiting
    await other.close()


async def test_proxy_wait_for_returns_when_the_statement_has_passed(proxy: Proxy) -> None:
    """A test can wait for the moment at which a statement is on its way."""
    connection = await asyncpg.connect(proxy.dsn)
    asleep = asyncio.create_task(connection.fetchval("SELECT pg_sleep(60)"))
    await proxy.wait_for("pg_sleep")
    assert not asleep.done()
    asleep.cancel()
    with pytest.raises(TimeoutError):
        await proxy.wait_for("never", within=0.05)
    connection.terminate()


async def test_proxy_carries_cancel_requests(proxy: Proxy) -> None:
    """A statement's timeout reaches the server as a cancel request over a link of its own."""
    connection = await asyncpg.connect(proxy.dsn)
    with pytest.raises(TimeoutError):
        await connection.fetchval("SELECT pg_sleep(10)", timeout=0.1)
    assert await connection.fetchval("SELECT 1") == 1
    assert proxy.links == 2
    await connection.close()


async def test_proxy_that_failed_by_a_time_limit_raises_an_exception(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pytest's time limit raises inside the proxy comes out as an Exception, which ends this test alone."""

    async def run_out_of_time(_link: Link, _message: object) -> None:
        pytest.fail("Timeout")

    with pytest.raises(RuntimeError, match="the proxy itself failed"):
        async with Proxy(dsn) as proxy:
            connection = await asyncpg.connect(proxy.dsn)
            monkeypatch.setattr(Link, "_follow", run_out_of_time)
            with pytest.raises(asyncpg.PostgresConnectionError):
                await connection.execute("SELECT 1")
