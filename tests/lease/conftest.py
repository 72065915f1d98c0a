"""Fixtures of tests of observers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from asyncpg_lease.events import Notifier
from tests.support.inside import fresh_threads
from tests.support.leasing import settle
from tests.support.observers import Stuck, event
from tests.support.travel import Travel


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    """An observer that blocks, let go at the end at the latest."""
    stuck = Stuck()
    yield stuck
    stuck.let_go.set()
    settle(stuck)


@pytest.fixture
def few_threads() -> Iterator[None]:
    """No thread of an earlier test that waits for another event."""
    with fresh_threads():
        yield


@pytest.fixture
def stall() -> Callable[[float], None]:
    """Let so many seconds pass at once, with no server at hand."""
    return Travel(None).stall


@pytest.fixture
async def silent(stuck: Stuck) -> Notifier:
    """A notifier of one observer that blocks already."""
    notifier = Notifier(stuck)
    notifier.tell(event(0))
    await asyncio.to_thread(stuck.entered.wait, 5)
    return notifier
