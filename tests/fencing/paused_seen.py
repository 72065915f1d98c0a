"""What was seen of the runs with paused holders: in which order was committed, what has to be seen, and the results.

Which of two transactions committed first is decided by sight alone. All writes are inserted into a table that nobody
updates, and the successor looks at it twice: in its own transaction, as the last thing before COMMIT, and right after
COMMIT has been answered. A snapshot shows a transaction if and only if that had committed before the snapshot was
taken. So

- what the look after the commit did not show, and is there in the end, was committed after the successor: stale;
- what the look before the commit showed was committed before the successor: not stale;
- what came between the two looks may be either. No guarded path may have that, and no control is charged with it.

The successor looks under READ COMMITTED, so that each look has a snapshot of its own, and PostgreSQL's serializable
transactions take no notice of it. A row of counters that everybody updates would give an order too, but it would
be a guard itself: above READ COMMITTED the later writer gets 40001 for it, and the control could not fail. Times of
commits are no order if two of them are close, and have to be switched on in the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.fencing.paused_tenures import CONTROL, GUARDED, PATHS, POINTS, Tenure
from tests.fencing.writing import ISOLATIONS
from tests.history.history import History
from tests.history.judge import falling
from tests.history.records import Write


@dataclass(slots=True)
class Seen:
    """What was seen of one tenure whose process was stopped, and of its successor.

    Attributes:
        tenure: What it was to be.
        outcome: What the holder says: "committed", "refused" (for certain), or "broken off".
        taken_by: The successor's fence.
        refused: Whether the successor was refused first, although the lease had run out.
        granted_in_stop: Whether it began while the holder's process was stopped.
        before: The writes that the successor saw right before its COMMIT.
        after: Those that it saw right after it.
    """

    tenure: Tenure
    outcome: str = ""
    taken_by: int = 0
    refused: bool = False
    granted_in_stop: bool = False
    before: frozenset[int] = frozenset()
    after: frozenset[int] = frozenset()

    @property
    def ended_by_server(self) -> bool:
        """Whether the transaction that kept the successor out had ended when its process went on."""
        return self.refused and self.granted_in_stop

    def placed(self, write: Write) -> Write:
        """Return a write with its place in the order of commits: before the successor's, with it or after it."""
        if write.fence == self.taken_by:
            return write._replace(place=2)
        return write._replace(place=1 if write.number in self.before else 2 if write.number in self.after else 3)


def stale_keys(control: History) -> set[str]:
    """Return the keys for which a lower fence was committed after a higher one, for certain."""
    return {after.key for before, after in falling(control.writes) if after.order > before.order}


def least(guarded: int, stale: int) -> Mapping[str, int]:
    """Return how often what has to be seen at least, or what the runs show says nothing."""
    once = [
        *(f"stale commits without a guard in {isolation}" for isolation in ISOLATIONS),
        *(f"{path} stopped at {point}" for path in PATHS for point in POINTS),
        *(f"successors that {path} kept out until its process went on" for path in GUARDED),
        "guarded transactions ended by the server",
    ]
    return {"runs of guarded paths": guarded, "stale commits without a guard": stale, **dict.fromkeys(once, 1)}


def count(runs: Sequence[Seen], stale: Collection[str]) -> Counter[str]:
    """Count what has to be seen; `stale` are the keys of stale commits without a guard."""
    counts: Counter[str] = Counter()
    for run in runs:
        path, is_stale = run.tenure.path, run.tenure.key in stale
        counts["runs of guarded paths"] += path not in CONTROL
        counts["stale commits without a guard"] += is_stale
        counts[f"stale commits without a guard in {run.tenure.isolation}"] += is_stale
        counts[f"{path} stopped at {run.tenure.point}"] += 1
        kept_out = run.refused and not run.granted_in_stop
        counts[f"successors that {path} kept out until its process went on"] += kept_out
        counts["guarded transactions ended by the server"] += run.ended_by_server
    return counts


def table(runs: Sequence[Seen], stale: Collection[str]) -> Iterator[str]:
    """Yield the lines of the results: one for each path and isolation, and the sums."""
    columns = ["runs", *POINTS.values(), "in the stop", "refused", "by server", "committed", "stale"]
    groups = {
        **{f"{path}, {isolation}": (path, isolation) for path in PATHS for isolation in ISOLATIONS},
        "all with a guard or a fence": None,
        "all of the control": None,
    }
    yield f"{'path':36}" + "".join(f"{column:>{len(column) + 2}}" for column in columns)
    for name, group in groups.items():
        mine = [run for run in runs if (run.tenure.path, run.tenure.isolation) == group]
        if group is None:
            mine = [run for run in runs if (run.tenure.path in CONTROL) == name.endswith("control")]
        counts = [
            len(mine),
            *(sum(run.tenure.point == point for run in mine) for point in POINTS),
            sum(run.granted_in_stop for run in mine),
            sum(run.refused for run in mine),
            sum(run.ended_by_server for run in mine),
            sum(run.outcome == "committed" for run in mine),
            sum(run.tenure.key in stale for run in mine),
        ]
        cells = zip(columns, counts, strict=True)
        yield f"{name:36}" + "".join(f"{number:>{len(column) + 2}}" for column, number in cells)
