"""What judges the runs with paused holders finds each thing that must not be, on forged histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.fencing.paused_history import History, Write, complaints, faults, table
from tests.fencing.paused_tenures import AT_ONCE, CONTROL, GUARDED, PARTS, PATHS, POINTS, Tenure, plan
from tests.fencing.writing import ISOLATIONS

GUARDED_TENURE = Tenure(1, "transaction", "read_committed", "batch")
CONTROL_TENURE = replace(GUARDED_TENURE, path="select")
OLD = tuple(Write(number, 1) for number in (1, 2, 3))
NEW = tuple(Write(number, 2) for number in (11, 12, 13))
OLD_SEEN, NEW_SEEN = frozenset({1, 2, 3}), frozenset({11, 12, 13})


def history(**changes: Any) -> History:  # noqa: ANN401
    """Return that of a guarded holder which committed before its successor began, with changes."""
    sound: dict[str, Any] = {
        "tenure": GUARDED_TENURE,
        "fence": 1,
        "outcome": "committed",
        "taken_by": 2,
        "refused": True,
        "granted_in_stop": False,
        "before": OLD_SEEN | NEW_SEEN,
        "after": OLD_SEEN | NEW_SEEN,
        "final": OLD + NEW,
    }
    return History(**{**sound, **changes})


STALE: dict[str, Any] = {"before": NEW_SEEN, "after": NEW_SEEN}
CLOSE: dict[str, Any] = {"before": NEW_SEEN, "after": OLD_SEEN | NEW_SEEN}
NOT_THERE: dict[str, Any] = {"before": NEW_SEEN, "after": NEW_SEEN, "final": NEW}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"outcome": "broken off"},
        {**NOT_THERE, "outcome": "refused"},
        {**NOT_THERE, "outcome": "broken off", "granted_in_stop": True},
        {**STALE, "tenure": CONTROL_TENURE},
        {**CLOSE, "tenure": CONTROL_TENURE},
    ],
)
def test_history_that_is_sound_has_no_fault(changes: dict[str, Any]) -> None:
    """A holder commits before its successor, or not at all; the control may do what it likes."""
    assert list(faults(history(**changes))) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (STALE, "stale"),
        ({**STALE, "outcome": "broken off"}, "stale"),
        (CLOSE, "close"),
        ({"taken_by": 1, "fence": 1, "final": OLD, "before": OLD_SEEN, "after": OLD_SEEN}, "the successor of fence 1"),
        ({"final": (*OLD[:2], *NEW), "before": NEW_SEEN | {1, 2}, "after": NEW_SEEN | {1, 2}}, "2 of 3 parts"),
        (NOT_THERE, "nothing is there"),
        ({"outcome": "refused"}, "its writes are there"),
        ({"final": OLD + NEW[:2], "before": OLD_SEEN, "after": OLD_SEEN}, "not all there"),
        ({"after": OLD_SEEN | NEW_SEEN | {99}}, "vanished"),
    ],
)
def test_history_that_breaks_a_rule_has_that_fault_alone(changes: dict[str, Any], fault: str) -> None:
    """Each rule is broken by one history, and no other rule with it."""
    (found,) = faults(history(**changes))
    assert fault in found


def runs() -> list[History]:
    """Return sound histories of everything that is to be seen."""
    found = []
    for batch in plan(1, 1):
        for tenure in batch:
            if tenure.path in CONTROL:
                found.append(history(**STALE, tenure=tenure, refused=False))
            else:
                ended = {**NOT_THERE, "outcome": "broken off", "granted_in_stop": True}
                found.append(history(tenure=tenure, **(ended if tenure.ends == "server" else {})))
    return found


def judged(histories: Sequence[History], least_guarded: int = 90, least_stale: int = 30) -> list[str]:
    """Return the complaints."""
    return list(complaints(histories, least_guarded=least_guarded, least_stale=least_stale))


def test_runs_in_which_all_was_seen_have_no_complaint() -> None:
    """Each path at each point, refusals, sessions ended by the server, and stale commits of the control."""
    assert judged(runs()) == []


def test_fault_of_one_run_is_a_complaint_that_names_it() -> None:
    """One stale commit among all runs is enough."""
    found = runs()
    index = next(index for index, each in enumerate(found) if each.tenure.path == "guard")
    found[index] = replace(found[index], **STALE, final=OLD + NEW)
    (complaint,) = judged(found)
    assert repr(found[index].tenure) in complaint
    assert "stale" in complaint


def test_too_few_runs_or_too_few_stale_ones_are_complaints() -> None:
    """What has hardly run, or could not fail, shows nothing."""
    assert judged(runs(), least_guarded=91) == ["90 runs of guarded paths, fewer than 91"]
    assert judged(runs(), least_stale=31) == ["30 stale commits in 30 runs without a guard, fewer than 31"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_control_that_never_fails_in_an_isolation_is_a_complaint(isolation: str) -> None:
    """Where the control is saved by something else, the guards would be too."""
    found = [
        replace(each, before=OLD_SEEN | NEW_SEEN, after=OLD_SEEN | NEW_SEEN)
        if each.tenure.path in CONTROL and each.tenure.isolation == isolation
        else each
        for each in runs()
    ]
    (complaint,) = judged(found, least_stale=20)
    assert f"no stale commit without a guard in {isolation}" in complaint


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("point", POINTS)
def test_point_at_which_a_path_was_never_stopped_is_a_complaint(path: str, point: str) -> None:
    """A run that leaves something out does not pass for one that saw it."""
    found = [each for each in runs() if (each.tenure.path, each.tenure.point) != (path, point)]
    assert f"{path} was never stopped at {point}" in judged(found, least_guarded=0, least_stale=0)


@pytest.mark.parametrize("path", GUARDED)
def test_guard_that_kept_nobody_out_is_a_complaint(path: str) -> None:
    """A guarded transaction that never met a successor shows nothing."""
    found = [replace(each, refused=False) if each.tenure.path == path else each for each in runs()]
    assert judged(found) == [f"{path} never kept a successor out until its process went on"]


def test_runs_in_which_the_server_ended_nobody_are_a_complaint() -> None:
    """The idle timeout is a part of what is to be seen."""
    found = [replace(each, granted_in_stop=False) for each in runs()]
    assert judged(found) == ["no guarded transaction was ended by the server"]


def test_table_counts_each_run_once_in_its_line_and_once_in_a_sum() -> None:
    """The sums are of all guarded runs and of all of the control."""
    found = runs()
    _head, *lines, guarded, control = table(found)
    numbers = [[int(cell) for cell in line[30:].split()] for line in (*lines, guarded, control)]
    assert [row[0] for row in numbers] == [5] * 24 + [90, 30]
    assert numbers[-2][1:6] == [18] * 5
    assert [row[-1] for row in numbers] == [0] * 18 + [5] * 6 + [0, 30]
    assert numbers[-2][7] == 90
    assert numbers[-2][8] == sum(each.tenure.ends == "server" for each in found)


def test_plan_of_a_seed_is_always_the_same_and_another_seeds_is_another() -> None:
    """A failure can be had again."""
    assert plan(2, 7) == plan(2, 7)
    assert plan(2, 7) != plan(2, 8)


def test_plan_has_every_path_isolation_and_point_once_a_round() -> None:
    """In batches that one process can hold, each tenure with a number of its own."""
    batches = plan(2, 7)
    tenures = [tenure for batch in batches for tenure in batch]
    assert max(map(len, batches)) <= AT_ONCE
    assert len({tenure.number for tenure in tenures}) == len(tenures) == 240
    assert len({(tenure.path, tenure.isolation, tenure.point) for tenure in tenures[:120]}) == 120
    assert len(OLD) == PARTS
