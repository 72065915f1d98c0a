"""The runs of paused holders: which tenure writes by which path, and where its process is stopped.

One run is one tenure of a key of its own. A seed makes the plan, so that a run that failed can be had again.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Literal

from tests.fencing.writing import ISOLATIONS

Isolation = Literal["read_committed", "repeatable_read", "serializable"]

GUARDED = ("transaction", "guard", "sqlalchemy", "assertion")
"""These keep the successor out until the transaction has ended."""

FENCED = ("trigger", "condition")
"""These compare the fence, and let the successor begin."""

CONTROL = ("select", "raise_if_stopping")
"""These only look before they write, as one does who has not heard of fencing."""

PATHS = (*GUARDED, *FENCED, *CONTROL)

POINTS = {
    "before": "before the check",
    "checked": "check - write",
    "statement": "in a statement",
    "batch": "in a batch",
    "written": "write - commit",
}
"""Where a process is stopped, and what the table of results calls it."""

PARTS = 3
"""Statements in the batch that each tenure writes in one transaction."""

AT_ONCE = 24
"""Tenures that one process holds while it is stopped."""

TABLES = "CREATE TABLE plain_page (LIKE page INCLUDING ALL)"
"""Beside those of `tests.history.gather`: a page that no trigger fences."""

# Null locks nothing. In a subquery of its own it is waited for before the first row is looked at.
_WAITED = "(SELECT count(*) FROM (SELECT pg_advisory_xact_lock_shared($4::bigint)) AS waited) >= 0"
_WRITE = f"INSERT INTO written (key, fence, guarded) SELECT $1::text, $2::bigint, $3::bool WHERE {_WAITED}"
_FENCED_WRITE = (
    "WITH accepted AS (UPDATE {} SET last_fence = $2::bigint WHERE key = $1::text AND "
    + _WAITED
    + "{} RETURNING key) INSERT INTO written (key, fence, guarded) SELECT key, $2::bigint, $3::bool FROM accepted"
)


@dataclass(frozen=True, slots=True)
class Tenure:
    """One run.

    Attributes:
        number: Counts through the whole plan; also the advisory lock for which a statement waits.
        path: How the holder writes, one of PATHS.
        isolation: Its transaction's.
        point: Where its process is stopped, one of POINTS.
        ends: Whether a guarded transaction goes on after the stop ("itself"), or is ended while its process is still
            stopped ("server").
        ttl: Seconds; a short one runs out by itself, the row of any other is moved.
        heartbeat: Seconds; with short ones a renewal is due when the process goes on.
        snapshot: Whether the transaction has a snapshot before the check, older than what happens in the stop.
    """

    number: int
    path: str
    isolation: Isolation
    point: str
    ends: Literal["itself", "server"] = "itself"
    ttl: float = 30.0
    heartbeat: float | None = None
    snapshot: bool = False

    @property
    def key(self) -> str:
        """The key, nobody else's."""
        return f"job-{self.number}"

    @property
    def shuts(self) -> bool:
        """Whether a guard keeps the successor out while the process is stopped."""
        return self.path in GUARDED and self.point != "before"

    @property
    def waits_at(self) -> int | None:
        """The advisory lock that keeps the server in the middle of the holder's first statement."""
        return self.number if self.point == "statement" else None


def writing(path: str) -> str:
    """Return the statement that writes: $1 key, $2 fence, $3 guarded, $4 a lock to wait for; 0 rows: refused."""
    if path == "trigger":
        return _FENCED_WRITE.format("page", "")
    if path == "condition":
        return _FENCED_WRITE.format("plain_page", " AND last_fence <= $2::bigint")
    return _WRITE


def plan(rounds: int, seed: int) -> list[list[Tenure]]:
    """Return the batches: in each round every path, isolation and point once, in an order of the seed's."""
    choose = random.Random(seed)  # noqa: S311 - for tests
    numbers = itertools.count(1)
    batches = []
    for _ in range(rounds):
        every = list(itertools.product(PATHS, ISOLATIONS, POINTS))
        choose.shuffle(every)
        cuts = [every[start : start + AT_ONCE] for start in range(0, len(every), AT_ONCE)]
        # They would all wait for the one that runs out by itself, so these are together.
        short = choose.randrange(len(cuts))
        for index, cut in enumerate(cuts):
            batches.append([_tenure(choose, next(numbers), *each, short=index == short) for each in cut])
    return batches


def _tenure(choose: random.Random, number: int, path: str, isolation: str, point: str, *, short: bool) -> Tenure:
    tenure = Tenure(number, path, isolation, point)  # type: ignore[arg-type] # one of ISOLATIONS
    return Tenure(
        number,
        path,
        tenure.isolation,
        point,
        ends="server" if tenure.shuts and choose.random() < 0.5 else "itself",
        ttl=1.5 if short else 30.0,
        heartbeat=None if short or choose.random() < 0.7 else 0.1,
        snapshot=point == "before" and choose.random() < 0.5,
    )
