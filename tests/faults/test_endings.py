"""Bodies that end while renewals are under way, or fail: no loss comes of it, and nothing is put over an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from asyncpg_lease import lease
from asyncpg_lease.events import Acquired, Late, Lost, Released, RenewFailed
from tests.conftest import MakePool
from tests.faults import outages
from tests.faults.outages import Outage, Stage
from tests.support.leasing import Recorder, here, until, warm
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RELEASE
from tests.support.travel import Travel

KEY = "ended"
TTL = 20.0
HEARTBEAT = 4.0
LASTING = 4.0
"""Seconds for which each trouble goes on once a renewal is under way: the body ends in the midst of it."""


@asynccontextmanager
async def slow_replies(stage: Stage) -> AsyncIterator[None]:
    """Have answers take longer than the body goes on."""
    stage.proxy.delay_replies = LASTING / 2
    yield
    stage.proxy.delay_replies = 0


@asynccontextmanager
async def slow_requests(stage: Stage) -> AsyncIterator[None]:
    """Have what is asked reach the server when the body has ended."""
    stage.proxy.delay_requests = LASTING / 2
    yield
    stage.proxy.delay_requests = 0


def is_beating() -> bool:
    """Tell whether a renewal is under way."""
    return any("heartbeat:" in task.get_name() for task in library_tasks())


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "trouble",
    [
        *(slow_replies, slow_requests),
        *(outages.frozen, outages.locked_row, outages.exhausted_pool, outages.stopped_backends),
    ],
)
async def test_end_beside_a_renewal_under_way_is_quiet(
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    caplog: pytest.LogCaptureFixture,
    trouble: Outage,
) -> None:
    """Whatever a renewal waits for when its body ends: no loss, the row is released, and no later answer undoes it."""
    caplog.set_level(logging.INFO, "asyncpg_lease")
    stage = await Stage.make(make_pool, proxy, observe)
    told, rows = Recorder(), trouble is not outages.locked_row

    async def work() -> int:
        async with lease(stage.pool, KEY, ttl=TTL, heartbeat=HEARTBEAT, observer=told):
            await under_way.wait()
            return len(told.of(RenewFailed))

    under_way = asyncio.Event()
    working = asyncio.create_task(work())
    await until(lambda: told.of(Acquired))
    # Until the claim's connection is back: otherwise the renewal takes another one, which has no trouble.
    await travel(0)
    async with trouble(stage):
        await travel.until(is_beating, within=2 * HEARTBEAT, rows=rows)
        under_way.set()
        await travel(LASTING, rows=rows)
    failed = await travel.through(working, within=TTL)
    await travel.until(lambda: told.of(Released), within=TTL / 2)
    await travel(1)
    row = await observe.row(KEY)
    assert row is not None
    assert row["released_at"] is not None
    assert await observe.is_free(KEY)
    assert len(told.of(Released)) == 1
    assert not told.of(Lost)
    # A row that was locked was told while the body still ran.
    assert len(told.of(RenewFailed)) == failed
    loud = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert len([message for message in loud if not message.startswith(Late.message)]) == failed


Moment = Callable[[Proxy, Observer, Travel], Awaitable[object]]


async def renewal_under_way(proxy: Proxy, _observe: Observer, travel: Travel) -> None:
    """Come to where a renewal waits for its answer."""
    proxy.delay_replies = HEARTBEAT
    await travel.until(is_beating, within=2 * HEARTBEAT)


async def renewals_failing(proxy: Proxy, _observe: Observer, travel: Travel) -> None:
    """Come to where the server has not been reached for a while, and will not be until the row has run out."""
    proxy.refuse()
    proxy.reset_links()
    await travel.until(is_beating, within=2 * HEARTBEAT)
    await travel(2)


async def release_to_be_lost(proxy: Proxy, _observe: Observer, _travel: Travel) -> None:
    """Have the answer of the release lost."""
    proxy.drop_reply(RELEASE)


async def loss_flagged(_proxy: Proxy, observe: Observer, travel: Travel) -> None:
    """Come to where the lease is lost, which a flagged body may overlook."""
    await observe.hand_over(KEY)
    await travel(2 * HEARTBEAT)


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("moment", [renewal_under_way, renewals_failing, release_to_be_lost, loss_flagged])
@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), ExceptionGroup("mine", [KeyError()])])
async def test_error_of_a_body_is_the_identical_object_whatever_becomes_of_its_lease(
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    moment: Moment,
    error: BaseException,
) -> None:
    """No failure of a renewal or a release, and no loss, is chained to the body's error or takes its place."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)

    async def work() -> tuple[BaseException | None, int]:
        try:
            async with lease(pool, KEY, ttl=TTL, heartbeat=HEARTBEAT, on_lost="flag"):
                await moment(proxy, observe, travel)
                raise error  # noqa: TRY301 - of several kinds
        except BaseException as raised:  # noqa: BLE001 - whatever it is
            return raised, here().cancelling()

    caught, cancelling = await travel.through(work(), within=2 * TTL)
    assert caught is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert cancelling == 0
    proxy.delay_replies = 0
    await proxy.accept()
    if moment is not loss_flagged:
        # It is released, and does not run out.
        await travel.until(lambda: observe.is_free(KEY), within=5)
