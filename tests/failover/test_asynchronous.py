"""A failover to an asynchronous standby that did not have everything, and what an operator does about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import cast

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, acquire, lease
from tests.conftest import MakePool
from tests.machine.world import WRITE
from tests.support.bodies import Bodies
from tests.support.cluster import Pair, connecting
from tests.support.job import JOB, STALE
from tests.support.leasing import until
from tests.support.typing import Connection, Pool

pytestmark = pytest.mark.slow("servers are stopped, promoted and copied")

PAGE = Path(__file__).parents[2] / "docs/how-to/recover-after-a-failover.md"
KEY = "k"


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[Connection]:
    """Where the job writes: on another server, which remembers the highest fence and refuses lower ones."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(JOB)
    yield connection
    await connection.close()


async def is_accepted(store: Connection, held: Lease) -> bool:
    """Write under a lease's fence, and tell whether the store took it."""
    try:
        await store.execute(WRITE, held.key, held.fence)
    except asyncpg.PostgresError as error:
        if error.sqlstate != STALE:
            raise
        return False
    return True


@pytest.fixture
async def hosts(pair: Pair, make_pool: MakePool) -> Pool:
    """A pool of both nodes with a lease table in which the key has had a first tenure, which the standby knows of."""
    pool = await make_pool(pair.dsn)
    await LeaseTable(pool).create()
    await (await acquire(pool, KEY)).release()
    await pair.cluster.catch_up()
    return pool


async def lose_tenures(pair: Pair, pool: Pool, count: int) -> list[Lease]:
    """Acquire the key so many times while the standby hears nothing, and then promote it; return the lost leases."""
    await pair.cluster.cut_standby_off()
    lost = []
    for number in range(count):
        held = await acquire(pool, KEY)
        lost.append(held)
        if number < count - 1:
            await held.release()
    await pair.cluster.fail_over()
    return lost


async def again(pool: Pool) -> Lease:
    """Acquire the key at the server that there is now."""
    return await acquire(LeaseTable(pool, poll=0.05), KEY, wait=30)


@pytest.mark.parametrize("tenures", [1, 3])
async def test_asynchronous_failover_hands_lost_fences_out_again(
    pair: Pair, hosts: Pool, store: Connection, tenures: int
) -> None:
    """Two tenures have one fence, and a store that compares fences takes the writes of both, in any order."""
    lost = await lose_tenures(pair, hosts, tenures)
    new = await again(hosts)
    assert [one.fence for one in lost] == list(range(2, 2 + tenures))
    assert new.fence == lost[0].fence
    assert new.holder != lost[0].holder
    if tenures == 1:
        assert [await is_accepted(store, held) for held in (new, lost[0], new)] == [True, True, True]
    else:
        # The store has seen what the server forgot: the new tenure is the one that is refused.
        assert [await is_accepted(store, held) for held in (lost[-1], new)] == [True, False]
    await new.release()
    await lost[-1].release()


@pytest.mark.parametrize("tenures", [1, 3])
async def test_runbook_after_an_asynchronous_failover_has_stale_writers_refused(
    pair: Pair, hosts: Pool, store: Connection, tenures: int
) -> None:
    """After the script every new tenure has a fence above all that were lost, and theirs are too low."""
    lost = await lose_tenures(pair, hosts, tenures)
    assert await is_accepted(store, lost[-1])
    assert await recover(pair.primary, 1_000_000) == [1_000_001]
    new = await again(hosts)
    assert new.fence > max(one.fence for one in lost)
    assert [await is_accepted(store, held) for held in (new, lost[-1], new)] == [True, False, True]
    with pytest.raises(LeaseLostError):
        async with connecting(pair.primary) as connection, lost[-1].transaction(connection):
            pass
    await new.release()
    await lost[-1].release()


async def recover(dsn: str, by: int) -> list[int]:
    """Run the runbook's script."""
    (script,) = re.findall(r"^```python\n(import asyncpg\n.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(compile(script, PAGE, "exec"), names)  # noqa: S102 - the page's own
    return await cast("Callable[[str, int], Coroutine[None, None, list[int]]]", names["recover"])(dsn, by)


async def test_holder_whose_claim_was_lost_runs_beside_the_next_one_until_its_next_renewal(
    pair: Pair, hosts: Pool, bodies: Bodies
) -> None:
    """The new server knows nothing of it and lets another in; the first renewal there tells, and stops it."""
    await pair.cluster.cut_standby_off()

    async def hold() -> None:
        async with lease(hosts, KEY, ttl=30, heartbeat=2):
            with bodies.running("lost"):
                await asyncio.sleep(15)

    holder = asyncio.create_task(hold())
    await until(lambda: bodies.all)
    await pair.cluster.fail_over()
    new = await again(hosts)
    with bodies.running("new"):
        with pytest.raises(LeaseLostError) as caught:
            await holder
        assert (caught.value.reason, caught.value.taken_by) == ("taken_over", new.holder)
    assert len(bodies.overlapping()) == 1
    await new.release()


async def test_wait_for_a_standby_that_an_operator_cancels_confirms_what_the_standby_has_not(
    pair: Pair, hosts: Pool
) -> None:
    """PostgreSQL reports such a commit as done: synchronous replication is as good as nobody cancels its waits."""
    await pair.cluster.set_synchronous(True)
    await pair.cluster.cut_standby_off()
    waiting = asyncio.create_task(acquire(hosts, KEY, ttl=60))
    async with connecting(pair.primary) as connection, asyncio.timeout(20):
        while not await connection.fetchval(
            "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        ):
            await asyncio.sleep(0.05)
    lost = await waiting
    await pair.cluster.fail_over()
    new = await again(hosts)
    assert new.fence == lost.fence
    await new.release()
    await lost.release()


async def test_old_primary_that_comes_back_beside_the_new_one_hands_out_leases_of_its_own(
    pair: Pair, hosts: Pool, make_pool: MakePool, store: Connection
) -> None:
    """Both take writes: which one a pool meets hangs on the order of its hosts, and the same fence is given twice."""
    old = pair.dsn
    await pair.cluster.fail_over()
    at_new = await again(hosts)
    await pair.cluster.start_lost()
    # The hosts in their old order, as in a service that is started now: it meets the old primary first.
    service = await make_pool(old)
    at_old = await acquire(service, KEY)
    assert (at_old.key, at_old.fence) == (at_new.key, at_new.fence)
    assert [await is_accepted(store, held) for held in (at_new, at_old, at_new)] == [True, True, True]
    await at_old.release()
    await at_new.release()


async def test_holder_whose_pool_moves_back_to_an_old_primary_is_told_of_a_loss(pair: Pair, hosts: Pool) -> None:
    """Its tenure is none of that server's, whatever a row with the same key and fence says there."""
    await pair.cluster.fail_over()
    async with connecting(pair.primary) as connection:
        reached = await again(hosts)
        await reached.release()
        with pytest.raises(LeaseLostError) as caught:
            async with lease(hosts, KEY, ttl=30, heartbeat=0.3) as held:
                assert held.fence == 3
                await pair.cluster.start_lost()
                while not await _moved(connection):
                    await asyncio.sleep(0.05)
                await asyncio.sleep(10)
    assert caught.value.reason in {"taken_over", "expired"}


async def _moved(connection: Connection) -> bool:
    """End the sessions at the new primary until none comes back to it."""
    ended = await connection.fetchval(
        "SELECT count(pg_terminate_backend(pid, 1000)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    return bool(ended == 0)
