"""docs/explanation/failure-modes.md, while a lease is acquired or left: each fault is made, and what comes out seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from asyncpg_lease import acquire, lease
from tests.faults.means import exhausted
from tests.faults.modes import KEY, SLACK, Mode, Scene, logging_kept, modes
from tests.support.rings import quick_few
from tests.support.statements import CLAIM, RELEASE

MODES = modes("While it is acquired or left")
TTL = 1.0
LONG_TTL = 5.0
WAIT = 1.5

Call = Callable[[Scene], Awaitable[object]]
CALLS: dict[str, Call] = {}

# Seconds, by the words of the document; a ttl of 60 s has the shortest time for a dead link, 6 s.
LIMITS = {
    "a second": 1.0,
    "a second and a half": 1.5,
    "the ttl and a second": TTL + 1,
    "the ttl and a second, here 6 s": LONG_TTL + 1,
    "the wait and a second": WAIT + 1,
    "5 s and a second": 6.0,
    "a tenth of the ttl, 3 s at least and 15 s at most, and a second": 4.0,
}


def call(function: Call) -> Call:
    """Add a call under its words in the document, which are its docstring (a decorator)."""
    words = (function.__doc__ or "").removesuffix(".")
    CALLS[words[:1].lower() + words[1:]] = function
    return function


@call
async def acquire_frozen(scene: Scene) -> None:
    """Acquiring: the network freezes."""
    scene.proxy.freeze()
    await acquire(scene.table, KEY, ttl=30)


@call
async def acquire_frozen_anew(scene: Scene) -> None:
    """Acquiring: the network freezes, and the pool has no open connection."""
    await scene.pool.expire_connections()
    scene.proxy.freeze()
    # For longer than a claim that was sent may go unanswered.
    await acquire(scene.table, KEY, ttl=LONG_TTL)


@call
async def acquire_frozen_shortly(scene: Scene) -> None:
    """Acquiring: the network freezes, with a ttl of 1 s."""
    scene.proxy.freeze()
    await acquire(scene.table, KEY, ttl=TTL)


@call
async def acquire_unheard(scene: Scene) -> None:
    """Acquiring: the answer is lost, and its link with it."""
    scene.proxy.drop_reply(CLAIM)
    await acquire(scene.table, KEY, ttl=30)


@call
async def wait_unheard(scene: Scene) -> None:
    """Acquiring: the answer is lost while the call waits."""
    scene.proxy.drop_reply(CLAIM)
    held = await acquire(scene.table, KEY, ttl=30, wait=WAIT)
    await held.release()


@call
async def acquire_exhausted(scene: Scene) -> None:
    """Acquiring: the pool has no connection to spare."""
    async with exhausted(scene.pool):
        await acquire(scene.table, KEY, ttl=TTL)


@call
async def acquire_refused(scene: Scene) -> None:
    """Acquiring: the server refuses links."""
    scene.proxy.refuse()
    scene.proxy.reset_links()
    await acquire(scene.table, KEY, ttl=30)


@call
async def wait_refused(scene: Scene) -> None:
    """Waiting: the server refuses links until the wait is over."""
    scene.proxy.refuse()
    scene.proxy.reset_links()
    await acquire(scene.table, KEY, ttl=30, wait=WAIT)


@call
async def acquire_read_only(scene: Scene) -> None:
    """Acquiring: the server is read-only."""
    database = scene.observe.dsn.rpartition("/")[2]
    await scene.observe.connection.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    # The setting is that of sessions that begin after it.
    await scene.pool.expire_connections()
    await acquire(scene.table, KEY, ttl=30)


@call
async def acquire_on_ended_session(scene: Scene) -> None:
    """Acquiring: the server has just ended the session."""
    async with session_ended(scene):
        await acquire(scene.table, KEY, ttl=30)


@call
async def wait_on_ended_session(scene: Scene) -> None:
    """Waiting: the server has just ended the session."""
    async with session_ended(scene):
        held = await acquire(scene.table, KEY, ttl=30, wait=WAIT)
        await held.release()


@asynccontextmanager
async def session_ended(scene: Scene) -> AsyncIterator[None]:
    """End the pool's session, and let nobody hear of it before the claim has been sent."""
    scene.proxy.freeze()
    await scene.observe.terminate_backends()
    claims = scene.proxy.count(CLAIM)

    async def thaw() -> None:
        await scene.proxy.wait_for(CLAIM, count=claims + 1)
        scene.proxy.thaw()

    thawing = asyncio.create_task(thaw())
    yield
    await thawing


