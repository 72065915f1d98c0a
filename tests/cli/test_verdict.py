"""The demo's verdict, on forged records: a good run is green, and each rule that is broken is red."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.inside import Attempt, DemoTenure, Fault, FaultKind, Records, judge

_TTL = 2.0


def _at(seconds: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def _attempt(seconds: float, worker: str, fence: int, position: int | None) -> Attempt:
    return Attempt(worker, fence, _at(seconds), position)


def _tenure(fence: int, worker: str, begin: float, last_renewal: float, *, released: bool = False) -> DemoTenure:
    return DemoTenure(worker, fence, _at(begin), _at(last_renewal + _TTL), released)


# One second of work for each holder; A hands over to B, B is killed, C is paused, A sees the restart.
GOOD = Records(
    attempts=[
        _attempt(0.5, "A", 1, 1),
        _attempt(1.5, "B", 2, 2),
        _attempt(4.5, "C", 3, 3),
        _attempt(7.5, "A", 4, 4),
        _attempt(7.6, "C", 3, None),
        _attempt(8.5, "A", 4, 5),
    ],
    tenures=[
        _tenure(1, "A", 0, 0.6, released=True),
        _tenure(2, "B", 1, 1.6),
        _tenure(3, "C", 4, 4.6),
        _tenure(4, "A", 7, 8.6, released=True),
    ],
    faults=[
        Fault(FaultKind.HAND_OVER, 1, _at(0.7)),
        Fault(FaultKind.KILL, 2, _at(1.7)),
        Fault(FaultKind.PAUSE, 3, _at(4.7)),
        Fault(FaultKind.RESTART, 4, _at(8)),
    ],
)


def _failed(records: Records) -> set[str]:
    return {finding.rule for finding in judge(records, FaultKind) if not finding.ok}


def _with_attempts(*more: Attempt) -> Records:
    return replace(GOOD, attempts=[*GOOD.attempts, *more])


def _with_tenure(index: int, tenure: DemoTenure) -> Records:
    tenures = list(GOOD.tenures)
    tenures[index] = tenure
    return replace(GOOD, tenures=tenures)


def test_verdict_on_a_good_run_is_green() -> None:
    """A run in which all of it held has no finding against it."""
    assert _failed(GOOD) == set()


def test_verdict_on_no_records_fails_every_rule() -> None:
    """Nothing is proved by a run that recorded nothing."""
    findings = judge(Records([], [], []), FaultKind)
    assert len(findings) == 8
    assert not any(finding.ok for finding in findings)


def test_verdict_on_an_accepted_stale_write_is_red() -> None:
    """A lower fence accepted after a higher one is an overlap, and a stale write that went through."""
    records = _with_attempts(_attempt(8.7, "C", 3, 6))
    assert _failed(records) == {"overlapping accepted writes", "stale writes refused"}


def test_verdict_orders_writes_by_commit_not_by_clock() -> None:
    """The position decides: the same write, counted before the higher fence, overlaps with nothing."""
    attempts = [_attempt(9, "C", 3, 4) if a.position == 4 else a for a in GOOD.attempts]
    attempts = [replace(a, position=6) if a.position == 5 else a for a in attempts]
    assert "overlapping accepted writes" not in _failed(replace(GOOD, attempts=attempts))


def test_verdict_without_a_stale_write_is_red() -> None:
    """A run in which nobody tried a stale write has not shown that the fence refuses one."""
    attempts = [attempt for attempt in GOOD.attempts if attempt.position is not None]
    assert _failed(replace(GOOD, attempts=attempts)) == {"stale writes refused"}


def test_verdict_on_a_refused_write_of_the_holder_is_red() -> None:
    """A fence check that turns the holder away is broken as well."""
    assert _failed(_with_attempts(_attempt(8.7, "A", 4, None))) == {"stale writes refused"}


@pytest.mark.parametrize("fence", [2, 3])
def test_verdict_on_fences_that_do_not_rise_is_red(fence: int) -> None:
    """A tenure with the fence of an earlier one, or a lower one, is found."""
    assert "fences strictly rising" in _failed(_with_tenure(3, _tenure(fence, "A", 7, 8.6)))


@pytest.mark.parametrize("index", [1, 2])
def test_verdict_on_a_take_over_of_a_live_lease_is_red(index: int) -> None:
    """A tenure that begins before an unreleased one has run out is found, whatever the fault was."""
    tenure = replace(GOOD.tenures[index + 1], acquired_at=GOOD.tenures[index].expires_at - timedelta(seconds=0.1))
    expected = {"take-overs of a live lease", GOOD.faults[index].kind.value}
    assert _failed(_with_tenure(index + 1, tenure)) == expected


def test_verdict_on_a_hand_over_that_waited_for_the_ttl_is_red() -> None:
    """A release that lets nobody in before the expiry was none."""
    assert _failed(_with_tenure(1, _tenure(2, "B", 2.7, 1.6))) == {"hand-over"}


def test_verdict_on_a_hand_over_without_release_is_red() -> None:
    """A holder that was asked to finish and did not release is found."""
    assert "hand-over" in _failed(_with_tenure(0, _tenure(1, "A", 0, 0.6)))


@pytest.mark.parametrize("keep", [slice(0, 5), slice(5, 6)], ids=["none after", "none before"])
def test_verdict_on_a_restart_without_writes_on_both_sides_is_red(keep: slice) -> None:
    """A lease has survived a restart where its fence has written before it and after it."""
    kept = [a for a in GOOD.attempts if a.fence != 4] + list(GOOD.attempts[keep])
    assert "restart" in _failed(replace(GOOD, attempts=kept))


@pytest.mark.parametrize("kind", list(FaultKind))
def test_verdict_on_a_fault_that_was_not_done_is_red(kind: FaultKind) -> None:
    """Each planned fault must have been done."""
    faults: Sequence[Fault] = [fault for fault in GOOD.faults if fault.kind != kind]
    assert _failed(replace(GOOD, faults=faults)) == {kind.value}


def test_verdict_on_a_fault_that_nobody_followed_is_red() -> None:
    """A holder that was killed and never replaced is found."""
    records = replace(GOOD, faults=[replace(f, fence=4) if f.kind == "kill -9" else f for f in GOOD.faults])
    assert _failed(records) == {"kill -9"}


def test_verdict_leaves_out_what_was_not_planned() -> None:
    """On a server of one's own there is no restart, and none is asked for."""
    planned = [kind for kind in FaultKind if kind != FaultKind.RESTART]
    faults = [fault for fault in GOOD.faults if fault.kind in planned]
    assert all(finding.ok for finding in judge(replace(GOOD, faults=faults), planned))


def test_verdict_on_a_repeated_fault_takes_the_one_that_shows_it() -> None:
    """A restart that took longer than the ttl is repeated, and the better one counts."""
    faults = [Fault(FaultKind.RESTART, 3, _at(4.7)), *GOOD.faults]
    assert _failed(replace(GOOD, faults=faults)) == set()
