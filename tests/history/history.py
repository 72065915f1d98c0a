"""What was seen of one run, read from its events; no process, file or server is needed to read them.

An event is a mapping with `what`, `at` and, if a process writes it, `process`: its number, 1 or more. `at` is in
seconds of one monotonic clock that all processes share. Times of the server's clock are converted to that clock before.

| what | other fields | meaning |
|---|---|---|
| began | body, key, holder, fence, ttl, grace | the first line of a body; `body` is its number in the process |
| told | body | the body is cancelled |
| ended | body, outcome | its last line |
| asked | turn, phase | somebody cancels a turn, one use of a lease, on purpose |
| left | turn, outcome | a turn is over: "done", "cancelled" or "failed" |
| stall | length | the process did nothing for so long until now |
| gone | | the process has ended, and its bodies with it |
| behind | name | a task of the library that outlived its table |
| refused | name, key | a late write was refused by its fence |
| confirmed | numbers | the client knows that these writes are committed |
| answer | key, fence, outcome, parts | "committed", "refused", or "broken off": what so many writes at once were told |
| notice | name, key, holder, detail | what the library says |
| wrong | name, key, detail | what a process sees that must never be |
| version | see `records.Version` | a version of a row |
| write | see `records.Write` | a write that was accepted |
| fault | see `records.Fault` | a fault that was made; `at` is its end |
| opened, closed | keys, ttl | faults may come from now on; they are over |
| over | | no process and no session is left |
| again | key | after that the key was acquired |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from tests.history.records import Answer, Body, Fault, Notice, Stall, Tenure, Turn, Version, Write

Event = Mapping[str, Any]

_RECORDS: Mapping[str, tuple[str, Any]] = {
    "notice": ("notices", Notice),
    "wrong": ("wrong", Notice),
    "behind": ("behind", Notice),
    "refused": ("refused", Notice),
    "answer": ("answers", Answer),
}


@dataclass(slots=True, kw_only=True)
class History:
    """What was seen of one run; see the events above.

    Attributes:
        keys: All keys.
        ttl: The longest for which a key may stay shut when nobody is there any more.
        over: When nobody was: no process and no session.
        again: When each key was acquired after that; a key that was not is missing.
    """

    versions: list[Version] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    turns: dict[tuple[int, int], Turn] = field(default_factory=dict)
    stalls: Mapping[int, list[Stall]] = field(default_factory=lambda: defaultdict(list))
    faults: list[Fault] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    wrong: list[Notice] = field(default_factory=list)
    behind: list[Notice] = field(default_factory=list)
    refused: list[Notice] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    confirmed: set[int] = field(default_factory=set)
    keys: Sequence[str] = ()
    ttl: float = 1.0
    opened: float = 0.0
    closed: float = float("inf")
    over: float = 0.0
    again: dict[str, float] = field(default_factory=dict)
    _running: dict[tuple[int, int], Body] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """Read a list of events."""
        history = cls()
        for event in events:
            history.add(**event)
        return history

    def add(self, what: str, at: float, process: int = 0, **fields: Any) -> None:  # noqa: ANN401 - see the table above
        """Read one event."""
        if what in _RECORDS:
            name, kind = _RECORDS[what]
            getattr(self, name).append(kind(at=at, process=process, **fields))
        elif what in {"began", "told", "ended", "gone"}:
            self._add_body(what, at, process, **fields)
        elif what in {"asked", "left"}:
            turn = self.turns.setdefault((process, fields["turn"]), Turn(process))
            turn.at = at
            turn.asked, turn.outcome = fields.get("phase", turn.asked), fields.get("outcome", turn.outcome)
        else:
            self._add_fact(what, at, process, **fields)

    def _add_body(self, what: str, at: float, process: int, body: int = 0, **fields: Any) -> None:  # noqa: ANN401
        match what:
            case "began":
                self._running[process, body] = Body(process=process, started=at, **fields)
                self.bodies.append(self._running[process, body])
            case "told":
                self._running[process, body].told = at
            case "ended":
                ended = self._running.pop((process, body))
                ended.ended, ended.outcome = at, fields["outcome"]
            case _:
                for left in self.running(process):
                    left.ended = at
                self._running = {place: left for place, left in self._running.items() if place[0] != process}

    def _add_fact(self, what: str, at: float, process: int, **fields: Any) -> None:  # noqa: ANN401
        match what:
            case "version":
                self.versions.append(Version(at=at, **fields))
            case "write":
                self.writes.append(Write(at=at, **fields))
            case "confirmed":
                self.confirmed |= {*fields["numbers"]}
            case "fault":
                self.faults.append(Fault(ended=at, process=process, **fields))
            case "stall":
                self.stalls[process].append(Stall(at, fields["length"]))
            case "opened":
                self.opened, self.keys, self.ttl = at, fields["keys"], fields["ttl"]
            case "again":
                self.again[fields["key"]] = at
            case "closed" | "over":
                setattr(self, what, at)
            case _:
                message = f"there is no such event: {what}"
                raise ValueError(message)

    def running(self, process: int) -> list[Body]:
        """Return the bodies of a process that have not ended so far."""
        return [body for (number, _), body in self._running.items() if number == process]

    def stood_still(self, process: int, until: float, within: float) -> float:
        """Return for how long in all a process did nothing before a moment, in what ended `within` seconds before it.

        What has begun before the moment and ended after it counts as far as the moment.
        """
        return sum(
            max(0.0, min(stall.ended, until) - (stall.ended - stall.length))
            for stall in self.stalls.get(process, ())
            if stall.ended >= until - within
        )


class OfKey(Protocol):
    """Whatever belongs to a key."""

    @property
    def key(self) -> str:
        """The key."""


T = TypeVar("T", bound=OfKey)


def by_key(things: Iterable[T]) -> Mapping[str, list[T]]:
    """Return each key's things, in the order in which they come."""
    keys: dict[str, list[T]] = defaultdict(list)
    for thing in things:
        keys[thing.key].append(thing)
    return keys


def tenures(versions: Iterable[Version]) -> list[Tenure]:
    """Return the tenures, key by key, in the order in which they got the row."""
    return [tenure for of_key in by_key(sorted(versions)).values() for tenure in _of_one_key(of_key)]


def _of_one_key(versions: Iterable[Version]) -> Iterator[Tenure]:
    last: Tenure | None = None
    for version in versions:
        if version.deleted:
            continue
        if last is None or version.holder != last.holder:
            if last is not None:
                yield last
            last = Tenure(
                key=version.key,
                holder=version.holder,
                first=version.fence,
                fence=version.fence,
                began=version.acquired_at,
                until=version.expires_at,
            )
        elif version.released and last.released_at is None:
            last.released_at = version.at
        elif version.expires_at < last.until:
            last.cut_at = version.at
        last.fence, last.until = version.fence, version.expires_at
    if last is not None:
        yield last
