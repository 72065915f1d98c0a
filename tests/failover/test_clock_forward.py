"""A server clock that steps forward, and a failover to a server whose clock is ahead."""

from __future__ import annotations

import asyncio
import time

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Renewed
from tests.conftest import MakePool
from tests.failover.conftest import with_table
from tests.faults.means import rival
from tests.support.bodies import Bodies
from tests.support.cluster import Pair, connecting
from tests.support.leasing import Recorder, until
from tests.support.proxy import Proxy
from tests.support.typing import Pool

pytestmark = pytest.mark.slow("servers are started whose clocks can be turned")

KEY = "k"
HOUR = 3600.0


@pytest.fixture
async def pool(clocked: Pair, make_pool: MakePool) -> Pool:
    """A pool with a lease table on a server whose clock can be turned."""
    return await with_table(clocked, make_pool)


async def test_clock_is_turned_at_once_and_on_one_node_alone(clocked_pair: Pair) -> None:
    """A session that was open before sees the new time, the other node's do not."""
    async with connecting(clocked_pair.primary) as here, connecting(clocked_pair.standby) as there:
        ask = "SELECT extract(epoch FROM clock_timestamp())::float8"
        before = await here.fetchval(ask)
        clocked_pair.cluster.primary.turn_clock(-HOUR)
        assert -HOUR <= await here.fetchval(ask) - before < -HOUR + 60
        assert 0 <= await there.fetchval(ask) - before < 60


@pytest.mark.parametrize("step", [0.2, 1.0])
async def test_step_forward_of_less_than_grace_lets_nobody_in_beside_a_holder_that_is_cut_off(
    clocked: Pair, pool: Pool, make_pool: MakePool, bodies: Bodies, step: float
) -> None:
    """The worst case: the holder hears nothing more, and the server's clock takes its last seconds away."""
    assert pool.get_size()
    told = Recorder()
    async with Proxy(clocked.primary) as network:
        behind = await make_pool(network.dsn, min_size=0, max_size=2)

        async def hold() -> None:
            async with lease(behind, KEY, ttl=5, grace=3, heartbeat=0.9, observer=told):
                with bodies.running("holder"):
                    await asyncio.sleep(10)

        holder = asyncio.create_task(hold())
        await until(lambda: told.of(Renewed))
        network.freeze()
        clocked.cluster.primary.turn_clock(step)
        async with rival(clocked.primary, KEY, bodies) as entering:
            await entering
        with pytest.raises(LeaseLostError) as caught:
            await holder
        behind.terminate()
    assert caught.value.reason == "unreachable"
    assert bodies.overlapping() == []


@pytest.mark.parametrize("heartbeat", [0.3, 1.0])
async def test_step_forward_by_an_hour_ends_every_lease_and_the_next_renewal_tells(
    clocked: Pair, pool: Pool, heartbeat: float
) -> None:
    """All rows have run out at once: the body is stopped within a heartbeat, and the key is nobody's."""
    with pytest.raises(LeaseLostError) as caught:
        async with lease(pool, KEY, ttl=30, heartbeat=heartbeat):
            stepped = time.monotonic()
            clocked.cluster.primary.turn_clock(HOUR)
            await asyncio.sleep(10)
    assert time.monotonic() - stepped < heartbeat + 2
    assert caught.value.reason == "expired"
    held = await acquire(pool, KEY)
    assert held.fence == 2
    await held.release()


async def test_step_forward_by_an_hour_lets_another_in_beside_the_body_and_its_guarded_writes_are_refused(
    clocked: Pair, pool: Pool, bodies: Bodies
) -> None:
    """More than grace is what a lease cannot stand; the fence stands it, before the holder has heard of anything."""
    with pytest.raises(LeaseLostError):
        async with lease(pool, KEY, ttl=60) as held:
            with bodies.running("holder"):
                clocked.cluster.primary.turn_clock(HOUR)
                async with lease(pool, KEY, ttl=60), connecting(clocked.primary) as connection:
                    assert held.is_held
                    with bodies.running("next"):
                        async with held.transaction(connection):
                            pytest.fail("a tenure that is over wrote something")
    assert len(bodies.overlapping()) == 1


async def test_step_forward_under_an_open_guard_keeps_the_next_holder_out(clocked: Pair, pool: Pool) -> None:
    """What was checked before the step is committed before anybody else begins."""
    held = await acquire(pool, KEY, ttl=30)
    async with connecting(clocked.primary) as connection:
        async with held.transaction(connection):
            clocked.cluster.primary.turn_clock(HOUR)
            table = LeaseTable(pool, poll=0.05)
            waiting = asyncio.create_task(acquire(table, KEY, wait=30))
            await asyncio.sleep(0.5)
            assert not waiting.done()
        new = await waiting
    assert new.fence == held.fence + 1
    await new.release()
    await held.release()


async def test_step_forward_makes_prune_take_what_was_used_just_now_and_fences_rise_all_the_same(
    clocked: Pair, pool: Pool
) -> None:
    """Rows seem to have been free for an hour; the floor is above them."""
    table = LeaseTable(pool)
    for _ in range(3):
        await (await acquire(pool, KEY)).release()
    clocked.cluster.primary.turn_clock(HOUR)
    assert (await table.prune(HOUR / 2)).deleted == 1
    clocked.cluster.primary.turn_clock(0)
    held = await acquire(pool, KEY)
    assert held.fence == 4
    await held.release()


async def test_failover_to_a_server_that_is_an_hour_ahead_ends_every_lease(
    clocked_pair: Pair, make_pool: MakePool
) -> None:
    """It is a step forward: all rows have run out there, the holder is told, and fences rise."""
    pool = await with_table(clocked_pair, make_pool)
    assert clocked_pair.cluster.standby is not None
    clocked_pair.cluster.standby.turn_clock(HOUR)
    await clocked_pair.cluster.set_synchronous(True)
    with pytest.raises(LeaseLostError) as caught:
        async with lease(pool, KEY, ttl=30, heartbeat=0.3) as held:
            await clocked_pair.cluster.fail_over()
            await asyncio.sleep(10)
    assert caught.value.reason == "expired"
    new = await acquire(LeaseTable(pool, poll=0.05), KEY, wait=20)
    assert new.fence == held.fence + 1
    await new.release()
