"""The errors of asyncpg_lease.

::

    LeaseError
    ├── LeaseUnavailableError      somebody else holds the key
    │   └── LeaseTimeoutError      and still did when the wait was over (also a TimeoutError)
    ├── LeaseLostError             the lease is gone, or no longer certain
    ├── LeaseSnapshotError         a transaction cannot see whether the lease is live: it began too early
    └── LeaseTableError            no table, a table of another shape, or no right to use it

Each keeps what it knows as attributes, says it in its message, and can be pickled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__all__ = [
    "LeaseError",
    "LeaseLostError",
    "LeaseSnapshotError",
    "LeaseTableError",
    "LeaseTimeoutError",
    "LeaseUnavailableError",
    "LossReason",
]

LossReason: TypeAlias = Literal["taken_over", "expired", "revoked", "deleted", "unreachable", "stalled"]
"""Why a lease was lost.

``taken_over``: another tenure is in the row. ``expired``: the row ran out and nobody has it. ``deleted``:
there is no row. ``unreachable``: no renewal was confirmed before the local deadline. ``stalled``: the same,
because the event loop or the whole process stood still. ``revoked``: an operator asked to give it up, or ended it.
"""

_LOSSES: Mapping[LossReason, str] = {
    "taken_over": "another tenure has the key",
    "expired": "the row ran out",
    "revoked": "an operator wants the key",
    "deleted": "the row is gone",
    "unreachable": "no renewal was confirmed in time",
    "stalled": "the event loop or the process stood still for too long",
}


class LeaseError(Exception):
    """Base of every error that this library raises on its own account."""

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild without `__init__`, whose arguments are not the message; notes come along."""
        return _rebuild, (type(self), self.args), vars(self)


def _rebuild(kind: type[LeaseError], args: tuple[object, ...]) -> LeaseError:
    error = kind.__new__(kind)
    # OSError, above TimeoutError, leaves this to an __init__.
    error.args = args
    return error


class LeaseUnavailableError(LeaseError):
    """Somebody else holds the key, or a released key still rests under its min_hold.

    Attributes:
        key: the key that was asked for.
        retry_after: seconds until the incumbent's row runs out unless it is renewed; 0.0: it is over
            already, but a guarded transaction keeps the key shut, or another contender was quicker; None where a
            race hid the incumbent.
        holder: the incumbent's holder, None where a race hid it.
        fence: the incumbent's fence, None where a race hid it.
        expires_at: when the incumbent's row runs out, by the server's clock; None where a race hid it.
        resting: whether the incumbent has released it, and its min_hold keeps the key shut.
    """

    def __init__(  # noqa: PLR0913 - each is an attribute
        self,
        key: str,
        retry_after: float | None = None,
        *,
        holder: str | None = None,
        fence: int | None = None,
        expires_at: datetime | None = None,
        resting: bool = False,
    ) -> None:
        self.key = key
        self.resting = resting
        self.retry_after: float | None = None if retry_after is None else max(retry_after, 0.0)
        self.holder = holder
        self.fence = fence
        self.expires_at = expires_at
        super().__init__(self._message())

    def _message(self) -> str:
        if self.holder is None:
            return f"lease {self.key!r} is unavailable: another contender was quicker; try again, or pass wait="
        if self.retry_after == 0:
            return (
                f"lease {self.key!r} is unavailable: {self.holder!r} with fence {self.fence} has it no longer, but a"
                " guarded transaction keeps the key shut, or another contender was quicker; try again, or pass wait="
            )
        left = None if self.retry_after is None else f"{self.retry_after:.3f} s more"
        if self.resting:
            until = "" if left is None else f" for {left}"
            return (
                f"lease {self.key!r} is unavailable: {self.holder!r} with fence {self.fence} released it,"
                f" and it rests under its min_hold{until}; try again later, or pass wait="
            )
        until = "" if left is None else f" for {left} unless renewed"
        return (
            f"lease {self.key!r} is unavailable: {self.holder!r} has it with fence {self.fence}{until};"
            " try again later, or pass wait="
        )


class LeaseTimeoutError(LeaseUnavailableError, TimeoutError):
    """The key was still not to be had when the wait was over.

    The last try's driver error, where there was one, is the ``__cause__``.
    """

    def _message(self) -> str:
        if self.holder is None:
            return f"lease {self.key!r} was not acquired before the wait was over; no incumbent was seen"
        shut = (
            ", which is over: docs/explanation/fencing.md tells how to find who keeps it shut"
            if self.retry_after == 0
            else ""
        )
        return (
            f"lease {self.key!r} was not acquired before the wait was over:"
            f" {self.holder!r} was the last seen to have it, with fence {self.fence}{shut}"
        )


class LeaseLostError(LeaseError):
    """The lease is gone, nothing says any more that it is there, or it is wanted back: the job has to stop.

    Whatever the job writes now must carry the fence, so that it can be refused. The last error of the
    database, where one stood behind the loss, is the ``__cause__``; with the reason ``revoked`` it is a TimeoutError
    where the body had not ended in its `drain`.

    Attributes:
        key: the lease's key.
        holder: the holder that lost it.
        fence: the fence of the tenure that is over.
        reason: ``taken_over`` (another tenure is in the row), ``expired`` (the row ran out and nobody has it),
            ``deleted`` (there is no row), ``unreachable`` (no renewal was confirmed in time), ``stalled`` (the
            same, because the event loop or the process stood still) or ``revoked`` (an operator asked to give it up,
            or ended it by force and nobody has the key yet).
        taken_by: the holder that has the key now, where that is known.
    """

    def __init__(self, key: str, holder: str, fence: int, reason: LossReason, *, taken_by: str | None = None) -> None:
        self.key = key
        self.holder = holder
        self.fence = fence
        self.reason: LossReason = reason
        self.taken_by = taken_by
        whose = f"lease {key!r} of {holder!r} with fence {fence}"
        if reason == "revoked":
            super().__init__(
                f"{whose} is revoked: an operator wants the key, or has ended the tenure; end the job, whose clean-up"
                " may write for as long as is_held is true"
            )
            return
        by = "" if taken_by is None else f" ({taken_by!r})"
        what = _LOSSES[reason]
        if taken_by == holder:
            what, by = "its own holder has another fence: a new tenure, or all fences were advanced", ""
        super().__init__(
            f"{whose} is lost: {reason}, {what}{by}; stop the job, its further writes must be refused by their fence"
        )


class LeaseSnapshotError(LeaseError):
    """A guard came too late in its transaction, whose snapshot is older than the lease's row.

    Under REPEATABLE READ and SERIALIZABLE a transaction sees what was there at its first statement. A renewal since
    then is enough: whether the lease is live cannot be told in this transaction. It says nothing of a loss.

    Attributes:
        key: the lease's key.
        holder: the lease's holder.
        fence: the lease's fence.
    """

    def __init__(self, key: str, holder: str, fence: int) -> None:
        self.key = key
        self.holder = holder
        self.fence = fence
        super().__init__(
            f"lease {key!r} of {holder!r} with fence {fence}: the transaction's snapshot is older than the lease's"
            " row; roll back, begin anew, and guard in the first statement, or use held.transaction()"
        )


class LeaseTableError(LeaseError):
    """The lease table is missing, has another shape, or may not be used by this role.

    Attributes:
        table: the table's name as it was looked for.
        problem: what is wrong, and what to run.
    """

    def __init__(self, table: str, problem: str) -> None:
        self.table = table
        self.problem = problem
        super().__init__(f"lease table {table}: {problem}")
