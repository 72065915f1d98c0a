"""What became of each kind of fault: how often it was made, noticed, and behind a loss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.kinds import KINDS
from tests.chaos.symptoms import bears
from tests.history.history import History, tenures
from tests.history.judge import process_in
from tests.history.records import Fault, Notice
from tests.history.report import EARLY, figures

LINGERS = 0.25
"""Seconds beyond its own within which a fault may be behind what is told, as far as others are to be known by it."""


@dataclass(slots=True)
class Tally:
    """What became of one kind of fault: how often it was made, noticed, and followed by a loss of its own."""

    injected: int = 0
    noticed: int = 0
    lost: int = 0


def tally(history: History) -> dict[str, Tally]:
    """Count, for each kind, its faults, those that were noticed, and the losses that came of them; see `kinds`."""
    notices = [*history.notices, *_derived(history)]
    counts = {name: Tally() for name in KINDS}
    for fault in history.faults:
        kind, count = KINDS[fault.kind], counts[fault.kind]
        near = [notice for notice in notices if _concerns(notice, fault, kind.after + history.ttl)]
        others = [each for each in history.faults if each.kind != fault.kind and _is_beside(each, fault, history.ttl)]
        own = [
            notice
            for notice in near
            if bears(notice, fault, kind.signs | kind.brings)
            and not any(_may_be_behind(other, notice) for other in others)
        ]
        count.injected += 1
        if not any(bears(notice, fault, kind.signs) and notice.at <= fault.ended + kind.after for notice in own):
            continue
        count.noticed += 1
        met = {notice.holder for notice in own if notice.holder}
        lost = {f"Lost {reason}" for reason in kind.loses}
        count.lost += sum(
            notice.name in lost and notice.at <= fault.ended + history.ttl and notice.holder in met for notice in near
        )
    return counts


def unnoticed(history: History) -> list[str]:
    """Return the kinds that a run has not made at all, or that nothing was told of."""
    return [name for name, count in tally(history).items() if not count.noticed]


def summary(history: History) -> Iterator[str]:
    """Yield the lines of the results."""
    counts = tally(history)
    yield f"{'fault':22}{'injected':>9}{'noticed':>9}{'losses':>8}"
    for name, count in counts.items():
        yield f"{name:22}{count.injected:>9}{count.noticed:>9}{count.lost:>8}"
    all_faults = sum(count.injected for count in counts.values())
    yield f"{'all':22}{all_faults:>9}{sum(count.noticed for count in counts.values()):>9}"
    yield ""
    yield from figures(history)


def _is_beside(other: Fault, fault: Fault, ttl: float) -> bool:
    """Tell whether one fault may be behind what is told of the other."""
    reach = KINDS[fault.kind].after + ttl
    return other.began <= fault.ended + reach and other.ended + KINDS[other.kind].after + LINGERS >= fault.began - EARLY


def _may_be_behind(fault: Fault, notice: Notice) -> bool:
    """Tell whether what was told may be of this fault."""
    kind = KINDS[fault.kind]
    within = kind.after + LINGERS
    return (_concerns(notice, fault, within) and bears(notice, fault, kind.signs | kind.brings)) or (
        _is_during(notice, fault, within) and bears(notice, fault, kind.anywhere)
    )


def _concerns(notice: Notice, fault: Fault, within: float) -> bool:
    """Tell whether a notice comes while a fault is on, or so soon after it, and from where it may be noticed."""
    match KINDS[fault.kind].scope:
        case "process":
            return notice.process == fault.process and _is_during(notice, fault, within)
        case "key":
            return notice.key == fault.key and _is_during(notice, fault, within)
        case "server":
            return _is_during(notice, fault, within)


def _is_during(notice: Notice, fault: Fault, within: float) -> bool:
    return fault.began - EARLY <= notice.at <= fault.ended + within


def _derived(history: History) -> Iterator[Notice]:
    """Yield what the table tells, and what is told of by more than one who does not know of the other."""
    yield from _released_again(history)
    for version in history.versions:
        if version.deleted:
            yield Notice(version.at, 0, "Deleted", version.key)
    dead = {body.holder for body in history.bodies if body.outcome == "killed"}
    for notice in history.notices:
        if notice.name == "Taken over" and notice.detail in dead:
            # What is noticed is the end of the one before.
            yield notice._replace(name="Dead one taken over", process=process_in(notice.detail), holder="")
    for turn in history.turns.values():
        if turn.asked and turn.outcome == "cancelled":
            yield Notice(turn.at, turn.process, f"Cancelled {turn.asked}")


def _released_again(history: History) -> Iterator[Notice]:
    """Yield the releases that the library told of after their reply was lost: the server had done them before."""
    released = {
        (tenure.key, tenure.holder): tenure.released_at
        for tenure in tenures(history.versions)
        if tenure.released_at is not None
    }
    for fault in history.faults:
        if fault.kind == "lost reply: release":
            for notice in history.notices:
                done = released.get((notice.key, notice.holder))
                if notice.name == "Released" and done is not None and done < fault.began < notice.at:
                    yield notice._replace(name="Released again")
