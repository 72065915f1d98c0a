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


class Swept(NamedTuple):
    """A prune: how many rows it deleted, how many it could not, and the floor."""

    deleted: int
    kept: int
    floor: int


class Lifted(NamedTuple):
    """An advance of all fences, to this one."""

    fence: int


class Facts(NamedTuple):
    """What a handle says without asking anybody."""

    is_held: bool
    stop_reason: str | None
    lost: str | None


Answer: TypeAlias = Granted | Unavailable | Lost | Swept | Lifted | str


@dataclass(slots=True)
class Row:
    """A key's last tenure.

    Attributes:
        holder: Who has it, or had it.
        fence: Its fence.
        state: "held", "resting" (released, and kept shut by its min_hold) or "free".
        released: Whether it was left in order; one that ran out was not.
        revoked: Whether it was asked to give the key up.
    """

    holder: str
    fence: int
    state: State = "held"
    released: bool = False
    revoked: bool = False


@dataclass(slots=True)
class Handle:
    """One handle of a tenure, as its program knows it.

    Attributes:
        key: The key.
        holder: Its holder.
        fence: Its fence.
        began: Whether it began the tenure; one that joined releases nothing.
        rests: Whether its min_hold keeps the key shut after a release.
        revoked: Whether it knows that it was asked to give the key up.
        left: Whether it was released.
        lost: What it was told of the loss, which does not change any more.
    """

    key: str
    holder: str
    fence: int
    began: bool
    rests: bool
    revoked: bool = False
    left: bool = False
    lost: Lost | None = None


