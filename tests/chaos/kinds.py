"""The kinds of faults: how long each lasts, to whom it is done, and what counts as having been noticed.

A fault was noticed where the library told something of it: an event, an error out of a call, an answer to an operator.
Which ones count is said for each kind. They count within the fault's own time and the seconds after it that are said,
and if they come from the process to which it was done, or are about the key to which it was done; those of a fault of
the whole server may come from any process. Each process has one fault of its own at a time. What comes while the server
or a row has one as well counts for both: nothing tells them apart.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Scope = Literal["process", "key", "server"]

FAILED = frozenset({"RenewFailed", "WaitingFailed", "ReleaseFailed", "Lost unreachable", "Lost stalled", "error"})
"""A statement of a lease failed, or its answer did not come in time: an event, or an error out of the call."""

LATE = frozenset({"Late", "Lost stalled", "Lost unreachable", "Lost expired", "Lost taken_over"})
"""The loop stood still, and the library says so, or that the lease is gone by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault.

    Attributes:
        lane: Which faults it takes turns with: "process", "rows", "operator", "fences", or "server".
        lasts: Seconds from least to most; zeros for what is over at once.
        noticed_by: Names of what counts as noticing it, see `history.Notice`.
        scope: Whose notices count.
        after: Seconds after its end within which they count.
        loses: The reasons of a loss that it can be behind.
        cuts: Whether a lease of its process may not be released, or a claim not be given back, because of it.
    """

    lane: str
    lasts: tuple[float, float]
    noticed_by: frozenset[str]
    scope: Scope = "process"
    after: float = 1.0
    loses: tuple[str, ...] = ("unreachable", "stalled")
    cuts: bool = True


_HELD_UP = ("unreachable", "stalled", "expired", "taken_over")
_POINT = (0.0, 0.0)

KINDS = {
    # The network of one process. Frozen: nothing comes through either way, new links included.
    "frozen network": Kind(lane="process", lasts=(0.2, 3.0), noticed_by=FAILED),
    # Slow: a renewal, claim or release that took as long as one way is delayed.
    "slow replies": Kind(lane="process", lasts=(0.3, 2.0), noticed_by=FAILED | {"Slow"}),
    "slow requests": Kind(lane="process", lasts=(0.3, 2.0), noticed_by=FAILED | {"Slow"}),
    "links reset": Kind(lane="process", lasts=_POINT, noticed_by=FAILED, cuts=False),
    "links refused": Kind(lane="process", lasts=(0.2, 3.0), noticed_by=FAILED),
    # The reply of one statement does not come, which the server carried out, and the link is cut.
    "lost reply: claim": Kind(
        lane="process", lasts=_POINT, noticed_by=frozenset({"WaitingFailed", "error"}), cuts=False
    ),
    "lost reply: renew": Kind(
        lane="process", lasts=_POINT, noticed_by=frozenset({"RenewFailed"}), after=2.0, cuts=False
    ),
    # It is asked again: told after the reply was lost, of a tenure that the server had released before.
    "lost reply: release": Kind(
        lane="process", lasts=_POINT, noticed_by=frozenset({"Released again", "ReleaseFailed"}), cuts=False
    ),
    "lost reply: commit": Kind(lane="process", lasts=_POINT, noticed_by=frozenset({"error"}), cuts=False),
    # The server's sessions of one process.
    "session stopped": Kind(lane="process", lasts=(0.2, 3.0), noticed_by=FAILED | {"Slow"}),
    "session ended": Kind(lane="process", lasts=_POINT, noticed_by=FAILED, cuts=False),
    # The process itself. Stopped and blocked are told when it goes on; killed by whoever takes its keys over.
    "process stopped": Kind(lane="process", lasts=(0.2, 4.0), noticed_by=LATE, loses=_HELD_UP),
    "process killed": Kind(lane="process", lasts=_POINT, noticed_by=frozenset({"Taken over"}), after=4.0, loses=()),
    "loop blocked": Kind(lane="process", lasts=(0.2, 2.5), noticed_by=LATE, loses=_HELD_UP),
    # The copy of a lease in the child says that it is not held, and refuses its calls.
    "forked": Kind(lane="process", lasts=_POINT, noticed_by=frozenset({"Copy refused"}), loses=(), cuts=False),
    "pool exhausted": Kind(lane="process", lasts=(0.3, 3.0), noticed_by=FAILED),
    # A call of a lease is cancelled, and the cancellation comes out of it; replies are slow until it was, so that there
    # is time for it.
    "cancelled: acquire": Kind(lane="process", lasts=_POINT, noticed_by=frozenset({"Cancelled acquire"}), loses=()),
    "cancelled: body": Kind(
        lane="process", lasts=_POINT, noticed_by=frozenset({"Cancelled body"}), loses=(), cuts=False
    ),
    "cancelled: exit": Kind(lane="process", lasts=_POINT, noticed_by=frozenset({"Cancelled exit"}), loses=()),
    # A row that is held at that time.
    "row locked": Kind(
        lane="rows",
        lasts=(0.2, 2.5),
        noticed_by=frozenset({"RenewFailed", "ReleaseFailed", "Lost unreachable"}),
        scope="key",
    ),
    # Operators. Pruned and advanced are answers to them; an advance is also heard of by whoever holds.
    "revoked": Kind(
        lane="operator", lasts=_POINT, noticed_by=frozenset({"Revoked"}), scope="key", loses=("revoked",), cuts=False
    ),
    "revoked by force": Kind(
        lane="operator",
        lasts=_POINT,
        noticed_by=frozenset({"Lost revoked", "Lost taken_over", "Lost expired", "Lost deleted"}),
        scope="key",
        loses=("revoked", "taken_over", "expired", "deleted"),
        cuts=False,
    ),
    "pruned": Kind(
        lane="operator", lasts=_POINT, noticed_by=frozenset({"Pruned"}), scope="server", loses=(), cuts=False
    ),
    "advanced": Kind(
        lane="fences",
        lasts=_POINT,
        noticed_by=frozenset({"Lost taken_over"}),
        scope="server",
        loses=("taken_over",),
        cuts=False,
    ),
    # The whole server: as after a crash; and every transaction read-only unless it says otherwise.
    "server restarted": Kind(lane="server", lasts=_POINT, noticed_by=FAILED, scope="server"),
    "server read-only": Kind(lane="server", lasts=(0.3, 2.5), noticed_by=FAILED, scope="server"),
}

_PAUSES = {"process": 0.3, "rows": 0.4, "operator": 0.4, "fences": 5.0, "server": 5.0}
"""Seconds from the end of one fault of a lane to the next one, on average."""


class Planned(NamedTuple):
    """A fault to be made: after a pause, of a kind, for so many seconds, with chance (0 to 1) in its choices."""

    pause: float
    kind: str
    lasts: float
    chance: float


def plan(seed: int, lane: str, number: int) -> Iterator[Planned]:
    """Yield the faults of a lane, without end; the same seed, lane and number give the same ones.

    Dealt like cards, so that each kind of the lane comes as often as any other.
    """
    choose = random.Random(f"{seed} {lane} {number}")  # noqa: S311 - for tests
    kinds = [name for name, kind in KINDS.items() if kind.lane == lane]
    while True:
        for name in choose.sample(kinds, len(kinds)):
            lasts = choose.uniform(*KINDS[name].lasts)
            yield Planned(choose.uniform(0, 2 * _PAUSES[lane]), name, lasts, choose.random())
