"""asyncio.run() that ends by Ctrl-C: a real SIGINT to a process in the middle of a claim, a body, an exit."""

from __future__ import annotations

import asyncio
import signal

import asyncpg
import pytest

from asyncpg_lease import acquire, lease
from tests.conftest import MakePool
from tests.support.leasing import warm
from tests.support.observe import Observer
from tests.support.processes import Child, Spawn, emit, receive
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE

pytestmark = [pytest.mark.usefixtures("table"), pytest.mark.slow("each interrupts a real process by a real signal")]
KEY = "interrupted"
SLOW = 0.4


async def work(dsn: str, where: str, in_task: bool) -> None:
    """Hold a lease in this process; `where` says what is slow."""

    async def job() -> None:
        if where == "acquire":
            await acquire(pool, KEY, ttl=60)
        async with lease(pool, KEY, ttl=60):
            emit(entered=True)
            if where == "body":
                await asyncio.sleep(60)
            await receive()

    # Not closed here: what asyncio.run cancels at its end, tasks of the library's included, has to do.
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=2)
    await warm(pool)
    emit(ready=True)
    await receive()
    if in_task:
        background = asyncio.create_task(job())
        await asyncio.sleep(60)
        await background
    await job()


async def start(spawn: Spawn, proxy: Proxy, where: str, *, in_task: bool) -> Child:
    """Start a child and bring it to the point where it goes on by itself."""
    child = await spawn(work, proxy.dsn, where, in_task)
    await child.event()
    await child.send()
    return child


async def interrupt(child: Child) -> None:
    """Press Ctrl-C, and see the process end by it, long before the ttl is over."""
    child.signal(signal.SIGINT)
    await child.wait(within=20)
    assert child.exit_code in {-signal.SIGINT, 1, 130}


async def assert_released(observe: Observer) -> None:
    """See that the row is free before long, and that it was released."""
    await observe.until_free(KEY, within=10)
    record = await observe.row(KEY)
    assert record is not None
    assert record["released_at"] is not None


@pytest.mark.parametrize("in_task", [False, True])
async def test_ctrl_c_during_a_claim_leaves_no_row(
    spawn: Spawn, proxy: Proxy, observe: Observer, in_task: bool
) -> None:
    """Interrupted between the claim and its answer, in the main task or another, the claim is given back."""
    child = await spawn(work, proxy.dsn, "acquire", in_task)
    await child.event()
    before = proxy.count(CLAIM)
    proxy.delay_replies = SLOW
    await child.send()
    await proxy.wait_for(CLAIM, count=before + 1)
    await interrupt(child)
    await assert_released(observe)


async def test_ctrl_c_during_the_body_releases(spawn: Spawn, proxy: Proxy, observe: Observer) -> None:
    """Interrupted in its body, the lease is released on the way out."""
    child = await start(spawn, proxy, "body", in_task=False)
    await child.event()
    assert not await observe.is_free(KEY)
    proxy.delay_replies = SLOW
    await interrupt(child)
    await assert_released(observe)


async def test_ctrl_c_during_the_exit_releases(spawn: Spawn, proxy: Proxy, observe: Observer) -> None:
    """Interrupted while the release is under way, it goes through."""
    child = await start(spawn, proxy, "exit", in_task=True)
    await child.event()
    before = proxy.count(RELEASE)
    proxy.delay_requests = SLOW
    await child.send()
    await proxy.wait_for(RELEASE, count=before + 1)
    await interrupt(child)
    await assert_released(observe)


async def test_ctrl_c_during_a_release_that_waits_sends_it_again(spawn: Spawn, proxy: Proxy, observe: Observer) -> None:
    """asyncio.run cancels the library's tasks as well: a release that it cut off is sent once more."""
    child = await start(spawn, proxy, "exit", in_task=True)
    await child.event()
    before = proxy.count(RELEASE)
    async with observe.locked(KEY):
        await child.send()
        await observe.until_waiting()
        child.signal(signal.SIGINT)
        await proxy.wait_for(RELEASE, count=before + 2)
    await child.wait(within=20)
    await assert_released(observe)


async def test_ctrl_c_twice_during_the_body_still_frees_the_row(
    spawn: Spawn, proxy: Proxy, observe: Observer, make_pool: MakePool
) -> None:
    """A second Ctrl-C while the release is on its way does not call it back."""
    child = await start(spawn, proxy, "body", in_task=False)
    await child.event()
    before = proxy.count(RELEASE)
    child.signal(signal.SIGINT)
    await proxy.wait_for(RELEASE, count=before + 1)
    # What the second one interrupts is Python itself, wherever it happens to be: any end will do. Where that is the
    # driver, with an answer in hand, handing its connection back takes its limit of five seconds.
    child.signal(signal.SIGINT)
    await child.wait(within=30)
    await assert_released(observe)
    pool = await make_pool()
    async with lease(pool, KEY, wait=1) as held:
        assert held.fence == 2
