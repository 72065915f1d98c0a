"""The statements of sql/, bound to a table's name, and what their rows mean."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pkgutil import get_data
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, TypeVar

from asyncpg_lease._driver import Statement, stamp_of, stamped, unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncpg_lease.events import How

__all__ = [
    "IDENTITY",
    "ClaimRow",
    "GuardRow",
    "LeaseInfo",
    "RenewRow",
    "State",
    "Statements",
    "TableName",
    "bind",
    "claim_row",
    "count_row",
    "guard_row",
    "info_row",
    "is_live",
    "key_range",
    "quote_name",
    "renew_rows",
    "revocation_row",
]

Outcome: TypeAlias = Literal["renewed", "busy", "lost"]
State: TypeAlias = Literal["held", "resting", "free"]

T = TypeVar("T")

logger = logging.getLogger("asyncpg_lease")

_TABLE = re.compile(r"\blease\b")
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_NAMES = (
    *("table", "claim", "renew", "release", "get", "list", "guard", "guard_first", "identity", "revoke"),
    *("floor_lay", "floor_wait", "floor_settle", "floor_raise", "prunable", "prune", "greatest", "lift", "lagging"),
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
_HOWS: Mapping[str, How | None] = {
    "fresh": "fresh",
    "taken_over": "taken_over",
    "joined": "joined",
    "unavailable": None,
    "resting": None,
}
_OUTCOMES: Mapping[str, Outcome] = {"renewed": "renewed", "busy": "busy", "lost": "lost"}
_STATES: Mapping[str, State] = {"held": "held", "resting": "resting", "free": "free"}
_TRUTHS = {"true": True, "false": False}
_LIVES = {"live": True, "over": False}
_SNAPSHOTS: Mapping[str, Literal["new", "old"]] = {"new": "new", "old": "old"}
_SURROGATES = range(0xD800, 0xE000)


def _read(name: str) -> str:
    text = get_data("asyncpg_lease", f"sql/{name}.sql")
    if text is None:
        msg = f"the installed package lacks sql/{name}.sql: install asyncpg-lease again"
        raise ImportError(msg)
    return _COMMENT.sub("", text.decode()).strip()


# At import, since a file must not be read inside an event loop.
_TEXTS = {name: _read(name) for name in _NAMES}

IDENTITY = stamped(_TEXTS["identity"])
"""The statement that tells which database a connection leads to; about no table."""


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """What the table says of a key, read at one moment.

    Attributes:
        key: the key.
        holder: who has it, or had it last.
        fence: the fence of that tenure.
        acquired_at: when that tenure began, by the server's clock, aware UTC.
        expires_at: when it runs out or ran out, by the server's clock, aware UTC.
        expires_in: seconds from the moment of reading to `expires_at`; negative where that is past.
        state: ``held`` (live), ``resting`` (released, kept shut by min_hold) or ``free``.
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
    state: State
    released_at: datetime | None
    revoked_at: datetime | None


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


class GuardRow(NamedTuple):
    """The answer of guard.sql; holder and fence are None where there is no row, an old snapshot may lack the latest."""

    live: bool
    holder: str | None
    fence: int | None
    revoked: bool
    snapshot: Literal["new", "old"]


class Statements(NamedTuple):
    """One table's statements."""

    claim: Statement
    renew: Statement
    release: Statement
    get: Statement
    list: Statement
    guard: Statement
    guard_first: Statement
    revoke: Statement
    floor_lay: Statement
    floor_wait: Statement
    floor_settle: Statement
    floor_raise: Statement
    prunable: Statement
    prune: Statement
    greatest: Statement
    lift: Statement
    lagging: Statement

    @classmethod
    def bound_to(cls, table: str) -> Statements:
        """Bind every statement to a quoted table name."""
        stamps = {name: stamp_of(_TEXTS[name], table) for name in cls._fields}
        return cls(**{name: Statement(bind(name, table, stamp), stamp) for name, stamp in stamps.items()})


def quote_name(*parts: str) -> str:
    """Quote an identifier of one or more parts so that any name is safe."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


@lru_cache(maxsize=256)
def bind(name: str, table: str, stamp: str = "stamp") -> str:
    """Return the statement of sql/<name>.sql for a quoted table name, without its comments, with its stamp."""
    # The stamp first, since a table may be named 'stamp', quotes included.
    text = _TEXTS[name].replace("'stamp'", f"'{stamp}'")
    # A function, since a name may hold what re would take for a group reference.
    return _TABLE.sub(lambda _: table, text)


class TableName:
    """The table's name, and its schema once that is known.

    An unqualified name is looked up in the search_path once, and qualified from then on: another connection's
    search_path must not lead to another table.
    """

    __slots__ = ("_on_found", "name", "schema", "statements")

    def __init__(self, name: str, schema: str | None, on_found: Callable[[str], None] | None = None) -> None:
        self._on_found = on_found
        self.name: str = name
        self.schema = schema
        self.statements: Statements = Statements.bound_to(self.quoted)

    def __str__(self) -> str:
        return self.quoted

    @property
    def quoted(self) -> str:
        """The name as SQL."""
        return quote_name(self.name) if self.schema is None else quote_name(self.schema, self.name)

    def resolve(self, schema: str) -> None:
        """Take note of the schema in which the table was found, unless that was known."""
        if self.schema is None:
            self.schema = schema
            self.statements = Statements.bound_to(self.quoted)
            logger.info("lease table %s was found by the search_path", self.quoted)
            if self._on_found is not None:
                self._on_found(schema)


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


def revocation_row(row: Sequence[object]) -> tuple[str, LeaseInfo]:
    """Read the row of revoke.sql: what was done, and the key's row; raises as `claim_row` does."""
    outcome, *info = row
    return _text(outcome), info_row(info)


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


def key_range(prefix: str) -> tuple[str, str | None]:
    """Return the least key with a prefix, and the key before which such keys end (None: nowhere).

    In the order of "C", that of the bytes, which for UTF-8 is that of the code points.
    """
    for end in range(len(prefix), 0, -1):
        following = ord(prefix[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= sys.maxunicode:
            return prefix, prefix[: end - 1] + chr(following)
    return prefix, None


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
