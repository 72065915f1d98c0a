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
async def test_thousand_leases_on_two_connections_are_all_renewed_in_batches(
    make_pool: MakePool, proxy: Proxy, observe: Observer
) -> None:
    """1,000 leases on a pool of 2 pin no connection, all are renewed, and few statements do it."""
    pool = await make_pool(proxy.dsn, min_size=2, max_size=2)
    told = Recorder()
    async with AsyncExitStack() as stack:
        await hold_all(stack, pool, 1000, told, ttl=60, heartbeat=2.5)
        await until(lambda: len({event.key for event in told.of(Renewed)}) == 1000, within=40)
        await until(lambda: pool.get_idle_size() == 2)
        assert proxy.count(RENEW) < 200
        assert await pool.fetchval("SELECT count(*) FROM lease WHERE expires_at > clock_timestamp()") == 1000
    assert not told.of(Lost)
    free = await observe.connection.fetchval("SELECT count(*) FROM lease WHERE expires_at <= clock_timestamp()")
    assert free == 1000


@pytest.mark.parametrize(
    ("count", "connections", "heartbeat", "delay"), [(1000, 4, 0.1, 0.0), (300, 1, 0.05, 0.0), (100, 2, 0.1, 0.03)]
)
async def test_ends_that_meet_renewals_lose_nothing(
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    caplog: pytest.LogCaptureFixture,
    count: int,
    connections: int,
    heartbeat: float,
    delay: float,
) -> None:
    """Bodies whose ends coincide with their renewals end well: no loss, no warning, every row free."""
    caplog.set_level(logging.INFO, "asyncpg_lease")
    told = Recorder()
    pool = await make_pool(proxy.dsn if delay else None, min_size=connections, max_size=connections)
    proxy.delay_replies = delay
    table = LeaseTable(pool, observer=told)
    await table.create()
    gate = asyncio.Semaphore(50)
    # Seeded: the same lengths in every run.
    lengths = random.Random(1)  # noqa: S311

    async def job(number: int) -> None:
        async with gate:  # noqa: SIM117 - one after the other
            # The beats are what the ends are to meet; a short ttl would leave a machine under load no time at all.
            async with lease(table, f"key-{number}", ttl=10, heartbeat=heartbeat):
                await asyncio.sleep(lengths.uniform(0, 0.4))

    await asyncio.gather(*(job(number) for number in range(count)))
    await table.aclose()
    assert not told.of(Lost)
    assert len(told.of(Renewed)) > 0.3 * count
    loud = [record for record in caplog.records if record.levelno > logging.INFO]
    # A machine that stops for a moment may say so; nothing else may be said.
    assert not [record.getMessage() for record in loud if not record.getMessage().startswith(Late.message)]
    live = "SELECT count(*) FROM lease WHERE expires_at > clock_timestamp() OR released_at IS NULL"
    assert await observe.connection.fetchval(live) == 0
    assert len(await observe.rows()) == count


async def test_many_leases_are_given_up_together_by_one_timer(make_pool: MakePool, proxy: Proxy) -> None:
    """When the server is gone every lease is given up at its deadline, however many there are."""
    pool = await make_pool(proxy.dsn)
    await LeaseTable(pool).create()

    async def job(number: int) -> float:
        with pytest.raises(LeaseLostError):
            async with lease(pool, f"key-{number}", ttl=2):
                entered.append(number)
                await asyncio.sleep(30)
        return time.monotonic()

    entered: list[int] = []
    jobs = [asyncio.create_task(job(number)) for number in range(100)]
    await until(lambda: len(entered) == 100)
    started = time.monotonic()
    proxy.freeze()
    ends = await asyncio.gather(*jobs)
    assert max(ends) - started < 4
    proxy.thaw()