@dataclass(slots=True)
class Model:
    """All keys.

    Attributes:
        rows: The keys that have a row.
        floor: The fence above which new keys start; None before there was any need for one.
        guarded: The keys that a transaction keeps shut.
        written: The last fence that was written for a key to what the job writes.
        changed: The keys whose rows may have changed, the floor's being ""; any other must be the same to the byte.
    """

    rows: dict[str, Row] = field(default_factory=dict)
    floor: int | None = None
    guarded: set[str] = field(default_factory=set)
    written: dict[str, int] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)

    # Who wants the key ----------------------------------------------------------------------------

    def claim(self, key: str, holder: str) -> Answer:
        """A free key is granted with the next fence, one's own live tenure joined unless revoked; else refused."""
        row = self.rows.get(key)
        if row is None:
            return self._grant(key, holder, (self.floor or 0) + 1)
        if row.state == "free" and key not in self.guarded:
            return self._grant(key, holder, row.fence + 1)
        if row.state == "held" and row.holder == holder and not row.revoked:
            self.changed.add(key)
            return Granted(row.fence, joined=True)
        return Unavailable(row.holder, row.fence, row.state == "resting")

    def _grant(self, key: str, holder: str, fence: int) -> Granted:
        self.rows[key] = Row(holder, fence)
        self.changed.add(key)
        return Granted(fence, joined=False)

    # Who has it -----------------------------------------------------------------------------------

    def renew(self, handle: Handle) -> Answer:
        """A live tenure is renewed, and told whether it was revoked; of any other the handle learns why it is over."""
        failed = self._use(handle)
        if failed is not None:
            return failed
        self.changed.add(handle.key)
        handle.revoked = handle.revoked or self.rows[handle.key].revoked
        return "renewed"

    def write(self, handle: Handle) -> Answer:
        """A guarded transaction is for a live tenure, writes its fence, and keeps the key shut until it ends."""
        failed = self._use(handle)
        if failed is not None:
            return failed
        self.written[handle.key] = handle.fence
        self.guarded.add(handle.key)
        return "written"

    def write_by_hand(self, handle: Handle) -> Answer:
        """What a handle writes without a guard is accepted unless a higher fence has been written, however late."""
        if handle.fence < self.written.get(handle.key, 0):
            return "stale"
        self.written[handle.key] = handle.fence
        return "written"

    def confirm(self, handle: Handle) -> Answer:
        """The server is asked; the handle itself takes no note of what it says."""
        return self.known(handle) or self._loss(handle) or "live"

    def release(self, handle: Handle) -> Answer:
        """A live tenure ends, by the handle that began it and knows of no loss; nothing else is touched."""
        if not handle.left and handle.began and handle.lost is None and self._loss(handle) is None:
            row = self.rows[handle.key]
            row.state, row.released = ("resting" if handle.rests else "free"), True
            self.changed.add(handle.key)
        handle.left = True
        return "released"

    def facts(self, handle: Handle) -> Facts:
        """A handle knows what it was told, and may be relied on until it is left or was told of its end."""
        lost = None if handle.lost is None else handle.lost.reason
        stop_reason = "revoked" if lost is None and handle.revoked else lost
        return Facts(not handle.left and lost is None, stop_reason, lost)

    def _use(self, handle: Handle) -> Answer | None:
        """Return how a call on a handle fails, and have the handle remember a loss; None: it does not."""
        known = self.known(handle)
        if known is None:
            handle.lost = self._loss(handle)
        return known or handle.lost

    def known(self, handle: Handle) -> Answer | None:
        """Return what a handle has to say without asking anybody: that it was left, or is lost."""
        return "left" if handle.left else handle.lost

    def _loss(self, handle: Handle) -> Lost | None:
        row = self.rows.get(handle.key)
        if row is None:
            return Lost("deleted")
        if (row.holder, row.fence) != (handle.holder, handle.fence):
            return Lost("taken_over", row.holder)
        if row.state == "held":
            return None
        return Lost("revoked" if row.revoked else "expired")

    # What goes wrong on the way -------------------------------------------------------------------

    def claim_unheard(self, key: str, holder: str, *, named: bool) -> Answer:
        """What a claim got whose answer was lost is given back; that of a named holder is there to be joined."""
        if isinstance(self.claim(key, holder), Granted) and not named:
            self._give_back(key)
        return "failed"

    def claim_cancelled(self, key: str, holder: str, *, came: bool) -> Answer:
        """Either it was not carried out, or what it got is given back, unless it joined."""
        granted = self.claim(key, holder) if came else None
        if isinstance(granted, Granted) and not granted.joined:
            self._give_back(key)
        return "cancelled"

    def renew_unheard(self, handle: Handle) -> Answer:
        """A live tenure is renewed; the handle learns nothing, neither of that nor of a loss."""
        known = self.known(handle)
        if known is None and self._loss(handle) is None:
            self.changed.add(handle.key)
        return known or "failed"

    def renew_failed(self, handle: Handle) -> Answer:
        """A renewal that was not carried out is evidence of nothing."""
        return self.known(handle) or "failed"

    def _give_back(self, key: str) -> None:
        row = self.rows[key]
        row.state, row.released = "free", True

    # What may happen to it ------------------------------------------------------------------------

    def run_out(self, key: str) -> Answer:
        """So much time passes that the key is free."""
        self.rows[key].state = "free"
        self.changed.add(key)
        return "run out"

    def revoke(self, key: str, fence: int | None, *, force: bool) -> Answer:
        """The key's live tenure is asked to give it up, once; by force it is over, and so is a rest."""
        row = self.rows.get(key)
        if row is None:
            return "unknown"
        if fence not in {None, row.fence}:
            return "other_tenure"
        if row.state == "free":
            return "free"
        if not force and (row.state == "resting" or row.revoked):
            return "resting" if row.state == "resting" else "already_revoked"
        row.revoked = row.revoked or row.state == "held"
        self.changed.add(key)
        if force:
            row.state = "free"
        return "ended" if force else "requested"

    def prune(self) -> Answer:
        """What is free is deleted unless it is guarded, after the floor was raised to every fence of what is free."""
        free = {key: row.fence for key, row in self.rows.items() if row.state == "free"}
        if free:
            self._raise_floor(max(free.values()))
        deleted = free.keys() - self.guarded
        for key in deleted:
            del self.rows[key]
        self.changed |= deleted
        return Swept(len(deleted), len(free) - len(deleted), self.floor or 0)

    def advance_fences(self, by: int) -> Answer:
        """All fences and the floor become the same, greater one; whoever has a key is revoked, and keeps it shut."""
        fence = max([self.floor or 0, *(row.fence for row in self.rows.values())]) + by
        self._raise_floor(fence)
        for row in self.rows.values():
            row.fence = fence
            row.revoked = row.revoked or row.state == "held"
        self.changed |= self.rows.keys()
        return Lifted(fence)

    def _raise_floor(self, fence: int) -> None:
        self.floor = max(self.floor or 0, fence)
        self.changed.add("")
