"""What a history is made of: versions of rows, writes, faults, bodies, tenures and what was said of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Version(NamedTuple):
    """A version of a row of the lease table, written down by a trigger in the transaction that makes it.

    Attributes:
        number: Its place among those of its key: it is given under the row's lock.
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
    released: bool = False
    deleted: bool = False


class Write(NamedTuple):
    """A write that was accepted.

    Attributes:
        number: Its own; under the lock of a row that all writes of the key lock it is also its place among them.
        at: When it was made.
        key: The key.
        fence: The writer's.
        guarded: Whether a guard kept everybody else out until it was committed.
        place: Its place among those of its key where its number is not; writes of one place may be in either order.
    """

    number: int
    at: float
    key: str
    fence: int
    guarded: bool
    place: int | None = None

    @property
    def order(self) -> int:
        """Its place among the writes of its key."""
        return self.number if self.place is None else self.place


class Fault(NamedTuple):
    """A fault that was made.

    Attributes:
        kind: What it was.
        began: When it began.
        ended: When it was undone; the same if there is nothing to undo.
        process: What it was done to; 0 for the server, or a row.
        key: Of the row to which it was done; empty if it was done to none.
        detail: What it was done to, how, or what came of it.
        cuts: Whether a lease of its process may not be released, or a claim not be given back, because of it.
    """

    kind: str
    began: float
    ended: float
    process: int = 0
    key: str = ""
    detail: str = ""
    cuts: bool = True


class Notice(NamedTuple):
    """Something that a process says: an event of the library, an error, something wrong.

    Attributes:
        at: When.
        process: Which process; 0 for an operator.
        name: What.
        key: About which key; empty if it is about none.
        detail: What else it says.
        holder: Whose tenure it is about; empty if it is about none.
    """

    at: float
    process: int
    name: str
    key: str = ""
    detail: str = ""
    holder: str = ""


class Answer(NamedTuple):
    """What somebody was told of the one transaction in which a tenure writes so many parts."""

    at: float
    process: int
    key: str
    fence: int
    outcome: str
    parts: int


class Stall(NamedTuple):
    """A time in which a process did nothing: it was stopped, its loop was blocked, or its machine was busy."""

    ended: float
    length: float


@dataclass(slots=True, kw_only=True)
class Body:
    """What ran inside a block.

    Attributes:
        key: The key.
        holder: Its tenure's.
        fence: Its tenure's.
        process: Who ran it.
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


@dataclass(slots=True)
class Turn:
    """One use of a lease: in which phase it was cancelled on purpose (empty: it was not), and what came of it."""

    process: int
    asked: str = ""
    outcome: str = ""
    at: float = 0.0


@dataclass(slots=True, kw_only=True)
class Tenure:
    """One holding of a key, as the rows have it; each has a holder of its own.

    Attributes:
        key: The key.
        holder: Who held.
        first: The fence it began with.
        fence: Its last fence, greater if all fences were advanced meanwhile.
        began: When it began.
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
