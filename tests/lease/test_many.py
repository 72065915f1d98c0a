"""Many leases on few connections."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import AsyncExitStack

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Late, Lost, Renewed
from tests.conftest import MakePool
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RENEW
from tests.support.travel import Travel
from tests.support.typing import Pool


async def hold_all(
    stack: AsyncExitStack, pool: Pool, count: int, told: Recorder, *, ttl: float, heartbeat: float
) -> None:
    """Acquire and enter so many leases."""
    claims = (acquire(pool, f"key-{n}", ttl=ttl, heartbeat=heartbeat, observer=told) for n in range(count))
    leases = await asyncio.gather(*claims)
    for held in leases:
        await stack.enter_async_context(held)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow("claims a thousand keys"))])
async def test_many_leases_on_two_connections_are_all_renewed_in_batches(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, count: int
) -> None:
    """Any number of leases on a pool of 2 pin no connection, all are renewed, and few statements do it."""
    pool = await make_pool(proxy.dsn, min_size=2, max_size=2)
    told = Recorder()
    async with AsyncExitStack() as stack:
        await hold_all(stack, pool, count, told, ttl=60, heartbeat=20)
        await travel.until(lambda: len({event.key for event in told.of(Renewed)}) == count, within=30)
        await until(lambda: pool.get_idle_size() == 2)
        assert proxy.count(RENEW) < count / 5
        assert await pool.fetchval("SELECT count(*) FROM lease WHERE expires_at > clock_timestamp()") == count
    assert not told.of(Lost)
    free = await observe.connection.fetchval("SELECT count(*) FROM lease WHERE expires_at <= clock_timestamp()")
    assert free == count


class Ends:
    """Many bodies, so short that many end in the midst of a renewal of theirs, and what came of them.

    Attributes:
        told: What their table's observer was told.
    """

    def __init__(self, pool: Pool, *, heartbeat: float, longest: float) -> None:
        self.told = Recorder()
        self.table = LeaseTable(pool, observer=self.told)
        self._heartbeat = heartbeat
        self._longest = longest
        self._gate = asyncio.Semaphore(50)
        # Seeded: the same lengths in every run.
        self._lengths = random.Random(1)  # noqa: S311

    async def run(self, count: int) -> None:
        """Run so many jobs, 50 at a time."""
        await self.table.create()
        await asyncio.gather(*(self._job(number) for number in range(count)))

    async def _job(self, number: int) -> None:
        async with self._gate:  # noqa: SIM117 - one after the other
            # The beats are what the ends are to meet; a short ttl would leave a machine under load no time at all.
            async with lease(self.table, f"key-{number}", ttl=50 * self._longest, heartbeat=self._heartbeat):
                await asyncio.sleep(self._lengths.uniform(0, self._longest))


@pytest.mark.slow("renewals and ends meet by chance, in real time")
@pytest.mark.parametrize(("count", "connections", "heartbeat"), [(600, 4, 0.1), (300, 1, 0.05)])
async def test_ends_that_meet_renewals_lose_nothing(
    *,
    make_pool: MakePool,
    observe: Observer,
    caplog: pytest.LogCaptureFixture,
    count: int,
    connections: int,
    heartbeat: float,
) -> None:
    """Bodies whose ends coincide with their renewals end well: no loss, no warning, every row free."""
    caplog.set_level(logging.INFO, "asyncpg_lease")
    ends = Ends(await make_pool(min_size=connections, max_size=connections), heartbeat=heartbeat, longest=0.4)
    await ends.run(count)
    await ends.table.aclose()
    assert not ends.told.of(Lost)
    assert len(ends.told.of(Renewed)) > 0.3 * count
    loud = [record for record in caplog.records if record.levelno > logging.INFO]
    # A machine that stops for a moment may say so; nothing else may be said.
    assert not [record.getMessage() for record in loud if not record.getMessage().startswith(Late.message)]
    live = "SELECT count(*) FROM lease WHERE expires_at > clock_timestamp() OR released_at IS NULL"
    assert await observe.connection.fetchval(live) == 0
    assert len(await observe.rows()) == count


@pytest.mark.slow("takes half a second or so")
async def test_ends_in_the_midst_of_slow_renewals_lose_nothing(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a renewal takes as long as a heartbeat half of the bodies end in the midst of one, and end well."""
    caplog.set_level(logging.INFO, "asyncpg_lease")
    ends = Ends(await make_pool(proxy.dsn, min_size=4, max_size=4), heartbeat=2, longest=8)
    proxy.delay_replies = 1
    # Moving the rows would lock them for a moment.
    await travel.through(ends.run(14), within=60, rows=False)
    await travel.through(ends.table.aclose(), within=20, rows=False)
    proxy.delay_replies = 0
    assert not ends.told.of(Lost)
    assert len(ends.told.of(Renewed)) > 5
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
    live = "SELECT count(*) FROM lease WHERE expires_at > clock_timestamp() OR released_at IS NULL"
    assert await observe.connection.fetchval(live) == 0
    assert len(await observe.rows()) == 14


@pytest.mark.slow("takes half a second or so")
async def test_many_leases_are_given_up_together_by_one_timer(
    make_pool: MakePool, proxy: Proxy, travel: Travel
) -> None:
    """When the server is gone every lease is given up at its deadline, however many there are."""
    pool = await make_pool(proxy.dsn)
    await LeaseTable(pool).create()

    async def job(number: int) -> float:
        with pytest.raises(LeaseLostError):
            async with lease(pool, f"key-{number}", ttl=30):
                entered.append(number)
                await asyncio.sleep(60)
        return time.monotonic()

    entered: list[int] = []
    jobs = [asyncio.create_task(job(number)) for number in range(12)]
    await until(lambda: len(entered) == 12)
    started = time.monotonic()
    proxy.freeze()
    ends = await travel.through(asyncio.gather(*jobs), within=80, rows=False)
    assert max(ends) - started < 30
    proxy.thaw()
