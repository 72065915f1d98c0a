"""Holders that are stopped by SIGSTOP in the middle of their writes: the short form of `nox -s fencing`."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from tests.fencing.paused import GUARDED_A_ROUND, Result, run_plan
from tests.fencing.paused_seen import Seen, count, least, stale_keys, table
from tests.fencing.paused_tenures import AT_ONCE, CONTROL, GUARDED, PATHS, POINTS, Tenure, plan
from tests.fencing.writing import ISOLATIONS
from tests.history.history import History
from tests.history.judge import unseen
from tests.history.records import Write


@pytest.fixture(autouse=True)
def journal() -> None:
    """These tests write elsewhere, or not at all, and need no table of the folder's."""


@pytest.mark.slow("processes are stopped and go on, and sessions are idle for too long")
@pytest.mark.skipif(sys.platform != "linux", reason="whether a child has stopped is asked in Linux's way")
async def test_paused_holders_commit_nothing_stale_where_they_are_guarded_and_else_do(dsn: str) -> None:
    """Each path, isolation and point once: no stale commit with a guard or a fence, and some of the control's."""
    result = await run_plan(dsn, rounds=1, seed=1, processes=1)
    # Those of the batch whose leases run out by themselves may have done so before their points.
    assert result.complaints(GUARDED_A_ROUND - AT_ONCE, 5) == [], "\n".join(result.table())


def write(number: int, fence: int) -> Write:
    """Return a write of the first tenure's key."""
    return Write(number, 1.0, "job-1", fence, guarded=False)


@pytest.mark.parametrize(
    ("before", "after", "place", "is_stale"),
    [({1, 11}, {1, 11}, 1, False), ({11}, {1, 11}, 2, False), ({11}, {11}, 3, True)],
)
def test_order_of_commits_is_what_the_successor_has_seen(
    before: set[int], after: set[int], place: int, is_stale: bool
) -> None:
    """Before the first look it was first, after the second one last; in between nobody knows, and it is no proof."""
    seen = Seen(
        Tenure(1, "select", "read_committed", "batch"), "committed", 2, before=frozenset(before), after=frozenset(after)
    )
    writes = [seen.placed(write(1, 1)), seen.placed(write(11, 2))]
    assert [each.place for each in writes] == [place, 2]
    assert stale_keys(History(writes=writes)) == ({"job-1"} if is_stale else set())


@pytest.mark.parametrize("path", ["select", "guard"])
def test_stale_commit_is_a_complaint_unless_it_is_the_controls(path: str) -> None:
    """The control is there to have some; everything else about it is judged as of the others."""
    result = Result([Seen(Tenure(1, path, "read_committed", "batch"), "committed", 2, after=frozenset({11}))])
    result.guarded.writes = [write(1, 1), write(11, 2)]
    result.place()
    assert any("writes out of order" in line for line in result.complaints(0, 0)) == (path == "guard")
    result.control.confirmed = {99}
    assert any("writes lost" in line for line in result.complaints(0, 0))


RUNS = [
    Seen(tenure, "committed", 2)
    if tenure.path in CONTROL
    else Seen(tenure, "broken off" if tenure.ends == "server" else "committed", 2, True, tenure.ends == "server")
    for batch in plan(1, 1)
    for tenure in batch
]
"""Sound runs of everything that is to be seen."""

STALE = {run.tenure.key for run in RUNS if run.tenure.path in CONTROL}


def complaints(found: list[Seen], stale: set[str] = STALE) -> list[str]:
    """Return what was not seen."""
    return unseen(count(found, stale), least(90, 30))


def test_runs_in_which_all_was_seen_have_no_complaint() -> None:
    """Each path at each point, refusals, sessions ended by the server, and stale commits of the control."""
    assert complaints(RUNS) == []
    assert [line.partition(": 0")[0] for line in complaints([])] == [*least(90, 30)]


def test_what_some_runs_have_not_seen_is_named() -> None:
    """A control that is saved by something else, and guards that keep nobody out or end by themselves, show nothing."""
    for isolation in ISOLATIONS:
        stale = {run.tenure.key for run in RUNS if run.tenure.isolation != isolation} & STALE
        assert f"stale commits without a guard in {isolation}: 0, fewer than 1" in complaints(RUNS, stale)
    for path in GUARDED:
        found = [replace(run, refused=False) if run.tenure.path == path else run for run in RUNS]
        assert complaints(found) == [f"successors that {path} kept out until its process went on: 0, fewer than 1"]
    found = [replace(run, granted_in_stop=False) for run in RUNS]
    assert complaints(found) == ["guarded transactions ended by the server: 0, fewer than 1"]


@pytest.mark.parametrize("path", PATHS)
def test_point_at_which_a_path_was_never_stopped_is_named(path: str) -> None:
    """A run that leaves something out does not pass for one that saw it."""
    named = {
        point: unseen(count(found, STALE), least(0, 0))
        for point in POINTS
        for found in [[run for run in RUNS if (run.tenure.path, run.tenure.point) != (path, point)]]
    }
    assert named == {point: [f"{path} stopped at {point}: 0, fewer than 1"] for point in POINTS}


def test_table_counts_each_run_once_in_its_line_and_once_in_a_sum() -> None:
    """The sums are of all guarded runs and of all of the control."""
    _head, *lines = table(RUNS, STALE)
    numbers = [[int(cell) for cell in line[36:].split()] for line in lines]
    assert [row[0] for row in numbers] == [5] * 24 + [90, 30]
    assert numbers[-2][1:6] == [18] * 5
    assert [row[-1] for row in numbers] == [0] * 18 + [5] * 6 + [0, 30]
    assert numbers[-2][7] == 90
    assert numbers[-2][8] == sum(run.tenure.ends == "server" for run in RUNS)


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
