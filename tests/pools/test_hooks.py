"""Hooks of a pool that fail: what they have to do with a lease, and what not."""

from __future__ import annotations

import asyncio
import inspect
import logging

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, Renewed, RenewFailed
from tests.conftest import MakePool
from tests.pools.life import expect_a_whole_life
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer
from tests.support.travel import Travel
from tests.support.typing import Connection, PooledConnection


class Hook:
    """A hook that fails while it is told to."""

    def __init__(self) -> None:
        self.fails = False
        self.failed = 0

    async def __call__(self, _connection: PooledConnection | Connection) -> None:
        """Be any of a pool's hooks."""
        if self.fails:
            self.failed += 1
            msg = "the application's own trouble"
            raise RuntimeError(msg)


@pytest.mark.usefixtures("table")
async def test_setup_that_fails_for_a_while_costs_no_lease(make_pool: MakePool, observe: Observer) -> None:
    """A claim ends with the hook's own error and nothing claimed; renewals are tried again until it works."""
    setup = Hook()
    pool = await make_pool(setup=setup, max_size=1)
    setup.fails = True
    with pytest.raises(RuntimeError, match="own trouble"):
        await acquire(pool, "k", wait=30)
    assert await observe.rows() == []
    setup.fails = False
    told = Recorder()
    async with lease(pool, "k", ttl=30, heartbeat=0.05, observer=told) as held:
        await until(lambda: told.of(Renewed))
        setup.fails = True
        await until(lambda: len(told.of(RenewFailed)) > 1)
        setup.fails = False
        renewals = len(told.of(Renewed))
        await until(lambda: len(told.of(Renewed)) > renewals)
        assert held.is_held
    assert told.of(Lost) == []
    assert "own trouble" in told.of(RenewFailed)[0].error


@pytest.mark.slow("takes half a second or so")
@pytest.mark.skipif(
    "reset" not in inspect.signature(asyncpg.create_pool).parameters, reason="asyncpg has a hook for resets since 0.30"
)
async def test_reset_that_fails_takes_no_answer_back(make_pool: MakePool, observe: Observer) -> None:
    """Where every connection is thrown away after its use, what the server answered on it stands."""
    reset = Hook()
    reset.fails = True
    await expect_a_whole_life(LeaseTable(await make_pool(reset=reset), poll=0.05), observe)
    assert reset.failed > 10


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
async def test_setup_that_never_comes_back_on_one_connection_costs_no_lease(
    make_pool: MakePool, travel: Travel
) -> None:
    """A worker that is stuck in the hook of a dead link is not counted on while the pool has others."""
    hanging, released = asyncio.Event(), asyncio.Event()

    async def setup(_connection: PooledConnection) -> None:
        if hanging.is_set():
            hanging.clear()
            await released.wait()

    pool = await make_pool(setup=setup, min_size=3, max_size=3)
    told = Recorder()
    async with lease(pool, "k", ttl=9, heartbeat=2, observer=told) as held:
        hanging.set()
        await travel.until(lambda: not hanging.is_set(), within=5)
        await travel(12)
        assert held.is_held
    assert len(told.of(Renewed)) > 3
    assert told.of(Lost) == []
    released.set()


@pytest.mark.usefixtures("table")
async def test_connection_that_is_lost_before_it_is_given_out_keeps_no_place_in_the_pool(
    make_pool: MakePool, observe: Observer
) -> None:
    """A server that ends a session as soon as it is there, as in a failover, does not cost a pool its only place."""
    lost: list[bool] = []

    async def lose(connection: PooledConnection | Connection) -> None:
        if not lost:
            await observe.connection.execute("SELECT pg_terminate_backend($1)", connection.get_server_pid())
            await until(connection.is_closed)
            lost.append(connection.is_closed())

    pool = await make_pool(init=lose, min_size=0, max_size=1)
    async with lease(LeaseTable(pool, poll=0.05), "k", ttl=30, wait=30) as held:
        assert held.is_held
    assert lost == [True]
    await until(lambda: pool.get_idle_size() == 1)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("hook", ["setup", "init"])
async def test_pool_that_gives_out_open_transactions_is_refused(
    make_pool: MakePool, observe: Observer, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    """A claim in a transaction that is rolled back later would be held by nobody but its holder."""
    # asyncpg has something to say about such a pool as well.
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)

    async def begin(connection: PooledConnection | Connection) -> None:
        await connection.execute("BEGIN")

    pool = await make_pool(**{hook: begin}, min_size=1, max_size=1)
    refusal = ""
    try:
        held = await acquire(LeaseTable(pool, schema="public"), "k", wait=30)
        await held.release()
    except RuntimeError as error:
        refusal = str(error)
    assert "open transaction" in refusal
    assert await observe.rows() == []
