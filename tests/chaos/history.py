"""What was seen of one run: by the server, by the processes, and by whoever made the faults.

The best witness of a tenure is the table itself: a trigger logs each version of each row, with the server's clock, in
the very transaction that writes it. What a process says of itself comes with the one monotonic clock of the host, and
`History.offset` relates the two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.histories import by_key


class Version(NamedTuple):
    """A version of a row of the lease table, numbered under the row's lock; times are the server's.

    Attributes:
        number: Its place among those of its key.
        at: When it was written.
        key: The key.
        holder: Who is in the row.
        fence: Its fence.
        acquired_at: When the tenure began.
        expires_at: When it ends unless it is renewed.
        released: Whether its holder has left it in order.
        deleted: Whether the row was deleted; it was this version then.
    """

    number: int
    at: float
    key: str
    holder: str
    fence: int
    acquired_at: float
    expires_at: float
    released: bool
    deleted: bool


@dataclass(slots=True, kw_only=True)
class Tenure:
    """One holding of a key, as the server has it; each has a holder of its own.

    Attributes:
        key: The key.
        holder: Who held.
        first: The fence it began with.
        fence: Its last fence, greater where all fences were advanced meanwhile.
        began: When it began on the server's clock.
        until: When it was over: released, cut short, or run out after the server's last renewal, heard or not.
        released_at: When it was released in order; None: never.
        cut_at: When its expiry was put earlier though it was not released, as an operator does by force; None: never.
    """

    key: str
    holder: str
    first: int
    fence: int
    began: float
    until: float
    released_at: float | None = None
    cut_at: float | None = None


class Write(NamedTuple):
    """A write that was accepted, numbered in the order of acceptance among those of its key; `at` is the server's."""

    number: int
    at: float
    key: str
    fence: int
    guarded: bool


@dataclass(slots=True, kw_only=True)
class Body:
    """What ran inside a block, by the monotonic clock.

    Attributes:
        key: The key.
        holder: Its tenure's.
        fence: Its tenure's.
        process: Who ran it, one number for each process that was started.
        ttl: Its lease's.
        grace: Its lease's.
        started: Its first line.
        told: When it was cancelled; infinite: never.
        ended: Its last line; that of a killed one is when the process was gone.
        outcome: "done", "cancelled", "failed", "lost: " and the reason, or "killed".
    """

    key: str
    holder: str
    fence: int
    process: int
    ttl: float
    grace: float
    started: float
    told: float = float("inf")
    ended: float = float("inf")
    outcome: str = "killed"

    @property
    def stopping(self) -> float:
        """When it had been told to stop, or had ended by itself."""
        return min(self.told, self.ended)


class Stall(NamedTuple):
    """A time in which a process did nothing: it was stopped, its loop was blocked, or its machine was busy."""

    ended: float
    length: float


class Notice(NamedTuple):
    """Something that the library told: an event, an error, an answer.

    Attributes:
        at: When, on the monotonic clock.
        process: In which process; 0 for the operator's.
        name: See `kinds`.
        key: About which key; empty where it is about none.
        detail: What else it said.
        holder: Whose tenure it is about, empty where it is about none.
    """

    at: float
    process: int
    name: str
    key: str = ""
    detail: str = ""
    holder: str = ""


class Fault(NamedTuple):
    """A fault that was made, on the monotonic clock.

    Attributes:
        kind: See `kinds`.
        began: When it began.
        ended: When it was undone; the same where there is nothing to undo.
        process: What it was done to; 0 where it was the server, or a row.
        key: Of the row to which it was done; empty where it was to none.
        detail: What it was done to, or how, as far as it is known by that: "session" and their numbers, or seconds.
    """

    kind: str
    began: float
    ended: float
    process: int = 0
    key: str = ""
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class History:
    """What was seen of one run.

    Attributes:
        versions: All versions of all rows.
        writes: All writes that were accepted.
        bodies: All bodies.
        stalls: When which process did nothing.
        faults: All faults.
        notices: What the library told.
        wrong: What a process saw that must never be, and when.
        late_refused: How many late writes were refused by their fence.
        offset: The server's clock less the monotonic one.
        left: When the last process was gone, and its sessions, on the server's clock.
        acquired_again: When each key was acquired then, on the server's clock; a key that was not is missing.
        keys: All keys.
        ttl: The longest of a lease.
        opened: When the time of faults began, on the monotonic clock.
        closed: When it was over, and all was undone.
    """

    versions: list[Version] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    stalls: Mapping[int, list[Stall]] = field(default_factory=lambda: defaultdict(list))
    faults: list[Fault] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    wrong: list[Notice] = field(default_factory=list)
    late_refused: int = 0
    offset: float = 0.0
    left: float = 0.0
    acquired_again: dict[str, float] = field(default_factory=dict)
    keys: Sequence[str] = ()
    ttl: float = 1.0
    opened: float = 0.0
    closed: float = float("inf")

    def local(self, at: float) -> float:
        """Return a time of the server's clock on the monotonic one."""
        return at - self.offset

    def stood_still(self, process: int, until: float, within: float) -> float:
        """Return for how long in all a process did nothing before a moment, in what ended `within` seconds before it.

        What has begun before the moment and ended after it counts as far as the moment.
        """
        return sum(
            max(0.0, min(stall.ended, until) - (stall.ended - stall.length))
            for stall in self.stalls.get(process, ())
            if stall.ended >= until - within
        )


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
