"""The plan of a run's faults, and that each kind can be made."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.chaos.kinds import KINDS, plan

LANES = sorted({kind.lane for kind in KINDS.values()})


@pytest.mark.parametrize("lane", LANES)
def test_same_seed_plans_the_same_faults(lane: str) -> None:
    """A run can be had again; another seed, or another process, has faults of its own."""
    planned = list(islice(plan(7, lane, 0), 100))
    assert list(islice(plan(7, lane, 0), 100)) == planned
    assert list(islice(plan(8, lane, 0), 100)) != planned
    assert list(islice(plan(7, lane, 1), 100)) != planned


@pytest.mark.parametrize("lane", LANES)
def test_each_kind_of_a_lane_comes_as_often_as_the_others(lane: str) -> None:
    """So a short run has each of them."""
    kinds = [name for name, kind in KINDS.items() if kind.lane == lane]
    for round_ in range(3):
        first = round_ * len(kinds)
        dealt = [planned.kind for planned in islice(plan(round_, lane, 0), first, first + len(kinds))]
        assert sorted(dealt) == sorted(kinds)


def test_faults_last_as_long_as_their_kind_says() -> None:
    """Those that are over at once have no length."""
    for lane in LANES:
        for planned in islice(plan(1, lane, 0), 200):
            least, most = KINDS[planned.kind].lasts
            assert least <= planned.lasts <= most
            assert 0 <= planned.chance < 1
