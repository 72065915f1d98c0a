"""What must hold of a run with a paused holder, as pure functions of what was seen.

A write is stale if it is committed after a successor's committed write of a higher fence for the same key. Which of two
transactions committed first is decided by sight alone. All writes are inserted into a table that nobody updates, and
the successor looks at it twice: in its own transaction, as the last thing before COMMIT, and right after COMMIT has
been answered. A snapshot shows a transaction if and only if that had committed before the snapshot was taken. So

- what the look after the commit did not show, and is there in the end, was committed after the successor: stale;
- what the look before the commit showed was committed before the successor: not stale;
- what came between the two looks may be either: "close". No guarded path may have that, and no control is charged
  with it.

The successor looks under READ COMMITTED, so that each look has a snapshot of its own, and PostgreSQL's serializable
transactions take no notice of it. A row of counters that everybody updates would give an order too, but it would
be a guard itself: above READ COMMITTED the later writer gets 40001 for it, and the control could not fail. Times of
commits are no order where two of them are close, and have to be switched on in the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.fencing.paused_tenures import CONTROL, GUARDED, PARTS, PATHS, POINTS, Tenure
from tests.fencing.writing import ISOLATIONS


class Write(NamedTuple):
    """A row that was written in the end."""

    number: int
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What was seen of one run.

    Attributes:
        tenure: What it was to be.
        fence: The holder's.
        outcome: What the holder says: "committed", "refused" (for certain), or "broken off".
        taken_by: The successor's fence.
        refused: Whether the successor was refused first, although the lease had run out.
        granted_in_stop: Whether it began while the holder's process was stopped.
        before: The writes that the successor saw right before its COMMIT.
        after: Those that it saw right after it.
        final: All writes of the key, seen when everybody had ended.
    """

    tenure: Tenure
    fence: int
    outcome: str
    taken_by: int
    refused: bool
    granted_in_stop: bool
    before: frozenset[int]
    after: frozenset[int]
    final: tuple[Write, ...]

    @property
    def stale(self) -> bool:
        """Whether a lower fence was committed after the successor's, for certain."""
        return any(write.fence < self.taken_by and write.number not in self.after for write in self.final)

    @property
    def close(self) -> bool:
        """Whether a lower fence was committed while the successor committed."""
        late = self.after - self.before
        return any(write.fence < self.taken_by and write.number in late for write in self.final)

    @property
    def ended_by_server(self) -> bool:
        """Whether the transaction that kept the successor out had ended when its process went on."""
        return self.refused and self.granted_in_stop


def faults(history: History) -> Iterator[str]:
    """Yield what must not be in any run, and for all but the control what is stale."""
    guarded = history.tenure.path not in CONTROL
    if guarded and history.stale:
        yield "stale: a lower fence was committed after the successor's"
    if guarded and history.close:
        yield "close: a lower fence was committed while the successor committed"
    if history.taken_by <= history.fence:
        yield f"the successor of fence {history.fence} has fence {history.taken_by}"
    own = sum(write.fence == history.fence for write in history.final)
    if own not in {0, PARTS}:
        yield f"{own} of {PARTS} parts of one transaction were committed"
    if history.outcome == "committed" and not own:
        yield "the holder was told that it had committed, and nothing is there"
    if history.outcome == "refused" and own:
        yield "the holder was refused, and its writes are there"
    if sum(write.fence == history.taken_by for write in history.final) != PARTS:
        yield "the successor's writes are not all there"
    if (history.before | history.after) - {write.number for write in history.final}:
        yield "a committed write has vanished"


def complaints(histories: Sequence[History], *, least_guarded: int, least_stale: int) -> Iterator[str]:
    """Yield all that is wrong with the runs together: each one's faults, and what was to be seen and was not.

    Args:
        histories: the runs.
        least_guarded: of so many the path is guarded or fenced.
        least_stale: so many of the control's runs have a stale commit, or what the others show says nothing.
    """
    for history in histories:
        for fault in faults(history):
            yield f"{history.tenure}: {fault}"
    controls = [history for history in histories if history.tenure.path in CONTROL]
    found = len(histories) - len(controls)
    if found < least_guarded:
        yield f"{found} runs of guarded paths, fewer than {least_guarded}"
    stale = [history for history in controls if history.stale]
    if len(stale) < least_stale:
        yield f"{len(stale)} stale commits in {len(controls)} runs without a guard, fewer than {least_stale}"
    for isolation in ISOLATIONS:
        if not any(history.tenure.isolation == isolation for history in stale):
            yield f"no stale commit without a guard in {isolation}: the control cannot fail there"
    yield from _unseen(histories)


def _unseen(histories: Sequence[History]) -> Iterator[str]:
    for path in PATHS:
        mine = [history for history in histories if history.tenure.path == path]
        for point in POINTS:
            if not any(history.tenure.point == point for history in mine):
                yield f"{path} was never stopped at {point}"
        if path in GUARDED and not any(history.refused and not history.granted_in_stop for history in mine):
            yield f"{path} never kept a successor out until its process went on"
    if not any(history.ended_by_server for history in histories):
        yield "no guarded transaction was ended by the server"


def table(histories: Sequence[History]) -> Iterator[str]:
    """Yield the lines of the results: one for each path and isolation, and the sums."""
    columns = ["runs", *POINTS.values(), "in the stop", "refused", "by server", "committed", "stale"]
    yield f"{'path':30}" + "".join(f"{column:>{_width(column)}}" for column in columns)
    for path in PATHS:
        for isolation in ISOLATIONS:
            mine = [each for each in histories if (each.tenure.path, each.tenure.isolation) == (path, isolation)]
            yield _line(f"{path}, {isolation}", mine, columns)
    yield _line("all with a guard or a fence", [each for each in histories if each.tenure.path not in CONTROL], columns)
    yield _line("all of the control", [each for each in histories if each.tenure.path in CONTROL], columns)


def _line(name: str, histories: Sequence[History], columns: Sequence[str]) -> str:
    counts = [
        len(histories),
        *(sum(history.tenure.point == point for history in histories) for point in POINTS),
        sum(history.granted_in_stop for history in histories),
        sum(history.refused for history in histories),
        sum(history.ended_by_server for history in histories),
        sum(history.outcome == "committed" for history in histories),
        sum(history.stale for history in histories),
    ]
    cells = zip(columns, counts, strict=True)
    return f"{name:30}" + "".join(f"{count:>{_width(column)}}" for column, count in cells)


def _width(column: str) -> int:
    return len(column) + 2
