"""What the demo promised, checked against what was recorded: pure functions over records."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Attempt:
    """One write that a worker tried, as the database recorded it.

    `position` numbers the accepted writes in the order of their commits: it was counted in the row that
    they all lock. It is None where the fence check refused the write.
    """

    worker: str
    fence: int
    at: datetime
    position: int | None


@dataclass(frozen=True, slots=True)
class Tenure:
    """One holding of the lease, as its worker reported it, in the server's time.

    `expires_at` is the latest expiry that the worker reported; the real one may be later, never earlier.
    `lost` is the reason where the worker reported a loss.
    """

    worker: str
    fence: int
    acquired_at: datetime
    expires_at: datetime
    released: bool
    lost: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """The end of a tenure in order, as the database recorded it."""

    fence: int
    at: datetime


class FaultKind(StrEnum):
    """What is done to a holder."""

    HAND_OVER = "hand-over"
    KILL = "kill -9"
    PAUSE = "pause"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done while the tenure with this fence was the current one, in the server's time.

    `until` is when it was undone: a paused worker went on, a server was back.
    """

    kind: FaultKind
    fence: int
    at: datetime
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """All that a run of the demo has left behind."""

    attempts: Sequence[Attempt]
    tenures: Sequence[Tenure]
    faults: Sequence[Fault]
    releases: Sequence[Release] = ()
    workers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the verdict."""

    rule: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that is over; `failure` says why it was broken off, where it was, `fenced` whether writes were checked."""

    records: Records
    findings: Sequence[Finding]
    failure: str = ""
    fenced: bool = True

    @property
    def green(self) -> bool:
        """Whether everything was done and everything held."""
        return not self.failure and all(finding.ok for finding in self.findings)


def judge(records: Records, planned: Iterable[FaultKind]) -> tuple[Finding, ...]:
    """Judge a run: the rules that hold for all of it, then each fault that was planned for it."""
    return (
        find_overlaps(records),
        find_fence_order(records),
        find_early_takeovers(records),
        find_stale_writes(records),
        *(find_fault(records, kind) for kind in planned),
    )


def find_overlaps(records: Records) -> Finding:
    """Find accepted writes of a lower fence that were committed after one of a higher fence.

    Nothing else makes two tenures overlap in what they have written. A run without an accepted write
    shows nothing, and fails.
    """
    accepted = _accepted(records)
    highest = 0
    overlapping = 0
    for attempt in accepted:
        overlapping += attempt.fence < highest
        highest = max(highest, attempt.fence)
    ok = bool(accepted) and not overlapping
    return Finding("overlapping accepted writes", ok, f"{overlapping} of {len(accepted)}")


def find_fence_order(records: Records) -> Finding:
    """Check that each tenure, in the server's time, has a higher fence than the one before it."""
    fences = [tenure.fence for tenure in _in_order(records)]
    ok = bool(fences) and all(before < after for before, after in pairwise(fences))
    return Finding("fences strictly rising", ok, " ".join(map(str, fences)) or "none")


def find_early_takeovers(records: Records) -> Finding:
    """Find tenures that began before the one before them had been released or had run out."""
    changes = list(pairwise(_in_order(records)))
    early = sum(not before.released and after.acquired_at < before.expires_at for before, after in changes)
    return Finding("take-overs of a live lease", bool(changes) and not early, f"{early} of {len(changes)}")


def find_stale_writes(records: Records) -> Finding:
    """Check that stale writes were tried and that exactly they were refused.

    A write is stale where one of a higher fence had been accepted before it. A run without any shows
    nothing, and fails; so does one in which a write was refused that was not stale.
    """
    stale = stale_attempts(records)
    refused = [attempt for attempt in stale if attempt.position is None]
    wronged = sum(attempt.position is None for attempt in records.attempts) - len(refused)
    ok = bool(stale) and len(refused) == len(stale) and not wronged
    detail = f"{len(refused)} of {len(stale)} attempted"
    if wronged:
        detail += f", and {wronged} that were not stale"
    return Finding("stale writes refused", ok, detail)


def stale_attempts(records: Records) -> list[Attempt]:
    """List the writes before which one of a higher fence had been accepted."""
    accepted = _accepted(records)
    return [attempt for attempt in records.attempts if _is_stale(attempt, accepted)]


def find_fault(records: Records, kind: FaultKind) -> Finding:
    """Check that a fault was done, and that what followed is what a lease promises for it.

    Where a fault was repeated, one that shows it is enough: the rules above hold for all of them.
    """
    check = _CHECKS[kind]
    findings = [check(records, fault) for fault in records.faults if fault.kind is kind]
    not_done = Finding(kind, ok=False, detail="was not done")
    return next((found for found in findings if found.ok), findings[-1] if findings else not_done)


def _check_hand_over(records: Records, fault: Fault) -> Finding:
    before, after = _around(records, fault)
    if before is None or after is None:
        return Finding(fault.kind, ok=False, detail="nobody took over")
    to_spare = (before.expires_at - after.acquired_at).total_seconds()
    ok = before.released and to_spare > 0
    detail = f"fence {before.fence} to {after.fence}, {to_spare:.1f} s before its expiry"
    return Finding(fault.kind, ok, detail)


def _check_expiry(records: Records, fault: Fault) -> Finding:
    before, after = _around(records, fault)
    if before is None or after is None:
        return Finding(fault.kind, ok=False, detail="nobody took over")
    late = (after.acquired_at - before.expires_at).total_seconds()
    ok = not before.released and late >= 0
    return Finding(fault.kind, ok, f"fence {before.fence} to {after.fence}, {late:.1f} s after its expiry")


def _check_restart(records: Records, fault: Fault) -> Finding:
    accepted = [attempt for attempt in _accepted(records) if attempt.fence == fault.fence]
    earlier = sum(attempt.at < fault.at for attempt in accepted)
    later = sum(attempt.at > (fault.until or fault.at) for attempt in accepted)
    detail = f"fence {fault.fence} wrote {earlier} times before and {later} after"
    return Finding(fault.kind, bool(earlier and later), detail)


_CHECKS: dict[FaultKind, Callable[[Records, Fault], Finding]] = {
    FaultKind.HAND_OVER: _check_hand_over,
    FaultKind.KILL: _check_expiry,
    FaultKind.PAUSE: _check_expiry,
    FaultKind.RESTART: _check_restart,
}


def _accepted(records: Records) -> list[Attempt]:
    placed = [(attempt.position, attempt) for attempt in records.attempts if attempt.position is not None]
    return [attempt for _, attempt in sorted(placed, key=lambda pair: pair[0])]


def _is_stale(attempt: Attempt, accepted: Sequence[Attempt]) -> bool:
    higher = (other for other in accepted if other.fence > attempt.fence)
    if attempt.position is None:
        return any(other.at < attempt.at for other in higher)
    return any(other.position < attempt.position for other in higher if other.position is not None)


def _in_order(records: Records) -> list[Tenure]:
    return sorted(records.tenures, key=lambda tenure: tenure.acquired_at)


def _around(records: Records, fault: Fault) -> tuple[Tenure | None, Tenure | None]:
    for before, after in pairwise(_in_order(records)):
        if before.fence == fault.fence:
            return before, after
    return None, None
