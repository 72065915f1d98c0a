"""The kinds of faults: how long each lasts, to whom it is done, and by what it is known to have been noticed.

A fault was noticed where something was told that bears its sign, see `symptoms`: within the fault's own time and the
seconds after it that are said, by the process to which it was done, or about the key to which it was done; signs of a
fault of the whole server may come from any process. Each process has one fault of its own at a time. What another fault
may have brought about as well, of another kind, that was on then, is no sign of either.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Scope = Literal["process", "key", "server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault.

    Attributes:
        lane: Which faults it takes turns with: "process", "rows", "operator", "fences", or "server".
        lasts: Seconds from least to most; zeros for what is over at once.
        signs: Symptoms by which it is known.
        brings: Other symptoms that it may bring about, which no other fault is known by meanwhile.
        anywhere: What it may bring about in whichever process and of whichever key.
        scope: Whose notices count.
        after: Seconds after its end within which they count.
        loses: The reasons of a loss that it can be behind.
        cuts: Whether a lease of its process may not be released, or a claim not be given back, because of it.
    """

    lane: str
    lasts: tuple[float, float]
    signs: frozenset[str]
    brings: frozenset[str] = frozenset()
    anywhere: frozenset[str] = frozenset()
    scope: Scope = "process"
    after: float = 1.0
    loses: tuple[str, ...] = ("unreachable", "stalled")
    cuts: bool = True


_HELD_UP = ("unreachable", "stalled", "expired", "taken_over")
_POINT = (0.0, 0.0)

_AT_ONCE = 0.5
"""Seconds within which whoever uses what was cut, or stood still, says so: a write pauses for up to 0.3 s."""


def _only(*symptoms: str) -> frozenset[str]:
    return frozenset(symptoms)


# No answer for a while; and what comes of it for those who wait for a connection.
_SILENCE = _only("silent", "slow", "no connection", "overtaken")
_STOOD_STILL = _only("silent", "slow", "no connection", "closed", "overtaken")


def _standing_still(shortest: float, longest: float) -> Kind:
    """Return the kind of a process, or its loop, that does nothing for a while."""
    return Kind(
        lane="process",
        lasts=(shortest, longest),
        after=_AT_ONCE,
        signs=_only("stood still", "stalled"),
        brings=_STOOD_STILL,
        loses=_HELD_UP,
    )


KINDS = {
    # The network of one process. Frozen: nothing comes through either way, new links included.
    "frozen network": Kind(lane="process", lasts=(0.2, 3.0), signs=_only("silent", "held up"), brings=_SILENCE),
    # Slow: a renewal or a write that took as long as one way is delayed, or was given up.
    "slow replies": Kind(lane="process", lasts=(0.8, 2.0), signs=_only("silent", "as slow"), brings=_SILENCE),
    "slow requests": Kind(lane="process", lasts=(0.8, 2.0), signs=_only("silent", "as slow"), brings=_SILENCE),
    "links reset": Kind(lane="process", lasts=_POINT, signs=_only("closed"), after=_AT_ONCE, cuts=False),
    "links refused": Kind(
        lane="process", lasts=(0.2, 3.0), after=_AT_ONCE, signs=_only("refused"), brings=_only("closed")
    ),
    # The reply of one statement does not come, which the server carried out, and the link is cut.
    "lost reply: claim": Kind(lane="process", lasts=_POINT, signs=_only("closed: claim"), after=_AT_ONCE, cuts=False),
    "lost reply: renew": Kind(lane="process", lasts=_POINT, signs=_only("closed: renew"), after=_AT_ONCE, cuts=False),
    # It is asked again: told after the reply was lost, of a tenure that the server had released before.
    "lost reply: release": Kind(
        lane="process", lasts=_POINT, signs=_only("released again"), after=_AT_ONCE, cuts=False
    ),
    "lost reply: commit": Kind(
        lane="process", lasts=_POINT, signs=_only("closed: commit"), brings=_only("closed"), after=_AT_ONCE, cuts=False
    ),
    # The server's sessions of one process. One that stands still in a statement keeps its rows locked.
    "session stopped": Kind(
        lane="process",
        lasts=(0.5, 3.0),
        signs=_only("session held up"),
        brings=_SILENCE,
        anywhere=_only("row locked"),
    ),
    "session ended": Kind(
        lane="process",
        lasts=_POINT,
        signs=_only("ended by an administrator", "session broken"),
        brings=_only("closed"),
        after=_AT_ONCE,
        cuts=False,
    ),
    # The process itself. Stopped and blocked are told when it goes on; killed by whoever takes its keys over.
    "process stopped": _standing_still(0.2, 4.0),
    "process killed": Kind(lane="process", lasts=_POINT, signs=_only("dead one taken over"), after=4.0, loses=()),
    "loop blocked": _standing_still(0.2, 2.5),
    # The copy of a lease in the child says that it is not held, and refuses its calls.
    "forked": Kind(lane="process", lasts=_POINT, signs=_only("copy refused"), loses=(), cuts=False),
    "pool exhausted": Kind(
        lane="process", lasts=(0.3, 3.0), signs=_only("all connections in use"), brings=_only("no connection")
    ),
    # A call of a lease is cancelled, and the cancellation comes out of it; replies are slow until it was, so that there
    # is time for it.
    "cancelled: acquire": Kind(
        lane="process", lasts=_POINT, after=_AT_ONCE, signs=_only("cancelled: acquire"), brings=_SILENCE, loses=()
    ),
    "cancelled: body": Kind(lane="process", lasts=_POINT, signs=_only("cancelled: body"), loses=(), cuts=False),
    "cancelled: exit": Kind(
        lane="process", lasts=_POINT, after=_AT_ONCE, signs=_only("cancelled: exit"), brings=_SILENCE, loses=()
    ),
    # A row that is held at that time: its renewal finds it locked, and somebody waits for its lock.
    "row locked": Kind(
        lane="rows",
        lasts=(0.2, 2.5),
        after=_AT_ONCE,
        signs=_only("row locked", "waited for"),
        brings=_only("waits for a row", "no connection", "overtaken"),
        scope="key",
    ),
    # Operators.
    "revoked": Kind(lane="operator", lasts=_POINT, signs=_only("revoked"), scope="key", loses=("revoked",), cuts=False),
    "revoked by force": Kind(
        lane="operator",
        lasts=_POINT,
        signs=_only("cut off", "overtaken"),
        scope="key",
        loses=("revoked", "taken_over", "expired", "deleted"),
        cuts=False,
    ),
    "pruned": Kind(
        lane="operator",
        lasts=_POINT,
        signs=_only("deleted"),
        brings=_only("overtaken"),
        scope="server",
        loses=(),
        cuts=False,
    ),
    "advanced": Kind(
        lane="fences",
        lasts=_POINT,
        signs=_only("fence moved"),
        brings=_only("row locked", "waits for a row", "no connection"),
        scope="server",
        loses=("taken_over",),
        cuts=False,
    ),
    # The whole server: as after a crash; and every transaction read-only unless it says otherwise.
    "server restarted": Kind(
        lane="server",
        lasts=_POINT,
        after=_AT_ONCE,
        signs=_only("server not up", "closed"),
        brings=_only("silent", "slow", "no connection"),
        scope="server",
    ),
    "server read-only": Kind(lane="server", lasts=(0.3, 2.5), signs=_only("read-only"), scope="server"),
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
