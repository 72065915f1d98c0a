"""When bodies ran, on one monotonic clock of the host, and whether two of them ran at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations


@dataclass(slots=True)
class Body:
    """One run of one body: who ran it, from when to when (seconds of `time.monotonic`)."""

    who: str
    started: float
    ended: float = float("inf")

    def overlaps(self, other: Body) -> bool:
        """Tell whether both ran at the same time."""
        return self.started < other.ended and other.started < self.ended


class Bodies:
    """Collects bodies and finds those that overlap; processes of one host can be added by their times."""

    def __init__(self) -> None:
        self.all: list[Body] = []

    @contextmanager
    def running(self, who: str) -> Iterator[Body]:
        """Note the start and the end of the block as a body of `who`."""
        body = Body(who, time.monotonic())
        self.all.append(body)
        try:
            yield body
        finally:
            body.ended = time.monotonic()

    def add(self, who: str, started: float, ended: float) -> None:
        """Add a body that ran in another process of this host."""
        self.all.append(Body(who, started, ended))

    def overlapping(self) -> list[tuple[Body, Body]]:
        """Return every pair that ran at the same time; a test asserts that there is none."""
        return [(one, other) for one, other in combinations(self.all, 2) if one.overlaps(other)]
