"""What must hold of a run, whatever was done to it: pure functions of its history.

Two things excuse a body that goes on after its tenure, and no others. An operator who ends a tenure by force lets the
successor in beside the body, by definition. And no lease can exclude a process that stands still; so it is excused for
as long as it stood still and not a moment longer: the library tells a body to stop `grace` before its tenure ends, so
whoever is late by d must have done nothing for d + grace. That is how a stalled machine and a faulty library differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.history import Body, History, Tenure, Version, tenures
from tests.chaos.kinds import KINDS
from tests.support.histories import by_key, falling, overlaps

ROUNDING = 0.01
"""Seconds by which two readings of the host's clocks may differ that mean the same moment."""

SLOW = 0.5
"""Seconds within which a key is had once it can be: whoever waits for it looks every 50 ms, and the machine is busy."""

LABEL = "process-"

QUIET = 1.0
"""Seconds of peace at the end of a tenure, in which it could have been released."""

MOMENT = 0.5
"""Seconds within which the server had done what an operator asked for."""


class Broken(NamedTuple):
    """A rule that was broken: what happened, to which key, and when (monotonic; 0 where there is no moment)."""

    what: str
    key: str
    at: float


def overlapping_tenures(history: History) -> Iterator[Broken]:
    """Yield each tenure that began before the one before it was over, by the server's clock."""
    for before, after in _successions(history):
        if after.began < before.until:
            early = before.until - after.began
            yield Broken(
                f"two tenures at once, for {early:.3f} s: {before} and {after}", after.key, history.local(after.began)
            )


def fences_out_of_order(history: History) -> Iterator[Broken]:
    """Yield each version of a row whose fence is not greater than the last tenure's, or lower than its own was."""
    for versions in by_key(sorted(history.versions)).values():
        for before, after in pairwise(versions):
            changed = before.holder != after.holder
            if after.fence < before.fence or (changed and after.fence == before.fence):
                yield _of_version(history, f"fence out of order: {before.fence} and then {after.fence}", after)


def revivals(history: History) -> Iterator[Broken]:
    """Yield each version in which a tenure is live again that had been released, or whose row was deleted."""
    for versions in by_key(sorted(history.versions)).values():
        for before, after in pairwise(versions):
            revived = before.deleted or (before.released and not after.released)
            if before.holder == after.holder and revived and not after.deleted:
                yield _of_version(history, "a tenure that was over lives again", after)


def _of_version(history: History, what: str, version: Version) -> Broken:
    return Broken(f"{what}: {version}", version.key, history.local(version.at))


def unknown_tenures(history: History) -> Iterator[Broken]:
    """Yield each body that believes in a tenure which the server has not got."""
    known = {(tenure.key, tenure.holder, tenure.first) for tenure in tenures(history.versions)}
    for body in history.bodies:
        if (body.key, body.holder, body.fence) not in known:
            yield Broken(f"a body without a tenure: {body}", body.key, body.started)


def bodies_at_once(history: History) -> Iterator[Broken]:
    """Yield every two bodies of a key that ran at once without an excuse."""
    held = _tenures_of(history)
    for first, second in overlaps(history.bodies):
        late = first.ended - second.started
        if not _is_excused(history, first, held.get((first.key, first.holder)), first.ended, late):
            yield Broken(f"two bodies at once, for {late:.3f} s: {first} and {second}", first.key, second.started)


def told_too_late(history: History) -> Iterator[Broken]:
    """Yield each body that had neither ended nor been told to stop when its tenure was over on the server's clock."""
    held = _tenures_of(history)
    for body in history.bodies:
        tenure = held.get((body.key, body.holder))
        if tenure is None:
            continue
        late = lateness(history, body, tenure)
        if late > ROUNDING and not _is_excused(history, body, tenure, body.stopping, late):
            yield Broken(f"told {late:.3f} s too late: {body}, {tenure}", body.key, body.stopping)


def lateness(history: History, body: Body, tenure: Tenure) -> float:
    """Return for how long a body ran on after its tenure was over; negative: it stopped before."""
    return body.stopping - history.local(tenure.until)


def _is_excused(history: History, body: Body, tenure: Tenure | None, until: float, late: float) -> bool:
    if tenure is not None and was_forced(history, tenure):
        return True
    stood_still = history.stood_still(body.process, until, within=body.ttl)
    return stood_still >= late + body.grace - ROUNDING


def was_forced(history: History, tenure: Tenure) -> bool:
    """Tell whether an operator ended a tenure by force: he asked for it, and its expiry was put earlier then."""
    return tenure.cut_at is not None and any(
        fault.kind == "revoked by force"
        and fault.key == tenure.key
        and fault.began - MOMENT <= history.local(tenure.cut_at) <= fault.ended + MOMENT
        for fault in history.faults
    )


def falling_writes(history: History) -> Iterator[Broken]:
    """Yield each accepted write that came after one with a higher fence."""
    for before, after in falling(history.writes):
        yield Broken(f"a lower fence after a higher one: {before} and then {after}", after.key, history.local(after.at))