@call
async def acquire_without_table(scene: Scene) -> None:
    """Acquiring: there is no table."""
    await scene.observe.connection.execute("DROP TABLE lease")
    await acquire(scene.table, KEY, ttl=30)


@call
async def acquire_cancelled(scene: Scene) -> None:
    """Acquiring: the call is cancelled on a frozen network."""
    scene.proxy.freeze()
    task = asyncio.create_task(acquire(scene.table, KEY, ttl=30))
    await asyncio.sleep(0.1)
    task.cancel()
    await task


@call
async def leave_frozen(scene: Scene) -> None:
    """Leaving: the network freezes."""
    async with lease(scene.table, KEY, ttl=30):
        scene.proxy.freeze()


@call
async def leave_unheard(scene: Scene) -> None:
    """Leaving: the answer to the release is lost, and its link with it."""
    async with lease(scene.table, KEY, ttl=30):
        scene.proxy.drop_reply(RELEASE)


@call
async def leave_refused(scene: Scene) -> None:
    """Leaving: the server refuses links."""
    async with lease(scene.table, KEY, ttl=30):
        scene.proxy.refuse()
        scene.proxy.reset_links()


@call
async def leave_cancelled(scene: Scene) -> None:
    """Leaving: the body is cancelled on a frozen network."""
    await freeze_and_cancel(scene, 30)


@call
async def leave_cancelled_again(scene: Scene) -> None:
    """Leaving: the wait for the release is cancelled on a frozen network."""
    await freeze_and_cancel(scene, 0)


async def freeze_and_cancel(scene: Scene, seconds: float) -> None:
    """Freeze the network in a body, which goes on for so long, and cancel its task a moment later."""

    async def work() -> None:
        async with lease(scene.table, KEY, ttl=30):
            scene.proxy.freeze()
            await asyncio.sleep(seconds)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.2)
    task.cancel()
    await task


def kind_of(error: BaseException | None, mode: Mode) -> str:
    """Name what came out, in the document's words."""
    if error is None:
        return "nothing"
    if mode.seen.startswith("what the driver raised"):
        return "what the driver raised" if isinstance(error, OSError) or "asyncpg" in type(error).__module__ else ""
    return type(error).__name__


@pytest.mark.parametrize("name", quick_few(MODES, 6))
async def test_fault_while_a_lease_is_acquired_or_left_is_seen_as_documented(scene: Scene, name: str) -> None:
    """What the table names comes out, in time; nothing stays claimed once the server is reached; the log says so."""
    mode, error, travel = MODES[name], None, scene.travel
    async with logging_kept() as logged:
        moved = travel.moved
        try:
            await travel.through(CALLS[name](scene), within=60)
        except BaseException as raised:  # noqa: BLE001 - also a cancellation is compared
            error = raised
        assert travel.moved - moved <= LIMITS[mode.when] + SLACK
        assert kind_of(error, mode) == mode.seen.partition(";")[0]
        assert logged.difference(mode) == (set(), set())
    scene.proxy.thaw()
    await scene.proxy.accept()
    if "there is no table" not in name:
        await travel.until(lambda: scene.observe.is_free(KEY), within=6)


def test_every_documented_fault_of_a_call_is_made() -> None:
    """The table has the calls that are made here, and no others."""
    assert set(CALLS) == set(MODES)
