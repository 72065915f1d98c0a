"""Errors of the driver's, or of a connection class, that cannot be shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, LeaseTimeoutError, acquire, lease
from asyncpg_lease.events import Acquired, Lost, Released, ReleaseFailed, Renewed, RenewFailed, WaitingFailed
from tests.conftest import MakePool
from tests.support.inside import describe
from tests.support.leasing import Recorder
from tests.support.travel import Travel

KEY = "key"


class UnspeakableError(OSError):
    """One whose repr raises."""

    def __repr__(self) -> str:
        """Raise."""
        message = "no repr"
        raise ValueError(message)


class Failing(asyncpg.Connection):
    """A connection whose statements fail while it is told so."""

    fails = False

    async def fetch(
        self,
        query: str,
        *args: object,
        timeout: float | None = None,  # noqa: ASYNC109 - the driver's own
        record_class: type[asyncpg.Record] | None = None,
    ) -> list[Any]:
        """Fail, or run the statement."""
        if self.fails:
            raise UnspeakableError
        return await super().fetch(query, *args, timeout=timeout, record_class=record_class)


@pytest.fixture
async def failing(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> LeaseTable:
    """A table that can be made to fail."""
    monkeypatch.setattr(Failing, "fails", False)
    table = LeaseTable(await make_pool(connection_class=Failing), poll=1)
    await table.create()
    return table


def kinds(recorder: Recorder) -> Sequence[type[object]]:
    """Return what was told."""
    return [type(event) for event in recorder.events]


@pytest.mark.slow("takes half a second or so")
async def test_error_without_a_repr_is_told_by_its_type_while_a_call_waits(failing: LeaseTable, travel: Travel) -> None:
    """The call goes on waiting, and ends with its own error."""
    recorder = Recorder()
    Failing.fails = True
    with pytest.raises(LeaseTimeoutError) as caught:
        await travel.through(acquire(failing, KEY, wait=2, observer=recorder), within=4)
    assert caught.value.__notes__ == ["the last try failed: UnspeakableError(...)"]
    assert {event.error for event in recorder.of(WaitingFailed)} == {"UnspeakableError(...)"}


async def test_error_without_a_repr_does_not_end_the_heartbeat(failing: LeaseTable, travel: Travel) -> None:
    """The renewal is tried again, and succeeds once the error is gone."""
    recorder = Recorder()
    async with lease(failing, KEY, ttl=30, observer=recorder) as held:
        Failing.fails = True
        await travel.until(lambda: recorder.of(RenewFailed), within=15)
        Failing.fails = False
        await travel.until(lambda: recorder.of(Renewed), within=5)
        assert held.is_held
    assert recorder.of(RenewFailed)[0].error == "UnspeakableError(...)"
    assert kinds(recorder)[0] is Acquired
    assert kinds(recorder)[-1] is Released


@pytest.mark.slow("takes half a second or so")
async def test_error_without_a_repr_is_the_cause_of_a_loss(failing: LeaseTable, travel: Travel) -> None:
    """The lease is lost in time, and the loss is told."""
    recorder = Recorder()

    async def hold() -> None:
        async with lease(failing, KEY, ttl=10, observer=recorder):
            Failing.fails = True
            await asyncio.sleep(1000)

    with pytest.raises(LeaseLostError) as caught:
        await travel.through(hold(), within=10)
    assert caught.value.reason == "unreachable"
    assert [event.error for event in recorder.of(Lost)] == ["UnspeakableError(...)"]


async def test_release_that_failed_says_that_the_row_runs_out_by_itself(failing: LeaseTable, travel: Travel) -> None:
    """Its error begins with the type of what was the matter, and says what comes of it."""
    recorder = Recorder()
    held = await acquire(failing, KEY, ttl=3, observer=recorder)
    Failing.fails = True
    releasing = asyncio.create_task(held.release())
    await travel.until(lambda: recorder.of(ReleaseFailed), within=5)
    await releasing
    assert [event.error for event in recorder.of(ReleaseFailed)] == [
        "UnspeakableError(...); the row runs out by itself"
    ]


def test_error_is_described_by_its_repr() -> None:
    """Where it has one that works; one that asks a cancelled future has none."""

    class CancelledReprError(ValueError):
        def __repr__(self) -> str:
            raise asyncio.CancelledError

    assert describe(ValueError("a")) == "ValueError('a')"
    assert describe(CancelledReprError()) == "CancelledReprError(...)"
