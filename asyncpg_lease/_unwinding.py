"""How soon a body has to be over, for whatever of this library it waits for while it unwinds."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from asyncpg_lease._clock import local_time

__all__ = ["Surrounding", "come_out_of", "go_into", "time_to_unwind"]

OVERDUE = 0.8
"""Seconds that whoever is late is given: of a server that answers, a rollback or a release takes less."""


class Surrounding(Protocol):
    """A lease whose block is round the code that runs."""

    @property
    def is_inside(self) -> bool:
        """Whether its block was entered and not left yet."""

    @property
    def unwind_by(self) -> float | None:
        """When the server may let others in, by `local_time`; None unless the lease is lost, and not left yet."""


def go_into(lease: Surrounding) -> None:
    """Take note that this context is inside a lease's block now."""
    # Without those that were left in another context, which could not take them out of this one.
    _around.set((lease, *(each for each in _around.get() if each.is_inside)))


def come_out_of(lease: Surrounding) -> None:
    """Take note that this context has left it."""
    _around.set(tuple(each for each in _around.get() if each is not lease))


def time_to_unwind() -> float | None:
    """Return for how many seconds at most what runs in this context may still do so.

    Until then the server keeps everybody else out of each of the leases round it that are lost; None where none is.
    Whoever works on after that, as a body may that is only flagged, has a little time all the same.
    """
    ends = [end for lease in _around.get() if (end := lease.unwind_by) is not None]
    if not ends:
        return None
    left = min(ends) - local_time()
    return left if left > 0 else OVERDUE


_around: ContextVar[tuple[Surrounding, ...]] = ContextVar("asyncpg_lease.around", default=())
