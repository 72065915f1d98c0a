"""What judges the long run finds each thing that must not be, on forged histories."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.machine.long_run_history import OUTCOMES, Body, History, Write, complaints, faults, sort_overlaps, summary

FIRST = Body(key="a", fence=1, process=1, acquired_at=100.0, started=10.0, ended=11.0, outcome="lost: revoked", ttl=1.0)
SECOND = replace(FIRST, fence=2, process=2, acquired_at=102.0, started=12.0, ended=13.0, outcome="killed")
THIRD = replace(FIRST, fence=9, process=3, acquired_at=104.0, started=14.0, ended=15.0, outcome="done")


def sound() -> History:
    """Return a history in which everything was seen and nothing is wrong."""
    return History(
        bodies=[FIRST, SECOND, THIRD, replace(FIRST, key="b", process=4, outcome="done")],
        writes=[Write(1, "a", 1), Write(2, "a", 2), Write(3, "b", 1), Write(4, "a", 9)],
        refused=1,
        revokes=Counter(OUTCOMES),
        prunes=2,
        pruned=1,
        advances=[8],
        kills=1,
        last={"a": 10, "b": 9},
    )


def test_history_that_is_sound_has_no_complaint() -> None:
    """Bodies one after the other, fences and writes that rise, and all was seen."""
    assert complaints(sound(), least=4) == []


@pytest.mark.parametrize("fence", [2, 1])
def test_fence_that_does_not_rise_is_a_fault(fence: int) -> None:
    """The same one for a second tenure is as wrong as a lower one."""
    history = sound()
    history.bodies[2] = replace(THIRD, fence=fence)
    (fault,) = faults(history)
    assert fault.startswith("fence out of order")


def test_order_of_fences_is_that_of_the_servers_clock() -> None:
    """A body that began first, in a process that was quicker, was not acquired first by that."""
    history = sound()
    history.bodies[1] = replace(SECOND, acquired_at=99.0)
    assert [fault.partition(":")[0] for fault in faults(history)] == ["fence out of order"]


@pytest.mark.parametrize("ended", [12.5, float("inf")])
def test_bodies_that_overlap_are_a_fault(ended: float) -> None:
    """One that begins before the last one of its key has ended, or while it goes on for ever."""
    history = sound()
    history.bodies[0] = replace(FIRST, ended=ended)
    assert {fault.partition(":")[0] for fault in faults(history)} == {"two bodies at once"}


def test_bodies_of_two_keys_do_not_overlap() -> None:
    """Each key is a matter of its own."""
    history = sound()
    history.bodies[3] = replace(history.bodies[3], started=0.0, ended=99.0)
    assert list(faults(history)) == []


def test_body_that_outlasts_two_successors_overlaps_with_both() -> None:
    """Also with the one that is not the next."""
    history = sound()
    history.bodies[0] = replace(FIRST, ended=14.5)
    assert sort_overlaps(history)["none"] == [(history.bodies[0], SECOND), (history.bodies[0], THIRD)]


def test_overlap_after_a_forced_revoke_is_counted_apart() -> None:
    """By force a successor starts beside the body that was revoked, and beside no other."""
    history = sound()
    history.bodies[0] = replace(FIRST, ended=12.5)
    history.forced = {("a", 1)}
    assert list(faults(history)) == []
    assert len(sort_overlaps(history)["forced"]) == 1
    history.forced = {("a", 2), ("b", 1)}
    assert len(list(faults(history))) == 1


def test_forced_revoke_of_an_advanced_fence_is_of_the_tenure_before() -> None:
    """The row had the advanced fence then, and its holder another one; a fence of nobody's excuses nothing."""
    history = sound()
    history.bodies[1] = replace(SECOND, ended=14.5)
    history.forced = {("a", 8)}
    assert list(faults(history)) == []
    history.advances = [7]
    assert len(list(faults(history))) == 1
    history.advances, history.bodies[0], history.bodies[1] = [8], replace(FIRST, ended=12.5), SECOND
    assert len(list(faults(history))) == 1


def test_overlap_of_a_process_that_stood_still_is_counted_apart() -> None:
    """Half a ttl and more is what no lease can exclude; less is no excuse."""
    history = sound()
    history.bodies[0] = replace(FIRST, ended=12.5, stood_still=0.5)
    assert list(faults(history)) == []
    history.bodies[0] = replace(FIRST, ended=12.5, stood_still=0.4)
    assert len(list(faults(history))) == 1


def test_write_of_a_lower_fence_after_a_higher_one_is_a_fault() -> None:
    """In the order of acceptance, whatever the order in which they were read."""
    history = sound()
    history.writes = [Write(5, "a", 2), Write(4, "a", 9), Write(6, "b", 1)]
    (fault,) = faults(history)
    assert fault.startswith("a lower fence was written after a higher one")


def test_guarded_write_that_its_fence_refused_is_a_fault() -> None:
    """A guard that is passed by a stale holder is none."""
    history = sound()
    history.guarded_refused = [("a", 1)]
    (fault,) = faults(history)
    assert fault.startswith("a guarded transaction of 'a'")


@pytest.mark.parametrize("last", [{"b": 9}, {"a": 9, "b": 9}])
def test_key_that_is_not_to_be_had_in_the_end_is_a_fault(last: dict[str, int]) -> None:
    """Nor may its last fence be one that was handed out before."""
    history = sound()
    history.last = last
    (fault,) = faults(history)
    assert fault.startswith("'a' was not acquired in the end")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"pruned": 0}, "no row was pruned"),
        ({"advances": []}, "no fence was advanced"),
        ({"refused": 0}, "no late write was refused"),
        ({"bodies": [FIRST, THIRD, replace(FIRST, key="b")]}, "no process was killed in a body whose key was"),
        ({"bodies": [replace(FIRST, outcome="done"), SECOND, THIRD]}, "no body was stopped by a revoke"),
        *(({"revokes": Counter({*OUTCOMES} - {outcome})}, f"answered with '{outcome}'") for outcome in OUTCOMES),
    ],
)
def test_history_that_has_not_seen_something_is_a_complaint(changes: dict[str, object], complaint: str) -> None:
    """A run that leaves something out shows nothing of it."""
    (found,) = complaints(replace(sound(), **changes), least=3)  # type: ignore[arg-type] # fields of each their type
    assert complaint in found


def test_too_few_acquisitions_are_a_complaint() -> None:
    """A run that ended early says so."""
    assert complaints(sound(), least=5) == ["4 acquisitions, fewer than 5"]


def test_summary_counts_what_was_seen() -> None:
    """Each number is where a reader looks for it."""
    lines = dict(line.split(maxsplit=1) for line in summary(sound()))
    assert lines["acquisitions"] == "4"
    assert lines["killed"] == "processes    1, take-overs of what they held: 1"
    assert lines["prunes"] == "2, rows deleted: 1"
    assert lines["overlaps"] == "0"
