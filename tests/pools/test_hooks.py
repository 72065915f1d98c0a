"""Hooks of a pool that fail: what they have to do with a lease, and what not."""

from __future__ import annotations

import inspect

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, Renewed, RenewFailed
from tests.conftest import MakePool
from tests.pools.life import walk_through_a_life
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer
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
    async with lease(pool, "k", ttl=10, heartbeat=0.1, observer=told) as held:
        await until(lambda: told.of(Renewed))
        setup.fails = True
        await until(lambda: len(told.of(RenewFailed)) > 1)
        setup.fails = False
        renewals = len(told.of(Renewed))
        await until(lambda: len(told.of(Renewed)) > renewals)
        assert held.is_held
    assert told.of(Lost) == []
    assert "own trouble" in told.of(RenewFailed)[0].error


@pytest.mark.skipif(
    "reset" not in inspect.signature(asyncpg.create_pool).parameters, reason="asyncpg has a hook for resets since 0.30"
)
async def test_reset_that_fails_takes_no_answer_back(make_pool: MakePool, observe: Observer) -> None:
    """Where every connection is thrown away after its use, what the server answered on it stands."""
    reset = Hook()
    reset.fails = True
    await walk_through_a_life(LeaseTable(await make_pool(reset=reset), poll=0.05), observe)
    assert reset.failed > 10
