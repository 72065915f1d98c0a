"""The events of a run in which nothing is wrong, for the tests of what judges one to break."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.history.history import Event, History


def version(
    number: float, at: float, who: int, fence: int, until: float, *, began: float, state: str = "held"
) -> Event:
    """Return a version of the row of key "a"."""
    return {
        "what": "version",
        "at": at,
        "number": number,
        "key": "a",
        "holder": f"process-{who}/x",
        "fence": fence,
        "acquired_at": began,
        "expires_at": until,
        "released": state == "released",
        "deleted": state == "deleted",
    }


def write(number: int, at: float, fence: int, *, guarded: bool = True, place: int | None = None) -> Event:
    """Return a write of key "a" that was accepted."""
    what: Event = {"what": "write", "at": at, "number": number, "key": "a", "fence": fence}
    return {**what, "guarded": guarded, "place": place}


def body(who: int, started: float, ended: float, outcome: str = "done", *, told: float | None = None) -> list[Event]:
    """Return a body of key "a" whose fence is its process's number, with a ttl of 1 s; an infinite one never ends."""
    of: Event = {"process": who, "body": 1}
    tenure: Event = {"key": "a", "holder": f"process-{who}/x", "fence": who, "ttl": 1.0, "grace": 0.1}
    events: list[Event] = [{"what": "began", "at": started, **of, **tenure}]
    if told is not None:
        events.append({"what": "told", "at": told, **of})
    if ended < float("inf"):
        events.append({"what": "ended", "at": ended, "outcome": outcome, **of})
    return events


def fault(kind: str, began: float, ended: float, process: int = 0, **fields: Any) -> Event:  # noqa: ANN401
    """Return a fault."""
    return {"what": "fault", "at": ended, "kind": kind, "began": began, "process": process, **fields}


def stall(who: int, ended: float, length: float) -> Event:
    """Return a time in which a process stood still."""
    return {"what": "stall", "at": ended, "process": who, "length": length}


def notice(at: float, who: int, name: str, detail: str = "", **fields: Any) -> Event:  # noqa: ANN401
    """Return what a process says of its tenure of key "a"."""
    said: Event = {"name": name, "key": "a", "detail": detail, "holder": f"process-{who}/x"}
    return {"what": "notice", "at": at, "process": who, **said, **fields}


def sound() -> list[Event]:
    """Return the events of four tenures of one key.

    The first is renewed and released, the second loses the server and runs out, the third takes over from it and is
    released late, since its process stood still; then the row is pruned, and the fourth begins above the floor.
    """
    return [
        {"what": "opened", "at": 9.0, "keys": ["a"], "ttl": 1.0},
        version(1, 10.0, 1, 1, 11.0, began=10.0),
        *body(1, 10.01, 10.99),
        write(1, 10.2, 1),
        version(2, 10.5, 1, 1, 11.5, began=10.0),
        version(3, 11.0, 1, 1, 11.0, began=10.0, state="released"),
        {"what": "left", "at": 11.0, "process": 1, "turn": 1, "outcome": "done"},
        version(4, 12.0, 2, 2, 13.0, began=12.0),
        *body(2, 12.01, 12.91, "lost: unreachable", told=12.9),
        write(2, 12.2, 2),
        notice(12.6, 2, "RenewFailed", "no answer to the renewal"),
        notice(12.9, 2, "Lost unreachable"),
        {"what": "left", "at": 12.92, "process": 2, "turn": 1, "outcome": "failed"},
        write(3, 13.1, 2, guarded=False),
        version(5, 13.2, 3, 3, 14.2, began=13.2),
        *body(3, 13.21, 13.9),
        write(4, 13.3, 3),
        {"what": "refused", "at": 13.4, "process": 2, "name": "late", "key": "a"},
        fault("frozen network", 12.1, 13.5, 2),
        version(6, 14.0, 3, 3, 14.0, began=13.2, state="released"),
        {"what": "asked", "at": 14.0, "process": 3, "turn": 1, "phase": "exit"},
        {"what": "left", "at": 14.05, "process": 3, "turn": 1, "outcome": "cancelled"},
        version(7, 14.5, 3, 3, 14.0, began=13.2, state="deleted"),
        fault("pruned", 14.4, 14.5, cuts=False),
        version(8, 15.0, 4, 4, 16.0, began=15.0),
        *body(4, 15.01, 15.4),
        {"what": "confirmed", "at": 15.3, "process": 4, "numbers": [1, 4]},
        {"what": "answer", "at": 15.3, "key": "a", "fence": 3, "outcome": "committed", "parts": 1},
        version(9, 15.5, 4, 4, 15.5, began=15.0, state="released"),
        {"what": "closed", "at": 16.0},
        {"what": "gone", "at": 16.0, "process": 4},
        {"what": "over", "at": 16.0},
        {"what": "again", "at": 16.1, "key": "a"},
    ]


def altered(events: list[Event], what: str, /, **changes: Any) -> list[Event]:  # noqa: ANN401
    """Return the events with changes in those of a kind, of one number (`number_`) or process (`process_`)."""
    chosen = {name.removesuffix("_"): changes.pop(name) for name in [*changes] if name.endswith("_")}
    found = _find(events, what, chosen)
    return [{**event, **changes} if event in found else event for event in events]


def without(events: list[Event], what: str, **chosen: Any) -> list[Event]:  # noqa: ANN401
    """Return the events without those of a kind that have these fields."""
    found = _find(events, what, chosen)
    return [event for event in events if event not in found]


def _find(events: list[Event], what: str, chosen: Mapping[str, Any]) -> list[Event]:
    found = [event for event in events if event["what"] == what and chosen.items() <= event.items()]
    assert found, f"no event {what} with {chosen}"
    return found


def with_body(
    events: list[Event], who: int, started: float, ended: float, outcome: str = "done", **told: float
) -> list[Event]:
    """Return the events with another body in the place of a process's own."""
    kept = [event for event in events if event["what"] not in {"began", "told", "ended"} or event["process"] != who]
    return [*kept, *body(who, started, ended, outcome, **told)]


def read(events: list[Event]) -> History:
    """Read events in whatever order they stand here, each at its time."""
    return History.of(sorted(events, key=lambda event: event["at"]))
