"""What a run of the suite ran on; `summary` prints it."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support.loops import kind_of


@dataclass(slots=True)
class Notes:
    """The servers and the kinds of event loop that tests have met."""

    servers: set[str] = field(default_factory=set)
    loops: set[str] = field(default_factory=set)

    def note_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note the kind of an event loop."""
        self.loops.add(kind_of(loop))

    def lines(self) -> Iterator[str]:
        """Yield one line for each combination."""
        python = ".".join(platform.python_version_tuple()[:2])
        for server in sorted(self.servers) or ["none"]:
            for loop in sorted(self.loops) or ["none"]:
                yield f"ran: Python {python}, loop {loop}, server {server}, pooler none"


NOTES = pytest.StashKey[Notes]()