def stale_writes(history: History) -> Iterator[Broken]:
    """Yield each guarded write that was made after a later tenure of its key had begun."""
    keys = by_key(tenures(history.versions))
    for write in history.writes:
        if write.guarded:
            for tenure in keys.get(write.key, ()):
                if tenure.first > write.fence and tenure.began < write.at:
                    yield Broken(
                        f"a guarded write of a tenure that was over: {write}, {tenure}",
                        write.key,
                        history.local(write.at),
                    )
                    break


def left_claimed(history: History) -> Iterator[Broken]:
    """Yield each tenure that nobody had any more and that ran out all the same, though nothing stood in the way.

    The claim's caller was cancelled, or the body has ended; for long before the end the server could be reached, and
    the process was not held up.
    """
    bodies = {(body.key, body.holder): body for body in history.bodies}
    for tenure in tenures(history.versions):
        body = bodies.get((tenure.key, tenure.holder))
        if body is not None and body.outcome not in {"done", "failed", "cancelled"}:
            continue
        over = history.local(tenure.until)
        left = history.local(tenure.began) if body is None else body.ended
        is_open = tenure.released_at is None and tenure.cut_at is None and tenure.fence == tenure.first
        if is_open and left < over - QUIET and _is_quiet(history, tenure, over - QUIET, over):
            whose = "a claim that nobody had" if body is None else f"a tenure whose body had ended, {body},"
            yield Broken(f"{whose} was not given back: {tenure}", tenure.key, over)


def process_in(holder: str) -> int:
    """Return the number of the process that holds, which is in its label; 0 for an operator."""
    label = holder.partition("/")[0]
    return int(label.removeprefix(LABEL)) if label.startswith(LABEL) else 0


def _is_quiet(history: History, tenure: Tenure, began: float, ended: float) -> bool:
    """Tell whether nothing cut a holder off, or held it up for long, between two moments, and both are in the run."""
    process = process_in(tenure.holder)
    # A session that is stopped in the middle of something may hold up whoever comes next.
    seen = [
        fault
        for fault in history.faults
        if (fault.process in {0, process} and fault.key in {"", tenure.key}) or fault.kind == "session stopped"
    ]
    if any(KINDS[fault.kind].cuts and fault.began < ended and fault.ended > began for fault in seen):
        return False
    # Nobody is there any more to ask again for what had failed.
    if any(fault.kind == "process killed" and fault.process == process and fault.began < ended for fault in seen):
        return False
    return process > 0 and ended < history.closed and history.stood_still(process, ended, ended - began) < MOMENT


def stuck_keys(history: History) -> Iterator[Broken]:
    """Yield each key that was shut for longer than a ttl once nobody was there any more, or not had when it was free.

    All of it by the server's clock alone, which needs no allowance for a busy machine but in the acquisition itself.
    """
    for key in history.keys:
        free, again = free_at(history, key), history.acquired_again.get(key)
        if free > history.left + history.ttl:
            shut = free - history.left
            yield Broken(f"stuck: {key} was shut for {shut:.3f} s, with a ttl of {history.ttl}", key, 0.0)
        if again is None:
            yield Broken(f"stuck: {key} was not to be had when the faults were over", key, 0.0)
        elif again > free + SLOW:
            yield Broken(f"stuck: {key} was to be had {again - free:.3f} s after it was free", key, 0.0)


def free_at(history: History, key: str) -> float:
    """Return when a key was free for the first time after the last process was gone, by the server's clock."""
    until = [
        tenure.until for tenure in tenures(history.versions) if tenure.key == key and process_in(tenure.holder) > 0
    ]
    return max([history.left, *until[-1:]])


def seen_wrong(history: History) -> Iterator[Broken]:
    """Yield what a process saw that must never be: an error of no known kind, a cancellation that was swallowed."""
    for notice in history.wrong:
        yield Broken(f"process {notice.process}: {notice.name}: {notice.detail}", notice.key, notice.at)


RULES: Mapping[str, Callable[[History], Iterator[Broken]]] = {
    "tenures overlap": overlapping_tenures,
    "fences out of order": fences_out_of_order,
    "tenures revived": revivals,
    "bodies without a tenure": unknown_tenures,
    "bodies at once": bodies_at_once,
    "bodies told too late": told_too_late,
    "writes out of order": falling_writes,
    "guarded writes too late": stale_writes,
    "tenures left claimed": left_claimed,
    "keys stuck": stuck_keys,
    "seen by a process": seen_wrong,
}


def broken_rules(history: History) -> dict[str, list[Broken]]:
    """Return what broke each rule, for those that were broken."""
    found = {name: list(rule(history)) for name, rule in RULES.items()}
    return {name: broken for name, broken in found.items() if broken}


def excused(history: History) -> tuple[int, int]:
    """Return how many bodies were told too late with an excuse, and how many ran beside another one."""
    held = _tenures_of(history)
    late = [
        body
        for body in history.bodies
        if (found := held.get((body.key, body.holder))) and lateness(history, body, found) > ROUNDING
    ]
    return len(late) - len(list(told_too_late(history))), len(overlaps(history.bodies)) - len(
        list(bodies_at_once(history))
    )


def _successions(history: History) -> Iterator[tuple[Tenure, Tenure]]:
    for of_key in by_key(tenures(history.versions)).values():
        yield from pairwise(of_key)


def _tenures_of(history: History) -> Mapping[tuple[str, str], Tenure]:
    return {(tenure.key, tenure.holder): tenure for tenure in tenures(history.versions)}
