"""What the demo's screen shows, folded from what the narrator is told; it draws nothing."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from asyncpg_lease.cli._crew import Event
from asyncpg_lease.cli._narrator import describe
from asyncpg_lease.cli._verdict import FaultKind

_KEPT_NOTES = 100


class State(StrEnum):
    """What a worker does."""

    WAITING = "waiting"
    HOLDING = "holding"
    PAUSED = "paused"
    KILLED = "killed"
    ENDED = "ended"


class Tone(StrEnum):
    """How much a note matters."""

    PLAIN = "plain"
    QUIET = "quiet"
    DEED = "deed"
    REFUSED = "refused"
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that happened, `moment` seconds of the local monotonic clock."""

    moment: float
    who: str
    what: str
    tone: Tone = Tone.PLAIN


@dataclass(slots=True)
class Row:
    """A worker, and the tenure that it has, or had when it was last heard of.

    `runs_out` is the moment of the lease's expiry on the server, put on the local clock.
    """

    state: State = State.WAITING
    holder: str = ""
    fence: int = 0
    runs_out: float | None = None
    accepted: int = 0
    refused: int = 0
    stale: int = 0

    def left(self, now: float) -> float:
        """Seconds until the server lets somebody else in."""
        return 0 if self.runs_out is None else max(self.runs_out - now, 0)

    def has_run_out(self, now: float) -> bool:
        """Whether it had a lease that nobody gave back and that is over."""
        return self.runs_out is not None and self.runs_out <= now

    def leave(self, state: State) -> None:
        """Have no tenure any more."""
        self.state, self.holder, self.fence, self.runs_out = state, "", 0, None


@dataclass(slots=True)
class Board:
    """All that is shown while the demo runs."""

    key: str
    ttl: float
    planned: Sequence[FaultKind]
    fenced: bool
    start: float
    now: str = "making a PostgreSQL"
    current: FaultKind | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    notes: deque[Note] = field(default_factory=lambda: deque(maxlen=_KEPT_NOTES))

    def act(self, moment: float, what: str) -> None:
        """Take what the demo does: it is what is going on until it does something else."""
        self.now = what
        self.notes.append(Note(moment, "", what, Tone.DEED))

    def hear(self, event: Event, *, late: bool, writes: int) -> None:
        """Take what a worker said or what was done to it."""
        if event.kind == "begins":
            self.current = FaultKind(event.text)
            self.now = f"next, right after a renewal: {self.current}"
        if event.worker:
            self._follow(self.rows.setdefault(event.worker, Row()), event, late=late)
        what = describe(event, late=late, writes=writes)
        if what is not None:
            with_fence = f"{what}, fence {event.fence}" if event.kind == "acquired" else what
            self.notes.append(Note(event.moment, event.worker, with_fence, _tone(event)))

    def _follow(self, row: Row, event: Event, *, late: bool) -> None:
        match event.kind:
            case "acquired" | "renewed":
                row.state, row.holder, row.fence = State.HOLDING, event.holder, event.fence
                row.runs_out = event.moment + event.expires_in
            case "wrote":
                row.accepted += 1
                row.stale += late
            case "refused":
                row.refused += 1
            case "paused":
                row.state = State.PAUSED
            case "resumed":
                row.state = State.HOLDING
            case "killed":
                row.state = State.KILLED
            case "released" | "lost" | "hired":
                row.leave(State.WAITING)
            case "ended" if row.state is not State.KILLED:
                row.leave(State.ENDED)
            case _:
                pass


def _tone(event: Event) -> Tone:
    match event.kind:
        case "wrote":
            return Tone.ACCEPTED
        case "refused":
            return Tone.REFUSED
        case "renewed" | "logged" | "ended":
            return Tone.QUIET
        case _:
            return Tone.PLAIN
