"""A server clock that steps back by an hour, and a failover to a server whose clock is behind."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from asyncpg_lease import LeaseTable, LeaseUnavailableError, Pruned, acquire, lease
from asyncpg_lease.events import Lost, Renewed, RenewFailed
from tests.conftest import MakePool
from tests.failover.conftest import with_table
from tests.support.cluster import Pair, connecting
from tests.support.leasing import Recorder, until
from tests.support.typing import Pool

pytestmark = pytest.mark.slow("servers are started whose clocks can be turned")

KEY = "k"
HOUR = 3600.0
PAGE = Path(__file__).parents[2] / "docs/explanation/failover.md"


@pytest.fixture
async def pool(clocked: Pair, make_pool: MakePool) -> Pool:
    """A pool with a lease table on a server whose clock can be turned."""
    return await with_table(clocked, make_pool)


async def step_back(pair: Pair, how: str) -> None:
    """Turn the primary's clock back by an hour, or fail over to a server whose clock is an hour behind."""
    if how == "step":
        pair.cluster.primary.turn_clock(-HOUR)
        return
    assert pair.cluster.standby is not None
    pair.cluster.standby.turn_clock(-HOUR)
    await pair.cluster.catch_up()
    await pair.cluster.fail_over()


HOWS = pytest.mark.parametrize("how", ["step", "failover"])


@HOWS
async def test_step_back_by_an_hour_fails_no_renewal_and_shuts_no_key_that_is_released_after_it(
    clocked_pair: Pair, make_pool: MakePool, how: str
) -> None:
    """The holder goes on with the same fence, its row is back at the server's time, and its key is free at the end."""
    pool, told = await with_table(clocked_pair, make_pool), Recorder()
    async with lease(pool, KEY, ttl=20, heartbeat=0.3, observer=told) as held:
        await step_back(clocked_pair, how)
        renewals = len(told.of(Renewed))
        await until(lambda: len(told.of(Renewed)) >= renewals + 3, within=20)
        info = await LeaseTable(pool).get(KEY)
        assert info is not None
        assert (info.fence, info.state) == (held.fence, "held")
        assert info.expires_in <= 20
    assert told.of(Lost) == []
    assert how == "failover" or told.of(RenewFailed) == []
    new = await acquire(pool, KEY)
    assert new.fence == 2
    await new.release()


@HOWS
async def test_step_back_by_an_hour_shuts_no_key_that_was_released_before_it(
    clocked_pair: Pair, make_pool: MakePool, how: str
) -> None:
    """Neither one that was free nor one that rested under a short min_hold waits for the time that was."""
    pool = await with_table(clocked_pair, make_pool)
    await (await acquire(pool, KEY)).release()
    await (await acquire(pool, "rested", min_hold=30)).release()
    await step_back(clocked_pair, how)
    table = LeaseTable(pool, poll=0.05)
    for key in (KEY, "rested"):
        held = await acquire(table, key, wait=10)
        assert held.fence == 2
        await held.release()


@pytest.mark.parametrize("there_before", [False, True])
async def test_step_back_by_an_hour_does_not_keep_a_waiting_call_from_a_key_that_is_released(
    clocked: Pair, pool: Pool, there_before: bool
) -> None:
    """It looks again once a poll, whatever time the incumbent seems to have left."""
    table = LeaseTable(pool, poll=0.1)
    held = await acquire(pool, KEY, ttl=60)
    waiting = asyncio.create_task(acquire(table, KEY, wait=10)) if there_before else None
    await asyncio.sleep(0.2)
    clocked.cluster.primary.turn_clock(-HOUR)
    waiting = waiting or asyncio.create_task(acquire(table, KEY, wait=10))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await held.release()
    new = await waiting
    assert new.fence == 2
    await new.release()


async def test_step_back_by_an_hour_makes_no_claim_renewal_or_release_of_a_young_tenure_fail(
    clocked: Pair, pool: Pool
) -> None:
    """Each statement right after the step, on rows of every age, keeps lease_validity."""
    table = LeaseTable(pool)
    renewed, released = await acquire(pool, "renewed", ttl=5), await acquire(pool, "released", ttl=5)
    clocked.cluster.primary.turn_clock(-HOUR)
    await renewed.renew()
    await renewed.confirm()
    await released.release()
    claimed = await acquire(pool, "claimed")
    states = {info.key: info.state for info in await table.leases()}
    assert states == {"renewed": "held", "released": "free", "claimed": "held"}
    for held in (renewed, claimed):
        await held.release()
    assert {info.state for info in await table.leases()} == {"free"}


async def test_key_of_a_dead_holder_is_shut_for_as_long_as_the_clock_stepped_back_and_forced_open(
    clocked: Pair, pool: Pool
) -> None:
    """Nothing tells its row from that of a holder that is about to renew; an operator can."""
    table = LeaseTable(pool)
    await _die(pool, KEY)
    clocked.cluster.primary.turn_clock(-HOUR)
    with pytest.raises(LeaseUnavailableError) as caught:
        await acquire(pool, KEY)
    assert caught.value.retry_after == pytest.approx(HOUR, abs=60)
    assert (await table.revoke(KEY, force=True)).outcome == "ended"
    held = await acquire(pool, KEY)
    assert held.fence == 2
    await held.release()


async def test_rows_from_the_future_are_brought_back_by_one_statement_and_live_holders_keep_their_leases(
    clocked: Pair, pool: Pool
) -> None:
    """After it no key is shut for longer than the longest ttl, and nobody who lives was cut short."""
    (statement,) = re.findall(r"^```sql\n(UPDATE .*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    await _die(pool, KEY)
    table = LeaseTable(pool, poll=0.1)
    told = Recorder()
    async with lease(pool, "alive", ttl=20, heartbeat=1, observer=told):
        clocked.cluster.primary.turn_clock(-HOUR)
        async with connecting(clocked.primary) as connection:
            await connection.execute(statement.replace("60 seconds", "20 seconds"))
            # A second time it finds nothing.
            assert await connection.execute(statement.replace("60 seconds", "20 seconds")) == "UPDATE 0"
        dead = await table.get(KEY)
        assert dead is not None
        assert (dead.state, dead.expires_in <= 20) == ("held", True)
        await until(lambda: told.of(Renewed))
    assert told.of(Lost) == []


async def test_step_back_by_an_hour_prunes_nothing_too_early_and_advances_fences_as_ever(
    clocked: Pair, pool: Pool
) -> None:
    """What seems to be free from the future on stays for now, and is lifted with all the others."""
    table = LeaseTable(pool)
    await (await acquire(pool, KEY)).release()
    assert (await table.prune(0)).deleted == 1
    await (await acquire(pool, KEY)).release()
    clocked.cluster.primary.turn_clock(-HOUR)
    assert await table.prune(0) == Pruned(deleted=0, kept=0, floor=1)
    assert await table.advance_fences(10) == 12
    held = await acquire(pool, KEY)
    assert held.fence == 13
    await held.release()


async def _die(pool: Pool, key: str) -> None:
    """Leave a row as a process does that is killed: live, and nobody renews it."""
    await pool.execute(
        "INSERT INTO lease (key, holder, acquired_at, expires_at)"
        " VALUES ($1, 'dead', clock_timestamp(), clock_timestamp() + interval '20 seconds')",
        key,
    )
