"""docs/explanation/failure-modes.md, while a lease is held: each fault is made, and what the job sees is compared."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from asyncpg_lease import Event, LeaseLostError, LeaseTable, lease
from asyncpg_lease.events import RenewFailed
from asyncpg_lease.testing import EmbeddedServer
from tests.faults.means import exhausted, stopped
from tests.faults.modes import KEY, SLACK, Faults, Mode, Scene, logging_kept, modes
from tests.support.leasing import Recorder, here, settle
from tests.support.statements import RENEW
from tests.support.travel import Travel

TTL = 20.0
MODES = modes("While a lease is held")
CRASH = "the server crashes and is back before the deadline"
LOCKED = "another session keeps the row locked"

EARLIEST = {"at the deadline": 0.51 * TTL, "with the next renewal": 0.0, "at the first turn": TTL}
LATEST = {"at the deadline": 0.9 * TTL, "with the next renewal": 0.39 * TTL, "at the first turn": TTL}
"""Seconds from the fault to when the body is cancelled, as the page says above its tables."""

faults = Faults()


def fail(_: Event) -> None:
    """Be an observer that is wrong."""
    raise ValueError


@faults.make
async def freeze(scene: Scene) -> AsyncIterator[None]:
    """The network freezes: nothing is delivered, nothing is closed, new links get no answer."""
    scene.proxy.freeze()
    yield


@faults.make
async def refuse(scene: Scene) -> AsyncIterator[None]:
    """All links are reset and new ones refused."""
    scene.proxy.refuse()
    scene.proxy.reset_links()
    yield


@faults.make
async def slow(scene: Scene) -> AsyncIterator[None]:
    """Answers take longer than the ttl."""
    scene.proxy.delay_replies = 2 * TTL
    yield


@faults.make
async def drop(scene: Scene) -> AsyncIterator[None]:
    """The answer to a renewal is lost, and its link with it."""
    scene.proxy.drop_reply(RENEW)
    yield


@faults.make
async def terminate(scene: Scene) -> AsyncIterator[None]:
    """The sessions are ended by an administrator."""
    assert await scene.observe.terminate_backends()
    yield


@faults.make
async def stop_backend(scene: Scene) -> AsyncIterator[None]:
    """The server's process for one connection stands still."""
    if sys.platform == "win32":
        pytest.skip("needs SIGSTOP")
    with stopped(*await scene.observe.backends()):
        yield


@faults.make
async def read_only(scene: Scene) -> AsyncIterator[None]:
    """The server turns read-only."""
    database = scene.observe.dsn.rpartition("/")[2]
    await scene.observe.connection.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    await scene.observe.terminate_backends()
    yield


@faults.make
async def rename(scene: Scene) -> AsyncIterator[None]:
    """The table is gone, or the right to update it."""
    await scene.observe.connection.execute("ALTER TABLE lease RENAME TO elsewhere")
    yield


@faults.make
async def lock(scene: Scene) -> AsyncIterator[None]:
    """Another session keeps the row locked."""
    async with scene.observe.locked(KEY):
        yield


@faults.make
async def exhaust(scene: Scene) -> AsyncIterator[None]:
    """The pool has no connection to spare."""
    async with exhausted(scene.pool):
        yield


@faults.make
async def block_shortly(scene: Scene) -> AsyncIterator[None]:
    """The event loop is blocked for 0.15 of the ttl or longer."""
    await scene.travel.block(0.15 * TTL)
    yield


@faults.make
async def block(scene: Scene) -> AsyncIterator[None]:
    """The event loop is blocked past the deadline."""
    await scene.travel.block(TTL)
    yield


@faults.make
async def hand_over(scene: Scene) -> AsyncIterator[None]:
    """The row is somebody else's."""
    await scene.observe.hand_over(KEY)
    yield


@faults.make
async def expire(scene: Scene) -> AsyncIterator[None]:
    """The row has run out, and nobody has it."""
    await scene.observe.expire(KEY)
    yield


@faults.make
async def delete(scene: Scene) -> AsyncIterator[None]:
    """The row is deleted."""
    await scene.observe.connection.execute("DELETE FROM lease")
    yield


