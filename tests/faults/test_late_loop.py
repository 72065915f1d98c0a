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
from tests.support.inside import clock
from tests.support.leasing import Recorder, until, warm
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.statements import CLAIM, RELEASE

KEY = "late"
TTL = 1.5
DEADLINE = 1.35
TICK = 0.125
"""Seconds from one look at the clock to the next: a twentieth of the ttl at most, or a quarter of the heartbeat."""


@pytest.mark.parametrize("before", [0.0, 0.1], ids=["before the first look", "later"])
@pytest.mark.parametrize("seconds", [0.4, 0.8, 1.2, 1.34, 1.36, 1.6, 2.2])
async def test_block_of_any_length_is_reported_with_it_and_ends_the_lease_past_its_deadline(
    table: LeaseTable, caplog: pytest.LogCaptureFixture, seconds: float, before: float
) -> None:
    """Up to the deadline the lease is renewed at once; past it the body is told, and no renewal passes over it."""
    told = Recorder()
    lost: LeaseLostError | None = None
    claimed = time.monotonic()
    entered = began = ended = 0.0
    try:
        async with lease(table, KEY, ttl=TTL, observer=told) as held:
            entered = time.monotonic()
            await asyncio.sleep(before)
            began = time.monotonic()
            time.sleep(seconds)
            ended = time.monotonic()
            await asyncio.sleep(0.3)
            assert held.is_held
    except LeaseLostError as error:
        lost = error
    if ended - entered > DEADLINE:
        assert lost is not None
    if lost is None:
        assert told.of(Renewed)
    else:
        # Not by less than the rule says.
        assert ended - claimed > DEADLINE - 0.3 or told.of(Renewed)
        assert lost.reason == "stalled"
        assert not told.of(Renewed)
    blocked = max(event.blocked for event in told.of(Late))
    assert ended - began - TICK < blocked < time.monotonic() - claimed
    (record, *_) = [record for record in caplog.records if "blocked" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert "blocked=" in record.getMessage()


@pytest.mark.parametrize("ttls", [(1.0, 3.0), (1.0, 1.0, 60.0)])
async def test_block_ends_the_leases_whose_deadline_it_passed_alone(table: LeaseTable, ttls: tuple[float, ...]) -> None:
    """Of several leases on a table each goes by its own deadline, and is told by its own measure."""
    told = Recorder()
    held = [await acquire(table, f"{KEY} {number}", ttl=ttl, observer=told) for number, ttl in enumerate(ttls)]
    others = [asyncio.create_task(_hold(one)) for one in held]
    await asyncio.sleep(0.05)
    time.sleep(1.2)
    await asyncio.sleep(0.1)
    short = {one.key for one, ttl in zip(held, ttls, strict=True) if ttl == 1}
    assert {one.key for one in held if not one.is_held} == short
    assert {event.key for event in told.of(Lost)} == short
    assert {event.key for event in told.of(Late)} == {
        one.key for one, ttl in zip(held, ttls, strict=True) if ttl / 10 < 1.1
    }
    for task in others:
        task.cancel()
    await asyncio.wait(others)


async def _hold(held: Lease) -> None:
    async with held:
        await asyncio.sleep(60)


@pytest.mark.parametrize("seconds", [0.5, 1.0])
async def test_block_to_the_last_line_of_a_body_is_reported(table: LeaseTable, seconds: float) -> None:
    """A body that never awaits, and ends before its deadline, is told that it kept its lease from being renewed."""
    told = Recorder()
    async with lease(table, KEY, ttl=2, observer=told):
        time.sleep(seconds)
    (late,) = told.of(Late)
    assert seconds - 0.1 < late.blocked < seconds + 1
    assert told.of(Released)


@pytest.mark.parametrize("seconds", [0.3, 1.3])
async def test_block_during_the_exit_is_no_loss(
    make_pool: MakePool, proxy: Proxy, table: LeaseTable, observe: Observer, seconds: float
) -> None:
    """The body has ended: however late the release is heard of, nothing is lost."""
    assert table.name
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    told = Recorder()
    async with lease(pool, KEY, ttl=1, observer=told):
        asyncio.get_running_loop().call_later(0.05, time.sleep, seconds)
        proxy.delay_replies = 0.1
    proxy.delay_replies = 0
    assert proxy.count(RELEASE)
    # Past its end the row has run out by itself.
    await until(lambda: told.of(Released) or told.of(ReleaseFailed))
    assert not told.of(Lost)
    assert await observe.is_free(KEY)


@pytest.mark.parametrize("seconds", [0.5, 1.3])
async def test_block_during_the_claim_counts_against_it(
    make_pool: MakePool, proxy: Proxy, table: LeaseTable, observe: Observer, seconds: float
) -> None:
    """Trust counts from before the claim was sent: a short block costs that much of it, a longer one the lease."""
    assert table.name
    pool = await make_pool(proxy.dsn)
    await warm(pool)
    proxy.forget()
    task = asyncio.create_task(acquire(pool, KEY, ttl=1))
    await proxy.wait_for(CLAIM)
    time.sleep(seconds)
    if seconds < 1:
        held = await task
        assert held.remaining < 1 - seconds
        await held.release()
    else:
        with pytest.raises(TimeoutError):
            await task
    await observe.until_free(KEY, within=1)


class Suspended:
    """A local clock that has jumped ahead, as it has after a suspended machine woke; the loop's timers have not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        for name in [name for name in sys.modules if name.startswith("asyncpg_lease.")]:
            if getattr(sys.modules[name], "local_time", None) is clock.local_time and name != clock.__name__:
                monkeypatch.setattr(f"{name}.local_time", self.read)

    def read(self) -> float:
        """Return the time."""
        return clock.local_time() + self.ahead


@pytest.mark.parametrize("ttl", [6.0, 600.0, 86_400.0])
async def test_suspended_machine_past_the_deadline_is_noticed_within_a_second(
    table: LeaseTable, monkeypatch: pytest.MonkeyPatch, ttl: float
) -> None:
    """No timer waits for as long as the lease: the clock is read each second, and the body told at once."""
    clock, told = Suspended(monkeypatch), Recorder()
    woke = 0.0
    with pytest.raises(LeaseLostError) as caught:
        async with lease(table, KEY, ttl=ttl, observer=told) as held:
            await asyncio.sleep(0.1)
            clock.ahead = ttl
            woke = time.monotonic()
            assert not held.is_held
            await asyncio.sleep(60)
    assert time.monotonic() - woke < 1.5
    assert caught.value.reason == "stalled"
    assert not told.of(Renewed)
    assert 0.9 * ttl < told.of(Late)[0].blocked < ttl + 1.5


@pytest.mark.parametrize("ttl", [6.0, 600.0])
async def test_suspended_machine_before_the_deadline_renews_within_a_second(
    table: LeaseTable, monkeypatch: pytest.MonkeyPatch, ttl: float
) -> None:
    """What was due meanwhile is sent as soon as the clock is read, and the gap is reported."""
    clock, told = Suspended(monkeypatch), Recorder()
    async with lease(table, KEY, ttl=ttl, observer=told) as held:
        await asyncio.sleep(0.1)
        clock.ahead = ttl / 2
        await until(lambda: told.of(Renewed), within=1.5)
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
    chosen = clock._suspend_aware_clock()
    if harm == "none":
        assert chosen() == 77
    else:
        assert chosen is time.monotonic


def test_local_clock_elsewhere_is_monotonic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has one clock for it."""
    monkeypatch.setattr(sys, "platform", "win32")
    assert clock._suspend_aware_clock() is time.monotonic
