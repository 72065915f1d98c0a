"""Bodies that end while renewals are under way, or fail: no loss comes of it, and nothing is put over an error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from asyncpg_lease import lease
from asyncpg_lease.events import Late, Lost, Released, RenewFailed
from tests.conftest import MakePool
from tests.faults import outages
from tests.faults.outages import Outage, Stage
from tests.support.leasing import Recorder, here, until, warm
from tests.support.leftovers import library_tasks
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import RELEASE

KEY = "ended"
LASTING = 0.8
"""Seconds of each trouble: the body ends in the midst of it."""


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


async def until_beating() -> None:
    """Wait until a renewal does not end at once, as one does that was answered before the trouble began.

    Now and then none does before the trouble is over, since it found another connection: none is waited for then.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(LASTING):
            while True:
                await until(is_beating)
                await asyncio.sleep(0.05)
                if is_beating():
                    return


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "trouble",
    [
        *(slow_replies, slow_requests),
        *(outages.frozen, outages.locked_row, outages.exhausted_pool, outages.stopped_backends),
    ],
)
async def test_end_beside_a_renewal_under_way_is_quiet(
    make_pool: MakePool, proxy: Proxy, observe: Observer, caplog: pytest.LogCaptureFixture, trouble: Outage
) -> None:
    """Whatever a renewal waits for when its body ends: no loss, the row is released, and no later answer undoes it."""
    caplog.set_level(logging.INFO, "asyncpg_lease")
    stage = await Stage.make(make_pool, proxy, observe)
    told, begun = Recorder(), asyncio.Event()

    async def cause() -> None:
        async with trouble(stage):
            begun.set()
            await asyncio.sleep(LASTING)

    async with lease(stage.pool, KEY, ttl=9, heartbeat=0.2, observer=told):
        causing = asyncio.create_task(cause())
        await begun.wait()
        await until_beating()
        failed = len(told.of(RenewFailed))
    await causing
    await asyncio.sleep(0.1)
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


Moment = Callable[[Proxy, Observer], Awaitable[object]]


async def renewal_under_way(proxy: Proxy, _observe: Observer) -> None:
    """Come to where a renewal waits for its answer."""
    proxy.delay_replies = 0.2
    await until_beating()


async def renewals_failing(proxy: Proxy, _observe: Observer) -> None:
    """Come to where the server has not been reached for a while, and will not be until the row has run out."""
    proxy.refuse()
    proxy.reset_links()
    await until(is_beating)
    await asyncio.sleep(0.2)


async def release_to_be_lost(proxy: Proxy, _observe: Observer) -> None:
    """Have the answer of the release lost."""
    proxy.drop_reply(RELEASE)


async def loss_flagged(_proxy: Proxy, observe: Observer) -> None:
    """Come to where the lease is lost, which a flagged body may overlook."""
    await observe.hand_over(KEY)
    await asyncio.sleep(0.5)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("moment", [renewal_under_way, renewals_failing, release_to_be_lost, loss_flagged])
@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), ExceptionGroup("mine", [KeyError()])])
async def test_error_of_a_body_is_the_identical_object_whatever_becomes_of_its_lease(
    make_pool: MakePool, proxy: Proxy, observe: Observer, moment: Moment, error: BaseException
) -> None:
    """No failure of a renewal or a release, and no loss, is chained to the body's error or takes its place."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    caught: BaseException | None = None
    try:
        async with lease(pool, KEY, ttl=1.5, heartbeat=0.3, on_lost="flag"):
            await moment(proxy, observe)
            raise error  # noqa: TRY301 - of several kinds
    except BaseException as raised:  # noqa: BLE001 - whatever it is
        caught = raised
    assert caught is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert here().cancelling() == 0
    proxy.delay_replies = 0
    await proxy.accept()
    if moment is not loss_flagged:
        await observe.until_free(KEY, within=3)
