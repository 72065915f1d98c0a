"""What tests of observers share: one that blocks, events that can be told apart, and what is seen of both."""

from __future__ import annotations

import logging
import threading

import pytest

from asyncpg_lease import Event
from asyncpg_lease.events import Released


def event(number: int) -> Released:
    """Make an event that can be told from others."""
    return Released(key=f"k{number}", holder="h", fence=number, held_for=1.0)


def threads() -> set[threading.Thread]:
    """Return the threads in which observers are called, idle ones too."""
    return {thread for thread in threading.enumerate() if thread.name == "asyncpg_lease:observers"}


def logged(caplog: pytest.LogCaptureFixture, message: str) -> list[logging.LogRecord]:
    """Return the records that begin with a message."""
    return [record for record in caplog.records if record.getMessage().startswith(message)]


class Stuck:
    """An observer that does not return until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.let_go = threading.Event()
        self.told: list[Event] = []

    def __call__(self, event: Event, /) -> None:
        """Wait, then keep the event."""
        self.entered.set()
        self.let_go.wait(8)
        self.told.append(event)
