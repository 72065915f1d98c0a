"""Observers and logging that raise what nobody expects of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from asyncpg_lease import Event, LeaseLostError, LeaseTable, acquire, lease
from asyncpg_lease.events import Observer
from tests.support import observe as seen

TTL = 1.0


def cancelled_observer(event: Event, /) -> None:
    """Raise what asking a cancelled future for its result raises."""
    raise asyncio.CancelledError(event.key)


def quiet_observer(event: Event, /) -> None:
    """Raise nothing: here it is the log that does."""


@pytest.fixture(params=["observer", "filter", "cancelled filter"])
def teller(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Observer]:
    """An observer that raises CancelledError; or one that does not, while a filter of the library's log raises."""
    if request.param == "observer":
        yield cancelled_observer
        return

    def refuse(_: logging.LogRecord) -> bool:
        message = "the filter is broken"
        raise ValueError(message) if request.param == "filter" else asyncio.CancelledError(message)

    caplog.set_level(logging.DEBUG, "asyncpg_lease")
    logger = logging.getLogger("asyncpg_lease")
    logger.addFilter(refuse)
    yield quiet_observer
    logger.removeFilter(refuse)


@pytest.fixture
async def complaints() -> list[dict[str, Any]]:
    """What comes out of callbacks of the test's loop."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: found.append(context))
    return found


async def test_teller_that_raises_does_not_stop_the_timer_of_all_leases(
    table: LeaseTable, teller: Observer, complaints: list[dict[str, Any]]
) -> None:
    """After a report that raised, that lease and another one are both renewed past their ttl."""
    async with (
        lease(table, "told", ttl=TTL, on_lost="flag", observer=teller) as told,
        lease(table, "other", ttl=TTL, on_lost="flag") as other,
    ):
        await asyncio.sleep(0.05)
        time.sleep(0.3)  # So that there is lateness to report
        await asyncio.sleep(1.5 * TTL)
        assert told.is_held
        assert other.is_held
    assert complaints == []


async def test_teller_that_raises_does_not_keep_a_loss_from_the_body(
    table: LeaseTable, teller: Observer, observe: seen.Observer, complaints: list[dict[str, Any]]
) -> None:
    """The body of a lost lease is cancelled, and the loss comes out of the block, whatever the report raises."""
    with pytest.raises(LeaseLostError) as caught:
        async with asyncio.timeout(5), lease(table, "key", ttl=TTL, observer=teller):
            await observe.hand_over("key")
            await asyncio.sleep(20)
    assert caught.value.reason == "taken_over"
    assert complaints == []


async def test_teller_that_raises_does_not_harm_acquire(
    table: LeaseTable, teller: Observer, observe: seen.Observer, complaints: list[dict[str, Any]]
) -> None:
    """A claim that was granted is handed over and released, whatever its report raises."""
    held = await acquire(table, "key", ttl=60, observer=teller)
    assert held.is_held
    await held.release()
    assert await observe.is_free("key")
    assert complaints == []
