"""What becomes of a lease, written down without SQL and without a clock: time passes where a row is made to run out.

Each call of the library's has a method here, which changes the model and returns the answer that the call must give.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

State: TypeAlias = Literal["held", "resting", "free"]


class Granted(NamedTuple):
    """A claim that got the key, or joined its holder's own tenure."""

    fence: int
    joined: bool


class Unavailable(NamedTuple):
    """A claim that found somebody else, or a key that rests."""

    holder: str
    fence: int
    resting: bool


class Lost(NamedTuple):
    """A call on a tenure that is over."""

    reason: str
    taken_by: str | None = None


Answer: TypeAlias = Granted | Unavailable | Lost | str


@dataclass(slots=True)
class Row:
    """A key's last tenure.

    Attributes:
        holder: Who has it, or had it.
        fence: Its fence.
        state: "held", "resting" (released, and kept shut by its min_hold) or "free".
        released: Whether it was left in order; one that ran out was not.
    """

    holder: str
    fence: int
    state: State = "held"
    released: bool = False


@dataclass(slots=True)
class Handle:
    """One handle of a tenure, as its program knows it.

    Attributes:
        key: The key.
        holder: Its holder.
        fence: Its fence.
        began: Whether it began the tenure; one that joined releases nothing.
        rests: Whether its min_hold keeps the key shut after a release.
        left: Whether it was released.
        lost: What it was told of the loss, which does not change any more.
    """

    key: str
    holder: str
    fence: int
    began: bool
    rests: bool
    left: bool = False
    lost: Lost | None = None


@dataclass(slots=True)
class Model:
    """All keys.

    Attributes:
        rows: The keys that have a row.
        written: The last fence that was written for a key to what the job writes.
        changed: The keys whose rows the last call was allowed to change; every other one must be the same to the byte.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    def claim(self, key: str, holder: str) -> Answer:
        """A free key is granted with the next fence; one's own live tenure is joined; any other key is refused."""
        row = self.rows.get(key)
        if row is None:
            return self._grant(key, holder, 1)
        if row.state == "free":
            return self._grant(key, holder, row.fence + 1)
        if row.state == "held" and row.holder == holder:
            self.changed = {key}
            return Granted(row.fence, joined=True)
        self.changed = set()
        return Unavailable(row.holder, row.fence, row.state == "resting")

    def _grant(self, key: str, holder: str, fence: int) -> Granted:
        self.rows[key] = Row(holder, fence)
        self.changed = {key}
        return Granted(fence, joined=False)

    def renew(self, handle: Handle) -> Answer:
        """A live tenure is renewed; of any other the handle learns why it is over."""
        return self._use(handle) or self._touch(handle.key, "renewed")

    def write(self, handle: Handle) -> Answer:
        """A guarded transaction is for a live tenure, and writes its fence."""
        failed = self._use(handle)
        if failed is None:
            self.written[handle.key] = handle.fence
        self.changed = set()
        return failed or "written"

    def verify(self, handle: Handle) -> Answer:
        """The server is asked; the handle itself takes no note of what it says."""
        self.changed = set()
        return self._known(handle) or self._loss(handle) or "live"

    def release(self, handle: Handle) -> Answer:
        """A live tenure ends, by the handle that began it and knows of no loss; nothing else is touched."""
        self.changed = set()
        if not handle.left and handle.began and handle.lost is None and self._loss(handle) is None:
            row = self.rows[handle.key]
            row.state, row.released = ("resting" if handle.rests else "free"), True
            self.changed = {handle.key}
        handle.left = True
        return "released"

    def run_out(self, key: str) -> Answer:
        """So much time passes that the key is free."""
        self.rows[key].state = "free"
        return self._touch(key, "run out")

    def write_by_hand(self, handle: Handle) -> Answer:
        """What a handle writes without a guard is accepted unless a higher fence has been written, however late."""
        self.changed = set()
        if handle.fence < self.written.get(handle.key, 0):
            return "stale"
        self.written[handle.key] = handle.fence
        return "written"

    def _touch(self, key: str, answer: str) -> str:
        self.changed = {key}
        return answer

    def _use(self, handle: Handle) -> Answer | None:
        """Return how a call on a handle fails, and have the handle remember a loss; None: it does not."""
        self.changed = set()
        known = self._known(handle)
        if known is None:
            handle.lost = self._loss(handle)
        return known or handle.lost

    def _known(self, handle: Handle) -> Answer | None:
        return "left" if handle.left else handle.lost

    def _loss(self, handle: Handle) -> Lost | None:
        row = self.rows.get(handle.key)
        if row is None:
            return Lost("deleted")
        if (row.holder, row.fence) != (handle.holder, handle.fence):
            return Lost("taken_over", row.holder)
        return None if row.state == "held" else Lost("expired")
