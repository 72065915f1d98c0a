"""The rules of every run, whatever was done to it: pure functions of its history.

Two things excuse a body that goes on after its tenure, and no others. An operator who ends a tenure by force lets the
successor in beside the body, by definition. And no lease can exclude a process that stands still. It is excused for as
long as it stood still and not a moment longer: the library tells a body to stop `grace` before its tenure ends, so
whoever is late by d must have done nothing for d + grace. That is how a stalled machine and a faulty library differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from tests.history.history import History, by_key, tenures
from tests.history.records import Body, Tenure, Version, Write

LABEL = "process-"
"""What the label of a holder begins with; the number of its process follows."""

FORCED = "revoked by force"
"""The fault by which an operator ends a tenure beside its body."""

KILLED = "process killed"
"""The fault after which a process gives nothing back."""

STOPPED = "session stopped"
"""The fault that may hold up every process: the session may hold a lock of the server's own."""

ROUNDING = 0.01
"""Seconds by which two readings of the host's clocks may differ that mean the same moment."""

SLOW = 2.0
"""Seconds within which a key is had once it is free: whoever waits looks every 50 ms, and the machine is busy."""

QUIET = 1.0
"""Seconds of peace at the end of a tenure, in which it could have been released."""

MOMENT = 0.5
"""Seconds within which the server had done what an operator asked for."""


class Broken(NamedTuple):
    """A rule that was broken: what happened, to which key, and when (0 if there is no moment)."""

    what: str
    key: str
    at: float


# What the rows say -------------------------------------------------------------------------------


def overlapping_tenures(history: History) -> Iterator[Broken]:
    """Yield each tenure that began before the one before it was over, by the server's clock."""
    for of_key in by_key(tenures(history.versions)).values():
        for before, after in pairwise(of_key):
            if after.began < before.until:
                early = before.until - after.began
                yield Broken(f"two tenures at once, for {early:.3f} s: {before} and {after}", after.key, after.began)


def fences_out_of_order(history: History) -> Iterator[Broken]:
    """Yield each version of a row whose fence is not greater than the last tenure's, or lower than its own was."""
    for before, after in _versions_in_order(history):
        changed = before.holder != after.holder
        if after.fence < before.fence or (changed and after.fence == before.fence):
            yield Broken(f"fence out of order: {before.fence} and then {after.fence}: {after}", after.key, after.at)


def revivals(history: History) -> Iterator[Broken]:
    """Yield each version in which a tenure is live again that had been released, or whose row was deleted."""
    for before, after in _versions_in_order(history):
        revived = before.deleted or (before.released and not after.released)
        if before.holder == after.holder and revived and not after.deleted:
            yield Broken(f"a tenure that was over lives again: {after}", after.key, after.at)


def _versions_in_order(history: History) -> Iterator[tuple[Version, Version]]:
    for versions in by_key(sorted(history.versions)).values():
        yield from pairwise(versions)


# What the bodies say -----------------------------------------------------------------------------


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
        late, tenure = first.ended - second.started, held.get((first.key, first.holder))
        # That a process stands still explains nothing if the other one got in while its tenure was live.
        was_over = tenure is not None and tenure.until <= second.started + ROUNDING
        if tenure is None or not (
            was_forced(history, tenure) or (was_over and _stood_still(history, first, first.ended, late))
        ):
            yield Broken(f"two bodies at once, for {late:.3f} s: {first} and {second}", first.key, second.started)


def overlaps(bodies: Iterable[Body]) -> list[tuple[Body, Body]]:
    """Return every two bodies of a key that ran at once, the one that began first before the other."""
    found = []
    for of_key in by_key(sorted(bodies, key=lambda body: body.started)).values():
        running: list[Body] = []
        for body in of_key:
            running = [other for other in running if other.ended > body.started]
            found += [(other, body) for other in running]
            running.append(body)
    return found


