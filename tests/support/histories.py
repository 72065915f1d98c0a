"""What runs with several processes have in common to judge by: who ran at once, and in which order was written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Protocol, TypeVar


class Ran(Protocol):
    """A body: from its first line to its last, by the one monotonic clock of the host."""

    @property
    def key(self) -> str:
        """The key."""

    @property
    def started(self) -> float:
        """Its first line."""

    @property
    def ended(self) -> float:
        """Its last line."""


class Accepted(Protocol):
    """A write that was accepted; numbers rise in the order of acceptance."""

    @property
    def number(self) -> int:
        """Its place in that order."""

    @property
    def key(self) -> str:
        """The key."""

    @property
    def fence(self) -> int:
        """Its fence."""


class OfKey(Protocol):
    """Whatever belongs to a key."""

    @property
    def key(self) -> str:
        """The key."""


BodyT = TypeVar("BodyT", bound=Ran)
WriteT = TypeVar("WriteT", bound=Accepted)
T = TypeVar("T", bound=OfKey)


def by_key(things: Iterable[T]) -> Mapping[str, list[T]]:
    """Return each key's things, in the order in which they come."""
    keys: dict[str, list[T]] = defaultdict(list)
    for thing in things:
        keys[thing.key].append(thing)
    return keys


def overlaps(bodies: Iterable[BodyT]) -> list[tuple[BodyT, BodyT]]:
    """Return every two bodies of a key that ran at once, the one that began first before the other."""
    found = []
    for of_key in by_key(sorted(bodies, key=lambda body: body.started)).values():
        running: list[BodyT] = []
        for body in of_key:
            running = [other for other in running if other.ended > body.started]
            found += [(other, body) for other in running]
            running.append(body)
    return found


def falling(writes: Iterable[WriteT]) -> list[tuple[WriteT, WriteT]]:
    """Return each accepted write and the next one of its key that has a lower fence."""
    keys = by_key(sorted(writes, key=lambda write: write.number))
    return [pair for of_key in keys.values() for pair in pairwise(of_key) if pair[1].fence < pair[0].fence]
