"""What must hold of a long run with crashes, revokes and prunes, as pure functions of what was seen.

A body is what ran inside a block, from its first line to its last, by the one monotonic clock of the host. That of a
process that was killed ended with the process. A tenure begins on the server's clock, and what was written is numbered
under the lock of the row that every write of the key updates: so both have an order that nobody's clock can bend.

A forced revoke expires the row beside a body that still runs, by definition; so the successor may begin beside that one
body, which is counted apart. So is one whose process stood still for half of its lease or longer, which no lease can
exclude: it says so itself, by a clock that ticks beside it. Neither may write anything out of order.

An operator forces the tenure whose fence he saw in the row. Where all fences were advanced before, that is not the one
that its holder knows: it is the fence to which they were advanced, and the tenure is the last one below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from tests.support.histories import by_key, falling, overlaps

OUTCOMES = ("revoked", "already_revoked", "other_tenure", "expired", "resting", "free", "unknown")
"""The answers of a revoke that a long run has to meet."""


class Write(NamedTuple):
    """A write that was accepted, numbered in the order of acceptance among those of its key."""

    number: int
    key: str
    fence: int


@dataclass(slots=True, kw_only=True)
class Body:
    """One body.

    Attributes:
        key: The key.
        fence: Its tenure's.
        process: Who ran it, one number for each process that was started.
        acquired_at: When its tenure began, seconds of the server's clock.
        started: Its first line, seconds of the host's monotonic clock.
        ended: Its last line; that of a killed one is when the process was gone.
        outcome: "done", "lost" (with the reason), or "killed".
        stood_still: The longest time for which its process did nothing, while it ran.
        ttl: Its lease's.
    """

    key: str
    fence: int
    process: int
    acquired_at: float
    started: float
    ttl: float
    ended: float = float("inf")
    outcome: str = "killed"
    stood_still: float = 0.0


@dataclass(slots=True, kw_only=True)
class History:
    """What was seen of one run.

    Attributes:
        bodies: All bodies.
        writes: All writes that were accepted.
        refused: How many late writes of tenures that were over were refused by their fence.
        guarded_refused: Guarded writes that were refused by their fence: key and fence.
        forced: The fences that forced revokes have named: key and fence.
        revokes: How many revokes had which outcome.
        prunes: How many prunes there were.
        pruned: How many rows they deleted.
        advances: The fences that advance_fences has answered.
        kills: How many processes were killed.
        last: The fence with which each key could be acquired in the end; a key that could not be is missing.
    """

    bodies: list[Body] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    refused: int = 0
    guarded_refused: list[tuple[str, int]] = field(default_factory=list)
    forced: set[tuple[str, int]] = field(default_factory=set)
    revokes: Counter[str] = field(default_factory=Counter)
    prunes: int = 0
    pruned: int = 0
    advances: list[int] = field(default_factory=list)
    kills: int = 0
    last: dict[str, int] = field(default_factory=dict)

    @property
    def crashes_taken_over(self) -> int:
        """How many keys were acquired again after the process that had them was killed in the middle of a body."""
        return sum(
            before.outcome == "killed" for bodies in _by_key(self.bodies).values() for before, _ in pairwise(bodies)
        )

    def lost(self, reason: str) -> int:
        """Return how many bodies were told of a loss for this reason."""
        return sum(body.outcome == f"lost: {reason}" for body in self.bodies)


def _by_key(bodies: Iterable[Body]) -> Mapping[str, list[Body]]:
    """Return each key's bodies in the order in which they were acquired on the server's clock."""
    return by_key(sorted(bodies, key=lambda body: body.acquired_at))


def out_of_order(history: History) -> list[tuple[Body, Body]]:
    """Return each body and the next one of its key whose fence is not greater."""
    return [
        (before, after)
        for bodies in _by_key(history.bodies).values()
        for before, after in pairwise(bodies)
        if after.fence <= before.fence
    ]


def forced_tenures(history: History) -> set[tuple[str, int]]:
    """Return the tenures that forced revokes have ended, or may have, by the fences that their holders know."""
    keys = _by_key(history.bodies)
    found = set(history.forced)
    for key, fence in history.forced:
        if fence in history.advances:
            found.add((key, max((body.fence for body in keys.get(key, []) if body.fence <= fence), default=fence)))
    return found


def sort_overlaps(history: History) -> Mapping[str, list[tuple[Body, Body]]]:
    """Return the overlaps by what the first body's excuse is: "forced", "stood still", or "none"."""
    forced = forced_tenures(history)
    sorted_: dict[str, list[tuple[Body, Body]]] = {"forced": [], "stood still": [], "none": []}
    for first, second in overlaps(history.bodies):
        if (first.key, first.fence) in forced:
            sorted_["forced"].append((first, second))
        elif first.stood_still >= first.ttl / 2:
            sorted_["stood still"].append((first, second))
        else:
            sorted_["none"].append((first, second))
    return sorted_


