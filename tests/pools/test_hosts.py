"""Pools with several hosts, of which the one that takes writes is looked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import asyncpg
import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, lease
from asyncpg_lease.events import Renewed
from asyncpg_lease.testing import EmbeddedServer
from tests.conftest import MakePool
from tests.pools.life import expect_a_whole_life
from tests.support.leasing import Recorder, until
from tests.support.loops import run
from tests.support.observe import Observer
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def second_server() -> Iterator[str]:
    """The DSN of another server than that of the run, with a user of our own who may do everything."""

    async def make_user(dsn: str) -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute("CREATE ROLE second SUPERUSER LOGIN PASSWORD 'second'")
        finally:
            await connection.close()

    with EmbeddedServer() as server:
        run(make_user(server.dsn))
        address = urlsplit(server.dsn)
        yield address._replace(netloc=f"second:second@{address.hostname}:{address.port}").geturl()


@pytest.fixture
async def twin(dsn: str, second_server: str) -> str:
    """The DSN of a database on another server that has the same name, user and password."""
    address = urlsplit(dsn)
    if address.password is None:
        pytest.skip("the server's role has no password that another server could have as well")
    user, password, database = unquote(address.username or ""), unquote(address.password), address.path.lstrip("/")
    connection = await asyncpg.connect(second_server)
    try:
        if not await connection.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", user):
            await connection.execute(f'CREATE ROLE "{user}" SUPERUSER LOGIN')
        quoted = await connection.fetchval("SELECT quote_literal($1::text)", password)
        # The test before this one may have had a database of the same name.
        await connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        await connection.execute(f'CREATE DATABASE "{database}"')
        await connection.execute(f'ALTER ROLE "{user}" PASSWORD {quoted}')
    finally:
        await connection.close()
    return place(address, urlsplit(second_server))


def place(address: SplitResult, *hosts: SplitResult) -> str:
    """Return the DSN with these hosts in it."""
    account = address.netloc.rpartition("@")[0]
    listed = ",".join(f"{host.hostname}:{host.port}" for host in hosts)
    return address._replace(netloc=f"{account}@{listed}").geturl()


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("form", ["dsn", "arguments"])
async def test_host_that_refuses_connections_is_passed_over(
    make_pool: MakePool, proxy: Proxy, dsn: str, observe: Observer, form: str
) -> None:
    """With the first of two hosts down, a lease lives on the second, however the two were named."""
    down, up = urlsplit(proxy.dsn), urlsplit(dsn)
    proxy.refuse()
    options: dict[str, Any] = {"max_inactive_connection_lifetime": 0.02, "min_size": 0}
    if form == "arguments":
        pool = await make_pool(host=[down.hostname, up.hostname], port=[down.port, up.port], **options)
    else:
        pool = await make_pool(place(up, down, up), **options)
    await expect_a_whole_life(LeaseTable(pool, poll=0.05), observe)
    assert proxy.links == 0


@pytest.mark.slow("starts a second server")
async def test_host_that_takes_no_writes_is_passed_over(
    make_pool: MakePool, dsn: str, twin: str, observe: Observer
) -> None:
    """With target_session_attrs a read-only server, though it comes first, is none of the pool's."""
    other = await asyncpg.connect(twin)
    try:
        database = await other.fetchval("SELECT quote_ident(current_database())")
        await other.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
        hosts = place(urlsplit(dsn), urlsplit(twin), urlsplit(dsn))
        pool = await make_pool(hosts, target_session_attrs="read-write")
        await expect_a_whole_life(LeaseTable(pool, poll=0.05), observe)
        assert await other.fetchval("SELECT to_regclass('lease')") is None
    finally:
        await other.close()


@pytest.mark.slow("starts a second server")
async def test_host_without_the_row_is_a_loss_and_never_a_second_life(
    make_pool: MakePool, proxy: Proxy, twin: str
) -> None:
    """A pool that moves to a server which never heard of the tenure tells its holder so; nothing is made up there."""
    elsewhere = LeaseTable(await make_pool(twin))
    await elsewhere.create()
    pool = await make_pool(place(urlsplit(twin), urlsplit(proxy.dsn), urlsplit(twin)), max_size=2)
    table = LeaseTable(pool)
    await table.create()
    told = Recorder()
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, "k", ttl=20, heartbeat=0.1, observer=told):
            await until(lambda: told.of(Renewed))
            proxy.refuse()
            proxy.reset_links()
            await asyncio.sleep(15)
    assert caught.value.reason == "deleted"
    assert await elsewhere.leases() == []