def told_too_late(history: History) -> Iterator[Broken]:
    """Yield each body that had neither ended nor been told to stop when its tenure was over on the server's clock."""
    for body, tenure in _late_bodies(history):
        late = lateness(body, tenure)
        if not (was_forced(history, tenure) or _stood_still(history, body, body.stopping, late)):
            yield Broken(f"told {late:.3f} s too late: {body}, {tenure}", body.key, body.stopping)


def lateness(body: Body, tenure: Tenure) -> float:
    """Return for how long a body ran on after its tenure was over; negative: it stopped before."""
    return body.stopping - tenure.until


def _late_bodies(history: History) -> Iterator[tuple[Body, Tenure]]:
    held = _tenures_of(history)
    for body in history.bodies:
        tenure = held.get((body.key, body.holder))
        if tenure is not None and lateness(body, tenure) > ROUNDING:
            yield body, tenure


def _tenures_of(history: History) -> Mapping[tuple[str, str], Tenure]:
    return {(tenure.key, tenure.holder): tenure for tenure in tenures(history.versions)}


def _stood_still(history: History, body: Body, until: float, late: float) -> bool:
    """Tell whether a body's process did nothing for so long that it explains why the body was late."""
    return history.stood_still(body.process, until, within=body.ttl) >= late + body.grace - ROUNDING


def was_forced(history: History, tenure: Tenure) -> bool:
    """Tell whether an operator ended a tenure by force: he asked for it, and its expiry was put earlier then."""
    return tenure.cut_at is not None and any(
        fault.kind == FORCED
        and fault.key == tenure.key
        and fault.began - MOMENT <= tenure.cut_at <= fault.ended + MOMENT
        for fault in history.faults
    )


def excused(history: History) -> tuple[int, int]:
    """Return how many bodies were told too late with an excuse, and how many ran beside another one."""
    late, beside = len(list(_late_bodies(history))), len(overlaps(history.bodies))
    return late - len(list(told_too_late(history))), beside - len(list(bodies_at_once(history)))


# What was written --------------------------------------------------------------------------------


def falling_writes(history: History) -> Iterator[Broken]:
    """Yield each accepted write that came after one with a higher fence, or may have come after it."""
    for before, after in falling(history.writes):
        yield Broken(f"a lower fence after a higher one: {before} and then {after}", after.key, after.at)


def falling(writes: Iterable[Write]) -> list[tuple[Write, Write]]:
    """Return each accepted write and the next one of its key that has a lower fence; see `Write.place`."""
    keys = by_key(sorted(writes, key=lambda write: (write.order, -write.fence)))
    return [pair for of_key in keys.values() for pair in pairwise(of_key) if pair[1].fence < pair[0].fence]


def stale_writes(history: History) -> Iterator[Broken]:
    """Yield each guarded write that was made after a later tenure of its key had begun."""
    keys = by_key(tenures(history.versions))
    for write in history.writes:
        later = [each for each in keys.get(write.key, ()) if each.first > write.fence and each.began < write.at]
        if write.guarded and later:
            yield Broken(f"a guarded write of a tenure that was over: {write}, {later[0]}", write.key, write.at)


def lost_writes(history: History) -> Iterator[Broken]:
    """Yield each write that a client knows to be committed, and that is not there in the end."""
    for number in sorted(history.confirmed - {write.number for write in history.writes}):
        yield Broken(f"a committed write has vanished: {number}", "", 0.0)


def false_answers(history: History) -> Iterator[Broken]:
    """Yield each transaction that is there in part, or not there though committed, or there though refused."""
    found = Counter((write.key, write.fence) for write in history.writes)
    for answer in history.answers:
        count = found[answer.key, answer.fence]
        may_be = {"committed": {answer.parts}, "refused": {0}}.get(answer.outcome, {0, answer.parts})
        if count not in may_be:
            yield Broken(f"{count} of {answer.parts} writes are there: {answer}", answer.key, answer.at)


# What is left ------------------------------------------------------------------------------------


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
        left = tenure.began if body is None else body.ended
        is_open = tenure.released_at is None and tenure.cut_at is None and tenure.fence == tenure.first
        if is_open and left < tenure.until - QUIET and _is_quiet(history, tenure, tenure.until - QUIET, tenure.until):
            whose = "a claim that nobody had" if body is None else f"a tenure whose body had ended, {body},"
            yield Broken(f"{whose} was not given back: {tenure}", tenure.key, tenure.until)


