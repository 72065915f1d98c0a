"""What the statements' rows say, read by position."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

from asyncpg_lease._driver import unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncpg_lease._options import LeaseState
    from asyncpg_lease.events import How

__all__ = [
    "ClaimRow",
    "GuardRow",
    "LeaseInfo",
    "ReleaseRow",
    "RenewRow",
    "RevocationOutcome",
    "claim_row",
    "count_row",
    "guard_row",
    "info_row",
    "is_live",
    "release_row",
    "renew_rows",
    "revocation_row",
]

Outcome: TypeAlias = Literal["renewed", "busy", "lost"]

RevocationOutcome: TypeAlias = Literal[
    "requested", "ended", "already_revoked", "other_tenure", "resting", "free", "unknown"
]
"""What a revocation did, or why it did nothing.

``requested``: the holder is asked to give the key up, and learns of it by its next renewal. ``ended``: by force, the
row has run out. ``already_revoked``: its holder was asked before, and has not left yet. ``other_tenure``: the tenure
with the given fence is over, and the row has another one. ``resting``: released already, and kept shut by its
min_hold. ``free``: nobody has the key. ``unknown``: nobody ever had it, or its row was pruned.
"""

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
_HOWS: Mapping[str, How | None] = {
    "free": "free",
    "taken_over": "taken_over",
    "joined": "joined",
    "unavailable": None,
    "resting": None,
}
_OUTCOMES: Mapping[str, Outcome] = {"renewed": "renewed", "busy": "busy", "lost": "lost"}
_STATES: Mapping[str, LeaseState] = {"held": "held", "resting": "resting", "free": "free"}
_REVOCATIONS: Mapping[str, RevocationOutcome | None] = {
    "requested": "requested",
    "ended": "ended",
    "already_revoked": "already_revoked",
    "other_tenure": "other_tenure",
    "resting": "resting",
    "free": "free",
    "raced": None,
}
_TRUTHS = {"true": True, "false": False}
_LIVES = {"live": True, "over": False}
_SNAPSHOTS: Mapping[str, Literal["new", "old"]] = {"new": "new", "old": "old"}


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """What the table says of a key, read at one moment. As text it is one readable line.

    Attributes:
        key: the key.
        holder: who has it, or had it last.
        fence: the fence of that tenure.
        acquired_at: when that tenure began, by the server's clock, aware UTC.
        expires_at: when it runs out or ran out, by the server's clock, aware UTC.
        expires_in: seconds from the moment of reading to `expires_at`; negative where that is past.
        state: ``held`` (live), ``resting`` (released, kept shut by min_hold) or ``free``; the last also where it was
            released, and the server's clock has stepped back so that `expires_at` is in the future again.
        released_at: when its holder left it in order, by the server's clock, aware UTC; None while it is held, and for
            ever after a crash or a loss: a free key without it has run out, at `expires_at`.
        revoked_at: when its holder was first asked to give it up, by the server's clock, aware UTC; None: it was not.
    """

    key: str
    holder: str
    fence: int
    acquired_at: datetime
    expires_at: datetime
    expires_in: float
    state: LeaseState
    released_at: datetime | None
    revoked_at: datetime | None

    def __str__(self) -> str:
        """Say who has the key and for how long, or since when nobody has it."""
        who = f"{self.holder!r} with fence {self.fence}"
        if self.state == "held":
            asked = "" if self.revoked_at is None else f", asked to give it up at {_second(self.revoked_at)}"
            return f"lease {self.key!r} is held by {who}, expires in {self.expires_in:.1f} s{asked}"
        if self.state == "resting":
            return f"lease {self.key!r} rests for {self.expires_in:.1f} s more, last held by {who}"
        if self.released_at is None:
            return f"lease {self.key!r} is free, expired at {_second(self.expires_at)}, last held by {who}"
        return f"lease {self.key!r} is free, released at {_second(self.released_at)}, last held by {who}"


def _second(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


class ClaimRow(NamedTuple):
    """The answer of claim.sql; `how` is None where somebody else holds the key, or it is `resting`."""

    how: How | None
    holder: str
    fence: int
    acquired_at: datetime
    expires_at: datetime
    expires_in: float
    before: str | None
    resting: bool = False


class RenewRow(NamedTuple):
    """The answer of renew.sql for one tenure; None is what there is not: a row, or a new expiry.

    `revoked` is the word of the row's own tenure, whoever that is.
    """

    outcome: Outcome
    holder: str | None
    fence: int | None
    expires_at: datetime | None
    revoked: bool


class ReleaseRow(NamedTuple):
    """The answer of release.sql for a tenure that was live; `shut_for`: None where its holder was not asked for it."""

    shut_for: float | None


class GuardRow(NamedTuple):
    """The answer of guard.sql; holder and fence are None where there is no row, an old snapshot may lack the latest."""

    live: bool
    holder: str | None
    fence: int | None
    revoked: bool
    snapshot: Literal["new", "old"]


def claim_row(row: Sequence[object]) -> ClaimRow:
    """Read a row of claim.sql, by position.

    Raises:
        TypeError: codecs of the pool's own for text, int8 or float8 have made something else of it.
    """
    how, holder, fence, acquired, expires, left, before = row
    return ClaimRow(
        _word(_HOWS, how),
        _text(holder),
        _number(int, fence),
        _moment(acquired),
        _moment(expires),
        _number(float, left),
        None if before is None else _text(before),
        how == "resting",
    )


def count_row(row: Sequence[object]) -> tuple[int, ...]:
    """Read a row of whole numbers; raises as `claim_row` does."""
    return tuple(_number(int, value) for value in row)


def guard_row(row: Sequence[object]) -> GuardRow:
    """Read the row of guard.sql; raises as `claim_row` does."""
    live, holder, fence, revoked, snapshot = row
    return GuardRow(
        _word(_LIVES, live),
        None if holder is None else _text(holder),
        None if fence is None else _number(int, fence),
        _word(_TRUTHS, revoked),
        _word(_SNAPSHOTS, snapshot),
    )


def release_row(row: Sequence[object]) -> ReleaseRow:
    """Read the row of release.sql; raises as `claim_row` does."""
    _, shut_for = row
    return ReleaseRow(None if shut_for is None else _number(float, shut_for))


def is_live(row: Sequence[object]) -> bool:
    """Read the row of guard_first.sql; raises as `claim_row` does."""
    (live,) = row
    return _word(_LIVES, live)


def info_row(row: Sequence[object]) -> LeaseInfo:
    """Read a row of get.sql or list.sql; raises as `claim_row` does."""
    key, holder, fence, acquired, expires, left, state, released, revoked = row
    return LeaseInfo(
        _text(key),
        _text(holder),
        _number(int, fence),
        _moment(acquired),
        _moment(expires),
        _number(float, left),
        _word(_STATES, state),
        None if released is None else _moment(released),
        None if revoked is None else _moment(revoked),
    )


def revocation_row(row: Sequence[object]) -> tuple[RevocationOutcome | None, LeaseInfo]:
    """Read the row of revoke.sql: what was done (None: a race hid it), and the row; raises as `claim_row` does."""
    outcome, *info = row
    return _word(_REVOCATIONS, outcome), info_row(info)


def renew_rows(rows: Sequence[Sequence[object]]) -> list[RenewRow]:
    """Read the rows of renew.sql, which come in the order asked; raises as `claim_row` does."""
    return [
        RenewRow(
            _word(_OUTCOMES, outcome),
            None if holder is None else _text(holder),
            None if fence is None else _number(int, fence),
            None if expires is None else _moment(expires),
            _word(_TRUTHS, revoked),
        )
        for _, outcome, holder, fence, expires, revoked in rows
    ]


def _word(words: Mapping[str, T], value: object) -> T:
    """Look an answer up; one that is none of them must never pass for one of them."""
    word = _text(value)
    if word not in words:
        raise unreadable(value)
    return words[word]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise unreadable(value)
    return value


def _number(kind: Callable[[str], T], value: object) -> T:
    try:
        return kind(value)  # type: ignore[arg-type] # what cannot be made a number is what this is for
    except (TypeError, ValueError):
        raise unreadable(value) from None


def _moment(epoch: object) -> datetime:
    """Return an aware datetime, clamped: an operator may have written infinity or the year 12000."""
    seconds = _number(float, epoch)
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return _LATEST if seconds > 0 else _EARLIEST