@faults.make
async def revoke(scene: Scene) -> AsyncIterator[None]:
    """An operator revokes the lease."""
    await scene.table.revoke(KEY)
    yield


@faults.make
async def force(scene: Scene) -> AsyncIterator[None]:
    """An operator ends it by force."""
    await scene.table.revoke(KEY, force=True)
    yield


@faults.make
async def advance(scene: Scene) -> AsyncIterator[None]:
    """An operator advances all fences."""
    await scene.table.advance_fences(10)
    yield


@faults.make
async def raise_in_observer(scene: Scene) -> AsyncIterator[None]:
    """An observer raises."""
    async with lease(scene.table, "another", observer=fail):
        yield
    # It is told in another thread.
    settle(fail)


class Seen:
    """What became of a body: the reason it was cancelled for, and when."""

    def __init__(self) -> None:
        self.reason = "nothing"
        self.cancelled_at = 0.0
        self.moved = 0.0


async def work(table: LeaseTable, seen: Seen, entered: asyncio.Event, ttl: float, travel: Travel | None = None) -> None:
    """Hold the key for longer than the ttl."""
    told = Recorder()
    try:
        async with lease(table, KEY, ttl=ttl, observer=told):
            entered.set()
            try:
                await asyncio.sleep(1.1 * ttl)
            except asyncio.CancelledError:
                seen.cancelled_at = time.monotonic()
                if travel is not None:
                    seen.moved = travel.moved
                raise
    except LeaseLostError as error:
        seen.reason = error.reason
        if error.taken_by == error.holder:
            seen.reason += ", by the holder itself"
        cause = type(error.__cause__).__name__
        if cause == "TimeoutError":
            # The last try may have had no time for an answer: the one before it tells.
            cause = "".join(event.error.partition("(")[0] for event in told.of(RenewFailed)[-2:-1])
        if cause == "LeaseTableError":
            seen.reason += ", with the LeaseTableError as its cause"
        assert here().cancelling() == 0


def expected(mode: Mode) -> str:
    """Return what the table says that the job sees."""
    return mode.seen.partition(":")[0].replace("`", "")


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("name", [name for name in MODES if name != CRASH])
async def test_fault_while_a_lease_is_held_is_seen_as_documented(scene: Scene, name: str) -> None:
    """The job sees the loss that the table names, or none, in time, and the log says what is there."""
    mode, seen, entered, travel = MODES[name], Seen(), asyncio.Event(), scene.travel
    async with logging_kept() as logged:
        task = asyncio.create_task(work(scene.table, seen, entered, TTL, travel))
        await entered.wait()
        # The claim's connection has come back to the pool.
        await travel(0)
        started, moved = time.monotonic(), travel.moved
        async with faults[name](scene):
            # Inside the fault: leaving a block whose lease is lost needs no database.
            await travel.through(task, within=2 * TTL, rows=name != LOCKED)
        await travel.through(scene.table.aclose(), within=TTL)
    assert seen.reason == expected(mode)
    if mode.when:
        assert seen.cancelled_at - started >= EARLIEST[mode.when]
        assert seen.moved - moved <= LATEST[mode.when] + SLACK
    assert logged.difference(mode) == (set(), set())


@pytest.mark.slow("a server is started, ended at once and started again")
async def test_crash_of_the_server_while_a_lease_is_held_is_seen_as_documented(own_server: EmbeddedServer) -> None:
    """A server that was stopped at once and is back within the ttl costs no lease."""
    mode, seen, entered = MODES[CRASH], Seen(), asyncio.Event()
    async with logging_kept() as logged, asyncpg.create_pool(own_server.dsn, min_size=1, max_size=2) as pool:
        table = LeaseTable(pool)
        await table.create()
        task = asyncio.create_task(work(table, seen, entered, 8))
        await entered.wait()
        await asyncio.to_thread(own_server.restart_immediately)
        await task
        await table.aclose()
    assert seen.reason == expected(mode)
    assert logged.difference(mode) == (set(), set())


def test_every_documented_fault_is_made() -> None:
    """The table has the faults that are made here, and no others."""
    assert {*faults, CRASH} == set(MODES)
