"""A history in which nothing is wrong, for the tests of what judges one to break."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.history import Body, Fault, History, Notice, Stall, Version, Write

OFFSET = 990.0
"""The server's clock less the monotonic one."""


def version(
    number: int, at: float, who: int, fence: int, until: float, *, began: float, state: str = "held"
) -> Version:
    """Return a version of the row of key "a"; times are those of the monotonic clock."""
    return Version(
        number=number,
        at=at + OFFSET,
        key="a",
        holder=f"process-{who}/x",
        fence=fence,
        acquired_at=began + OFFSET,
        expires_at=until + OFFSET,
        released=state == "released",
        deleted=state == "deleted",
    )


def body(
    who: int, fence: int, started: float, ended: float, outcome: str = "done", *, told: float = float("inf")
) -> Body:
    """Return a body of key "a", with a ttl of 1 s."""
    return Body(
        key="a",
        holder=f"process-{who}/x",
        fence=fence,
        process=who,
        ttl=1.0,
        grace=0.1,
        started=started,
        told=told,
        ended=ended,
        outcome=outcome,
    )


def sound() -> History:
    """Return the history of four tenures of one key.

    The first is renewed and released, the second loses the server and runs out, the third takes over from it and is
    released late, since its process stood still; then the row is pruned, and the fourth begins above the floor.
    """
    return History(
        versions=[
            version(1, 10.0, 1, 1, 11.0, began=10.0),
            version(2, 10.5, 1, 1, 11.5, began=10.0),
            version(3, 11.0, 1, 1, 11.0, began=10.0, state="released"),
            version(4, 12.0, 2, 2, 13.0, began=12.0),
            version(5, 13.2, 3, 3, 14.2, began=13.2),
            version(6, 14.0, 3, 3, 14.0, began=13.2, state="released"),
            version(7, 14.5, 3, 3, 14.0, began=13.2, state="deleted"),
            version(8, 15.0, 4, 4, 16.0, began=15.0),
            version(9, 15.5, 4, 4, 15.5, began=15.0, state="released"),
        ],
        writes=[
            Write(1, 10.2 + OFFSET, "a", 1, guarded=True),
            Write(2, 12.2 + OFFSET, "a", 2, guarded=True),
            Write(3, 13.1 + OFFSET, "a", 2, guarded=False),
            Write(4, 13.3 + OFFSET, "a", 3, guarded=True),
        ],
        bodies=[
            body(1, 1, 10.01, 10.99),
            body(2, 2, 12.01, 12.91, "lost: unreachable", told=12.9),
            body(3, 3, 13.21, 13.9),
            body(4, 4, 15.01, 15.4),
        ],
        faults=[Fault("frozen network", 12.1, 13.5, 2), Fault("pruned", 14.4, 14.5)],
        notices=[
            Notice(12.6, 2, "RenewFailed", "a", "no answer to the renewal", "process-2/x"),
            Notice(12.9, 2, "Lost unreachable", "a", holder="process-2/x"),
        ],
        offset=OFFSET,
        opened=9.0,
        closed=16.0,
        keys=["a"],
        left=16.0 + OFFSET,
        acquired_again={"a": 16.1 + OFFSET},
    )


def with_version(history: History, number: int, **changes: object) -> History:
    """Change one of the versions."""
    history.versions = [
        each._replace(**changes) if each.number == number else each  # type: ignore[arg-type] # fields of each their type
        for each in history.versions
    ]
    return history


def with_body(history: History, who: int, **changes: object) -> History:
    """Change the body of one of the processes."""
    history.bodies = [
        replace(each, **changes) if each.process == who else each  # type: ignore[arg-type] # fields of each their type
        for each in history.bodies
    ]
    return history


def with_stall(history: History, who: int, ended: float, length: float) -> History:
    """Have a process stand still."""
    history.stalls = {**history.stalls, who: [Stall(ended, length)]}
    return history
