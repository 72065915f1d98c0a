"""A loop that stood still: reported with how long, and never passed over where the lease ran out meanwhile."""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import pytest

from asyncpg_lease import Lease, LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Late, Lost, Released, ReleaseFailed, Renewed
from tests.conftest import MakePool
from tests.support.inside import choose_clock
from tests.support.leasing import Recorder, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE
from tests.support.travel import Travel

needs_a_clock_that_counts_sleep = pytest.mark.skipif(
    sys.platform == "win32", reason="the loop's clock is the library's"
)
KEY = "late"
TTL = 20.0
TICK = 1.0
"""Seconds from one look at the clock to the next: a twentieth of the ttl, a second at most."""


@pytest.mark.parametrize("before", [0.0, 1.5], ids=["before the first look", "later"])
@pytest.mark.parametrize("seconds", [5, 12, 15, 20, 30])
async def test_block_of_any_length_is_reported_with_it_and_ends_the_lease_past_its_deadline(
    *, table: LeaseTable, travel: Travel, caplog: pytest.LogCaptureFixture, seconds: float, before: float
) -> None:
    """Up to the deadline the lease is renewed as it is due; past it the body is told, and no renewal passes over it."""
    told = Recorder()
    lost: LeaseLostError | None = None
    try:
        async with lease(table, KEY, ttl=TTL, observer=told) as held:
            await travel(before)
            await travel.block(seconds)
            await travel(TTL / 3)
            assert held.is_held
    except LeaseLostError as error:
        lost = error
    if before + seconds < 0.9 * TTL:
        assert lost is None
        assert told.of(Renewed)
    else:
        assert lost is not None
        assert lost.reason == "stalled"
        assert not told.of(Renewed)
    # A look that was due in the block was late by the rest of it.
    blocked = max(event.blocked for event in told.of(Late))
    assert seconds - TICK <= blocked < seconds + 3
    (record, *_) = [record for record in caplog.records if "blocked" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert "blocked=" in record.getMessage()


@pytest.mark.parametrize("ttls", [(20, 60), (20, 20, 600)])
async def test_block_ends_the_leases_whose_deadline_it_passed_alone(
    table: LeaseTable, travel: Travel, ttls: tuple[float, ...]
) -> None:
    """Of several leases on a table each goes by its own deadline, and is told by its own measure."""
    told = Recorder()
    held = [await acquire(table, f"{KEY} {number}", ttl=ttl, observer=told) for number, ttl in enumerate(ttls)]
    others = [asyncio.create_task(_hold(one)) for one in held]
    await travel(1)
    await travel.block(24)
    await travel(2)
    short = {one.key for one, ttl in zip(held, ttls, strict=True) if ttl == 20}
    assert {one.key for one in held if not one.is_held} == short
    assert {event.key for event in told.of(Lost)} == short
    assert {event.key for event in told.of(Late)} == {
        one.key for one, ttl in zip(held, ttls, strict=True) if ttl / 10 < 23
    }
    for task in others:
        task.cancel()
    await asyncio.wait(others)


async def _hold(held: Lease) -> None:
    async with held:
        await asyncio.sleep(1000)


@pytest.mark.parametrize("seconds", [5, 10])
async def test_block_to_the_last_line_of_a_body_is_reported(table: LeaseTable, travel: Travel, seconds: float) -> None:
    """A body that never awaits, and ends before its deadline, is told that it kept its lease from being renewed."""
    told = Recorder()
    async with lease(table, KEY, ttl=TTL, observer=told):
        travel.stall(seconds)
    (late,) = told.of(Late)
    assert seconds - TICK <= late.blocked < seconds + 3
    assert told.of(Released)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("seconds", [6, 26])
async def test_block_during_the_exit_is_no_loss(
    make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, seconds: float
) -> None:
    """The body has ended: however late the release is heard of, nothing is lost."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    told = Recorder()

    async def work() -> None:
        async with lease(pool, KEY, ttl=TTL, observer=told):
            proxy.delay_replies = 4

    leaving = asyncio.create_task(work())
    await proxy.wait_for(RELEASE, count=proxy.count(RELEASE) + 1)
    assert not leaving.done()
    await travel.block(seconds)
    proxy.delay_replies = 0
    # Past its end the row has run out by itself.
    await travel.until(lambda: bool(told.of(Released) or told.of(ReleaseFailed)), within=TTL)
    await travel.through(leaving, within=TTL)
    assert not told.of(Lost)
    assert await observe.is_free(KEY)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(("ttl", "seconds"), [(20, 2), (2, 2.5)])
async def test_block_during_the_claim_counts_against_it(
    *, make_pool: MakePool, proxy: Proxy, observe: Observer, travel: Travel, ttl: float, seconds: float
) -> None:
    """Trust counts from before the claim was sent: a short block costs that much of it, a longer one the lease."""
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    proxy.forget()
    task = asyncio.create_task(acquire(pool, KEY, ttl=ttl))
    await proxy.wait_for(CLAIM)
    travel.stall(seconds)
    if seconds < ttl:
        held = await task
        assert held.remaining <= ttl - seconds
        await held.release()
    else:
        with pytest.raises(TimeoutError):
            await task
    await travel.until(lambda: observe.is_free(KEY), within=1)


@needs_a_clock_that_counts_sleep
@pytest.mark.parametrize("ttl", [20, 600, 86_400])
async def test_suspended_machine_past_the_deadline_is_noticed_within_a_second(
    table: LeaseTable, travel: Travel, ttl: float
) -> None:
    """No timer waits for as long as the lease: the clock is read each second, and the body told at once."""
    told = Recorder()
    woke = 0.0
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=ttl, observer=told) as held:
            await travel.suspend(ttl)
            woke = travel.moved
            assert not held.is_held
            await travel(60)
    assert travel.moved - woke <= TICK
    assert caught.value.reason == "stalled"
    assert not told.of(Renewed)
    assert 0.9 * ttl < told.of(Late)[0].blocked < ttl + 3


@needs_a_clock_that_counts_sleep
@pytest.mark.parametrize("ttl", [20, 600])
async def test_suspended_machine_before_the_deadline_renews_within_a_second(
    table: LeaseTable, travel: Travel, ttl: float
) -> None:
    """What was due meanwhile is sent as soon as the clock is read, and the gap is reported."""
    told = Recorder()
    async with lease(table, KEY, ttl=ttl, observer=told) as held:
        await travel.suspend(ttl / 2)
        await travel.until(lambda: told.of(Renewed), within=TICK + 0.1)
        assert held.remaining > 0.9 * ttl
    assert told.of(Late)


@pytest.mark.parametrize(("platform", "name"), [("linux", "CLOCK_BOOTTIME"), ("darwin", "CLOCK_MONOTONIC")])
@pytest.mark.parametrize("harm", ["none", "refused", "missing"])
def test_local_clock_is_the_platforms_that_counts_suspended_time_or_else_monotonic(
    monkeypatch: pytest.MonkeyPatch, platform: str, name: str, harm: str
) -> None:
    """Where the system refuses the clock, or Python does not know it, time.monotonic is what there is."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(time, name, 77, raising=False)
    if harm == "missing":
        monkeypatch.delattr(time, name)

    def read(clock: int) -> float:
        if harm == "refused":
            raise OSError
        return float(clock)

    monkeypatch.setattr(time, "clock_gettime", read)
    chosen = choose_clock()
    if harm == "none":
        assert chosen() == 77
    else:
        assert chosen is time.monotonic


def test_local_clock_elsewhere_is_monotonic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has one clock for it."""
    monkeypatch.setattr(sys, "platform", "win32")
    assert choose_clock() is time.monotonic
