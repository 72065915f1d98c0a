"""Observers and logging that raise what nobody expects of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from asyncpg_lease import Event, LeaseLostError, LeaseTable, acquire, lease
from tests.support import observe as seen
from tests.support.leasing import settle
from tests.support.travel import Travel

TTL = 20.0


class Teller:
    """An observer that raises CancelledError; or one that does not, while a filter of the library's log raises.

    Attributes:
        raised: How often one of them has raised.
    """

    def __init__(self, raises: type[BaseException] | None) -> None:
        self.raised = 0
        self._raises = raises

    def __call__(self, event: Event, /) -> None:
        """Raise, or leave that to the log."""
        if self._raises is not None:
            self.count()
            raise self._raises(event.key)

    def count(self) -> None:
        """Count that something raises."""
        self.raised += 1


@pytest.fixture(params=["observer", "filter", "cancelled filter"])
def teller(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Teller]:
    """What raises: asking a cancelled future for its result does so too, with CancelledError."""
    if request.param == "observer":
        yield Teller(asyncio.CancelledError)
        return

    teller = Teller(None)

    def refuse(_: logging.LogRecord) -> bool:
        teller.count()
        message = "the filter is broken"
        raise ValueError(message) if request.param == "filter" else asyncio.CancelledError(message)

    caplog.set_level(logging.DEBUG, "asyncpg_lease")
    logger = logging.getLogger("asyncpg_lease")
    logger.addFilter(refuse)
    yield teller
    logger.removeFilter(refuse)


@pytest.fixture
async def complaints() -> list[dict[str, Any]]:
    """What comes out of callbacks of the test's loop."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: found.append(context))
    return found


async def test_teller_that_raises_does_not_stop_the_timer_of_all_leases(
    table: LeaseTable, teller: Teller, complaints: list[dict[str, Any]], travel: Travel
) -> None:
    """After a report that raised, that lease and another one are both renewed past their ttl."""
    async with (
        lease(table, "told", ttl=TTL, on_lost="flag", observer=teller) as told,
        lease(table, "other", ttl=TTL, on_lost="flag") as other,
    ):
        # So that there is lateness to report.
        await travel.block(5)
        await travel(TTL)
        settle(teller)
        assert teller.raised > 1
        assert told.is_held
        assert other.is_held
    assert complaints == []


async def test_teller_that_raises_does_not_keep_a_loss_from_the_body(
    table: LeaseTable, teller: Teller, observe: seen.Observer, complaints: list[dict[str, Any]], travel: Travel
) -> None:
    """The body of a lost lease is cancelled, and the loss comes out of the block, whatever the report raises."""

    async def hold() -> None:
        async with lease(table, "key", ttl=TTL, observer=teller):
            await observe.hand_over("key")
            await asyncio.sleep(1000)

    with pytest.raises(LeaseLostError) as caught:
        await travel.through(hold(), within=TTL)
    settle(teller)
    assert teller.raised > 1
    assert caught.value.reason == "taken_over"
    assert complaints == []


async def test_teller_that_raises_does_not_harm_acquire(
    table: LeaseTable, teller: Teller, observe: seen.Observer, complaints: list[dict[str, Any]]
) -> None:
    """A claim that was granted is handed over and released, whatever its report raises."""
    held = await acquire(table, "key", ttl=60, observer=teller)
    assert held.is_held
    await held.release()
    assert await observe.is_free("key")
    settle(teller)
    assert teller.raised > 1
    assert complaints == []
