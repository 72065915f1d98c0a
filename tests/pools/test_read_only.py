"""Sessions that may not write: a setting, or a standby that is about to be promoted."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, Renewed, RenewFailed, WaitingFailed
from tests.conftest import MakePool
from tests.pools.kinds import settings
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer
from tests.support.travel import Travel
from tests.support.typing import Pool, PooledConnection


class Switch:
    """Makes every loan of a pool read-only, or not, as a failover and its end do."""

    def __init__(self) -> None:
        self.read_only = False

    async def set(self, connection: PooledConnection) -> None:
        """Be a pool's `setup`."""
        await connection.execute(f"SET default_transaction_read_only = {self.read_only}")


@pytest.fixture
def switch() -> Switch:
    """A switch that is off."""
    return Switch()


@pytest.fixture
async def switched(make_pool: MakePool, switch: Switch) -> Pool:
    """A pool that the switch makes read-only."""
    return await make_pool(setup=switch.set)


async def test_read_only_session_can_look_and_is_told_why_it_cannot_claim(
    table: LeaseTable, make_pool: MakePool, observe: Observer
) -> None:
    """Reading works, create() of what is there too; a claim ends with the server's own error and nothing claimed."""
    held = await acquire(table, "other")
    options = settings(
        default_transaction_read_only="on",
        default_transaction_isolation="serializable",
        default_transaction_deferrable="on",
    )
    pool = await make_pool(**options)
    mine = LeaseTable(pool)
    await mine.create()
    await mine.verify()
    assert [one.key for one in await mine.leases()] == ["other"]
    for key in ("k", "other"):
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError, match="read-only transaction"):
            await acquire(mine, key)
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError, match="CREATE TABLE"):
        await LeaseTable(pool, "another").create()
    assert [row["key"] for row in await observe.rows()] == ["other"]
    await held.release()


@pytest.mark.usefixtures("table")
async def test_waiter_on_a_read_only_server_has_the_key_when_it_can_write_again(switched: Pool, switch: Switch) -> None:
    """While waiting, a server that cannot write is a failover under way: told, and waited out."""
    switch.read_only = True
    told = Recorder()
    waiter = asyncio.create_task(acquire(LeaseTable(switched, poll=0.05), "k", wait=30, observer=told))
    await until(lambda: len(told.of(WaitingFailed)) > 1)
    switch.read_only = False
    held = await waiter
    assert "ReadOnlySQLTransactionError" in told.of(WaitingFailed)[0].error
    await held.release()


@pytest.mark.usefixtures("table")
async def test_renewals_on_a_read_only_server_are_tried_again_until_it_can_write(
    switched: Pool, switch: Switch
) -> None:
    """A server that cannot write says nothing of who has the lease: it is kept until the deadline."""
    told = Recorder()
    async with lease(switched, "k", ttl=30, heartbeat=0.05, observer=told) as held:
        switch.read_only = True
        await until(lambda: told.of(RenewFailed))
        switch.read_only = False
        renewals = len(told.of(Renewed))
        await until(lambda: len(told.of(Renewed)) > renewals)
        assert held.is_held
    assert told.of(Lost) == []


@pytest.mark.usefixtures("table")
async def test_lease_on_a_server_that_stays_read_only_is_lost_in_time_with_the_cause(
    switched: Pool, switch: Switch, observe: Observer, travel: Travel
) -> None:
    """A holder that cannot renew is stopped before its row runs out, and told what the server said."""
    was_free: list[bool] = []

    async def job() -> None:
        async with lease(switched, "k", ttl=16, grace=5, heartbeat=5):
            switch.read_only = True
            try:
                await asyncio.sleep(1000)
            finally:
                was_free.append(await observe.is_free("k"))

    with pytest.raises(LeaseLostError) as caught:
        await travel.through(job(), within=30)
    assert was_free == [False]
    assert caught.value.reason == "unreachable"
    assert isinstance(caught.value.__cause__, asyncpg.ReadOnlySQLTransactionError)