def process_in(holder: str) -> int:
    """Return the number of the process that holds, which is in its label; 0 for an operator."""
    label = holder.partition("/")[0]
    return int(label.removeprefix(LABEL)) if label.startswith(LABEL) else 0


def _is_quiet(history: History, tenure: Tenure, began: float, ended: float) -> bool:
    """Tell whether nothing cut a holder off, or held it up for long, between two moments, and both are in the run."""
    process = process_in(tenure.holder)
    seen = [
        fault
        for fault in history.faults
        if (fault.process in {0, process} and fault.key in {"", tenure.key}) or fault.kind == STOPPED
    ]
    if any(fault.cuts and fault.began < ended and fault.ended > began for fault in seen):
        return False
    # Nobody is there any more to ask again for what had failed.
    if any(fault.kind == KILLED and fault.process == process and fault.began < ended for fault in seen):
        return False
    return process > 0 and ended < history.closed and history.stood_still(process, ended, ended - began) < MOMENT


def stuck_keys(history: History) -> Iterator[Broken]:
    """Yield each key that was shut for longer than a ttl once nobody was there any more, or not had when it was free.

    All of it by the server's clock alone, which needs no allowance for a busy machine but in the acquisition itself.
    """
    for key in history.keys:
        free, again = free_at(history, key), history.again.get(key)
        if free > history.over + history.ttl:
            shut = free - history.over
            yield Broken(f"stuck: {key} was shut for {shut:.3f} s, with a ttl of {history.ttl}", key, 0.0)
        if again is None:
            yield Broken(f"stuck: {key} could not be acquired when all was over", key, 0.0)
        elif again > free + SLOW:
            yield Broken(f"stuck: {key} was acquired {again - free:.3f} s after it was free", key, 0.0)


def free_at(history: History, key: str) -> float:
    """Return when a key was free for the first time after the last process was gone."""
    until = [
        tenure.until for tenure in tenures(history.versions) if tenure.key == key and process_in(tenure.holder) > 0
    ]
    return max([history.over, *until[-1:]])


def tasks_left(history: History) -> Iterator[Broken]:
    """Yield each task of the library that was still there when its table was closed and had had its time."""
    for notice in history.behind:
        yield Broken(f"process {notice.process}: a task was left behind: {notice.name}", "", notice.at)


# What the processes say --------------------------------------------------------------------------


def false_cancellations(history: History) -> Iterator[Broken]:
    """Yield each turn that was cancelled though nobody asked for it, or was not though somebody did."""
    for turn in history.turns.values():
        if turn.outcome == "cancelled" and not turn.asked:
            yield Broken(f"process {turn.process}: a cancellation that nobody asked for", "", turn.at)
        if turn.outcome == "done" and turn.asked:
            yield Broken(f"process {turn.process}: a cancellation in {turn.asked} was swallowed", "", turn.at)


def seen_wrong(history: History) -> Iterator[Broken]:
    """Yield what a process saw that must never be: an error of no known kind, a guarded write that is refused."""
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
    "writes lost": lost_writes,
    "answers that are false": false_answers,
    "tenures left claimed": left_claimed,
    "keys stuck": stuck_keys,
    "tasks left behind": tasks_left,
    "cancellations lost or invented": false_cancellations,
    "seen by a process": seen_wrong,
}


def broken_rules(history: History) -> dict[str, list[Broken]]:
    """Return what broke each rule, for those that were broken."""
    found = {name: list(rule(history)) for name, rule in RULES.items()}
    return {name: broken for name, broken in found.items() if broken}


def unseen(seen: Mapping[str, int], least: Mapping[str, int]) -> list[str]:
    """Return what a run has seen too rarely to show anything, of what it has to see so often at least."""
    return [
        f"{name}: {seen.get(name, 0)}, fewer than {count}" for name, count in least.items() if seen.get(name, 0) < count
    ]
