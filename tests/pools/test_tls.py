"""Pools that speak TLS and check whom they speak to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest
import trustme

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, Renewed
from asyncpg_lease.testing import EmbeddedServer
from tests.conftest import MakePool
from tests.pools.life import expect_a_whole_life
from tests.pools.tls import HOST, TlsFront
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Whoever vouches for the server."""
    return trustme.CA()


@pytest.fixture(scope="module")
def certified(authority: trustme.CA) -> ssl.SSLContext:
    """The server's side of TLS, certified for its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(HOST).configure_cert(context)
    return context


@pytest.fixture
async def front(dsn: str, certified: ssl.SSLContext, make_pool: MakePool) -> AsyncIterator[TlsFront]:  # noqa: ARG001
    """TLS in front of the test's database; the pools go before it does."""
    async with TlsFront(dsn, certified) as front:
        yield front


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """Return a context that checks the certificate and the name, as verify-full does."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_life_of_a_lease_is_the_same_under_tls(
    front: TlsFront, make_pool: MakePool, observe: Observer, authority: trustme.CA
) -> None:
    """With the certificate and the name checked, a lease lives as on any other pool."""
    pool = await make_pool(front.dsn, ssl=trusting(authority))
    await expect_a_whole_life(LeaseTable(pool, poll=0.05), observe)
    assert front.opened >= 1


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("wait", [0, 30])
async def test_certificate_of_another_authority_is_the_driver_s_own_error(
    front: TlsFront, make_pool: MakePool, observe: Observer, wait: float
) -> None:
    """A server for which nobody trusted vouches is told as what it is, at once, also where the key is waited for."""
    pool = await make_pool(front.dsn, min_size=0, ssl=trusting(trustme.CA()))
    async with asyncio.timeout(10):
        with pytest.raises(ssl.SSLCertVerificationError):
            await acquire(pool, "k", wait=wait)
    assert await observe.rows() == []


@pytest.mark.slow("starts and restarts a server of its own")
async def test_restart_under_tls_is_waited_out(
    own_server: EmbeddedServer, make_pool: MakePool, certified: ssl.SSLContext, authority: trustme.CA
) -> None:
    """Renewals and waiters outlast a restart: the lease is kept, and the waiter comes in after it."""
    async with TlsFront(own_server.dsn, certified) as front:
        pools = [await make_pool(front.dsn, ssl=trusting(authority)) for _ in range(2)]
        tables = [LeaseTable(pool, poll=0.05) for pool in pools]
        await tables[0].create()
        holder = Recorder()
        async with lease(tables[0], "k", ttl=30, heartbeat=0.1, observer=holder):
            waiting = asyncio.create_task(acquire(tables[1], "k", wait=60))
            await until(lambda: holder.of(Renewed))
            opened = front.opened
            await asyncio.to_thread(own_server.restart_immediately)
            renewals = len(holder.of(Renewed))
            await until(lambda: len(holder.of(Renewed)) > renewals, within=20)
            assert not waiting.done()
        held = await waiting
        await held.release()
        for pool in pools:
            await pool.close()
    assert held.fence == 2
    assert holder.of(Lost) == []
    assert front.opened > opened
