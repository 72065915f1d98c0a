"""Who held the lease when, and what was done to whom, laid out in time: pure functions over records.

The terminal's timeline and the picture draw the same layout. Times are seconds of the server's clock since
the first tenure began.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import count

from asyncpg_lease.cli._verdict import Fault, FaultKind, Records, Tenure, stale_attempts


class Ending(StrEnum):
    """How a tenure ended."""

    RELEASED = "released"
    RAN_OUT = "ran out"
    LOST = "lost"
    UNKNOWN = "end not recorded"


@dataclass(frozen=True, slots=True)
class Bar:
    """One tenure; `forsaken` is from when on nobody kept it, where that was done to its holder."""

    worker: str
    fence: int
    begin: float
    end: float
    ending: Ending
    forsaken: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was done to the holder or to its server, with the letter that stands for it."""

    worker: str
    fence: int
    letter: str
    what: str
    at: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time for which a worker was paused, or the server away."""

    worker: str
    what: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Write:
    """A write that was tried; a stale one came after a write of a higher fence."""

    worker: str
    fence: int
    at: float
    accepted: bool
    stale: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run of the demo; the workers are its lanes, from the top."""

    workers: Sequence[str]
    bars: Sequence[Bar]
    marks: Sequence[Mark]
    stretches: Sequence[Stretch]
    writes: Sequence[Write]
    span: float

    def writes_of(self, bar: Bar) -> Sequence[Write]:
        """The writes that a tenure tried."""
        return [write for write in self.writes if (write.worker, write.fence) == (bar.worker, bar.fence)]

    @property
    def stale_writes(self) -> Sequence[Write]:
        """The writes that came after one of a higher fence."""
        return [write for write in self.writes if write.stale]


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a moment is: `span` seconds take `room`, from `start` on."""

    span: float
    start: float
    room: float

    def place(self, seconds: float) -> float:
        """Return the place of a moment; one outside of the span is at the nearer end."""
        return self.start + self.room * min(max(seconds / self.span, 0), 1)

    def ticks(self, least: float) -> list[float]:
        """Choose round moments for an axis, `least` apart at the least."""
        step = next(step for step in _steps() if self.room * step / self.span >= least)
        return [index * step for index in range(math.floor(self.span / step + 1e-9) + 1)]


PAUSED = "paused"
SERVER_AWAY = "server away"
RESUMED = "resumed"
LETTERS = {
    FaultKind.HAND_OVER: "H",
    FaultKind.KILL: "K",
    FaultKind.PAUSE: "P",
    RESUMED: "C",
    FaultKind.RESTART: "R",
}
_FORSAKING = {FaultKind.KILL, FaultKind.PAUSE}


def lay_out(records: Records) -> Timeline:
    """Lay out what was recorded; a worker gets a lane also where it never held the lease."""
    tenures = sorted(records.tenures, key=lambda tenure: tenure.acquired_at)
    origin = min((tenure.acquired_at for tenure in tenures), default=None)

    def since(moment: datetime) -> float:
        return (moment - (origin or moment)).total_seconds()

    bars = [_bar(tenure, records, since(tenure.acquired_at), last=tenure is tenures[-1]) for tenure in tenures]
    holders = {tenure.fence: tenure.worker for tenure in tenures}
    faults = [(fault, holders[fault.fence]) for fault in records.faults if fault.fence in holders]
    marks = [mark for fault, worker in faults for mark in _marks(fault, worker, since)]
    stale = set(stale_attempts(records))
    writes = [
        Write(write.worker, write.fence, since(write.at), write.position is not None, write in stale)
        for write in sorted(records.attempts, key=lambda attempt: attempt.at)
    ]
    moments = [*(bar.end for bar in bars), *(mark.at for mark in marks), *(write.at for write in writes)]
    span = max(moments, default=0)
    stretches = [
        Stretch(worker, what, since(fault.at), span if fault.until is None else since(fault.until))
        for fault, worker in faults
        if (what := {FaultKind.PAUSE: PAUSED, FaultKind.RESTART: SERVER_AWAY}.get(fault.kind))
    ]
    names = {*records.workers, *holders.values(), *(write.worker for write in writes)}
    return Timeline(sorted(names), bars, marks, stretches, writes, max(span, 0.1))


def spread(wanted: Sequence[tuple[float, float]], low: float, high: float) -> list[float]:
    """Place labels in a row so that none covers another, each as near to its place as that allows.

    Args:
        wanted: for each label, in the order of their places, where its centre should be, and its width.
        low: where the row begins.
        high: where it ends; labels that do not fit into the row at all go on past it.

    Returns:
        The left edge of each label.
    """
    edges: list[float] = []
    free = low
    for centre, width in wanted:
        edges.append(max(centre - width / 2, free))
        free = edges[-1] + width
    for index in reversed(range(len(edges))):
        edges[index] = min(edges[index], high - wanted[index][1])
        high = edges[index]
    # What was pushed out on the left goes back, and what is on its right with it.
    free = low
    for index, (_, width) in enumerate(wanted):
        edges[index] = max(edges[index], free)
        free = edges[index] + width
    return edges


def caption(marks: Sequence[tuple[float, float]], symbol: float, low: float, high: float) -> list[float | None]:
    """Place a text beside each symbol of a row: on its right, else on its left, else nowhere.

    Args:
        marks: for each, where its symbol begins, and the width of its text.
        symbol: the width of a symbol.
        low: where the row begins.
        high: where it ends.

    Returns:
        The left edge of each text; None where it would cover something.
    """
    taken = [(place, place + symbol) for place, _ in marks]
    edges: list[float | None] = []
    for place, width in marks:
        for edge in (place + symbol, place - width):
            inside = low <= edge and edge + width <= high
            if inside and all(edge + width <= begin or end <= edge for begin, end in taken):
                taken.append((edge, edge + width))
                edges.append(edge)
                break
        else:
            edges.append(None)
    return edges


def _bar(tenure: Tenure, records: Records, begin: float, *, last: bool) -> Bar:
    released_at = next((release.at for release in records.releases if release.fence == tenure.fence), None)
    ended_at = released_at or tenure.expires_at
    if released_at or tenure.released:
        ending = Ending.RELEASED
    elif tenure.lost:
        ending = Ending.LOST
    else:
        ending = Ending.UNKNOWN if last else Ending.RAN_OUT
    length = (ended_at - tenure.acquired_at).total_seconds()
    forsaken = [
        (fault.at - tenure.acquired_at).total_seconds()
        for fault in records.faults
        if fault.fence == tenure.fence and fault.kind in _FORSAKING
    ]
    since = begin + min(forsaken) if forsaken and ending is not Ending.RELEASED else None
    return Bar(tenure.worker, tenure.fence, begin, begin + length, ending, since, tenure.lost)


def _marks(fault: Fault, worker: str, since: Callable[[datetime], float]) -> list[Mark]:
    marks = [Mark(worker, fault.fence, LETTERS[fault.kind], fault.kind, since(fault.at))]
    if fault.kind is FaultKind.PAUSE and fault.until is not None:
        marks.append(Mark(worker, fault.fence, LETTERS[RESUMED], RESUMED, since(fault.until)))
    return marks


def _steps() -> Iterable[float]:
    for power in count(-1):
        yield from (factor * 10.0**power for factor in (1, 2, 5))