def faults(history: History) -> Iterator[str]:
    """Yield all that must never be."""
    for before, after in out_of_order(history):
        yield f"fence out of order: {before} and then {after}"
    for first, second in sort_overlaps(history)["none"]:
        yield f"two bodies at once: {first} and {second}"
    for earlier, later in falling(history.writes):
        yield f"a lower fence was written after a higher one: {earlier} and then {later}"
    for key, fence in history.guarded_refused:
        yield f"a guarded transaction of {key!r} with fence {fence} was refused: a higher one had written"
    highest: Counter[str] = Counter()
    for body in history.bodies:
        highest[body.key] = max(highest[body.key], body.fence)
    for key, fence in highest.items():
        if history.last.get(key, 0) <= fence:
            yield f"{key!r} was not acquired in the end with a fence above {fence}, but: {history.last.get(key)}"


def unseen(history: History, *, least: int) -> Iterator[str]:
    """Yield what a run that shows something has to have seen, and this one has not."""
    if len(history.bodies) < least:
        yield f"{len(history.bodies)} acquisitions, fewer than {least}"
    for outcome in OUTCOMES:
        if not history.revokes[outcome]:
            yield f"no revoke was answered with {outcome!r}"
    seen = {
        "process was killed in a body whose key was acquired again": history.crashes_taken_over,
        "body was stopped by a revoke": history.lost("revoked"),
        "row was pruned": history.pruned,
        "fence was advanced": len(history.advances),
        "late write was refused": history.refused,
    }
    for name, count in seen.items():
        if not count:
            yield f"no {name}"


def complaints(history: History, *, least: int) -> list[str]:
    """Return all that is wrong with a run of which so many acquisitions were asked for."""
    return [*faults(history), *unseen(history, least=least)]


def summary(history: History) -> Iterator[str]:
    """Yield the lines of the results."""
    found = {excuse: len(pairs) for excuse, pairs in sort_overlaps(history).items()}
    revokes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(history.revokes.items()))
    ends = Counter(body.outcome for body in history.bodies)
    yield f"acquisitions        {len(history.bodies)}"
    yield f"their bodies        {', '.join(f'{count} {end}' for end, count in ends.most_common())}"
    yield f"killed processes    {history.kills}, take-overs of what they held: {history.crashes_taken_over}"
    yield f"revokes             {revokes}"
    yield f"prunes              {history.prunes}, rows deleted: {history.pruned}"
    yield f"advances of fences  {len(history.advances)}"
    yield f"writes              {len(history.writes)} accepted, {history.refused} late ones refused"
    yield f"overlaps            {found['none']}"
    yield f"excused overlaps    {found['forced']} after a forced revoke, {found['stood still']} of a stalled process"
    yield f"fences out of order {len(out_of_order(history))}, writes out of order {len(falling(history.writes))}"
