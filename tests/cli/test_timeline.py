"""The timeline's layout, on forged records: everything that was recorded is in it, where it belongs."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from tests.cli.test_verdict import GOOD
from tests.support.examples import given, settings
from tests.support.examples import strategies as st
from tests.support.inside import Attempt, Ending, Fault, FaultKind, Records, Release, Scale, caption, lay_out, spread

BEGUN = GOOD.tenures[0].acquired_at
LABELS = st.lists(st.tuples(st.floats(0, 80), st.integers(1, 12)), max_size=8).map(sorted)


def seconds(value: float) -> timedelta:
    """A time that can be added to the begin of the records."""
    return timedelta(seconds=value)


# As a run of the demo leaves it: released where it was released, lost where its holder was paused.
RUN = replace(
    GOOD,
    tenures=[
        GOOD.tenures[0],
        GOOD.tenures[1],
        replace(GOOD.tenures[2], lost="stalled"),
        GOOD.tenures[3],
    ],
    faults=[
        *GOOD.faults[:2],
        replace(GOOD.faults[2], until=BEGUN + seconds(7.55)),
        replace(GOOD.faults[3], until=BEGUN + seconds(8.3)),
    ],
    releases=[Release(1, BEGUN + seconds(0.8)), Release(4, BEGUN + seconds(9))],
)


def test_layout_of_a_run_has_every_tenure_in_its_lane() -> None:
    """Each tenure is a bar from its claim to its release, or to its expiry, by the server's clock."""
    shown = lay_out(RUN)
    assert shown.workers == ["A", "B", "C"]
    assert [(bar.worker, bar.fence, bar.begin, bar.end, bar.ending) for bar in shown.bars] == [
        ("A", 1, 0, 0.8, Ending.RELEASED),
        ("B", 2, 1, 3.6, Ending.RAN_OUT),
        ("C", 3, 4, 6.6, Ending.LOST),
        ("A", 4, 7, 9, Ending.RELEASED),
    ]
    assert shown.span == 9


def test_layout_of_a_run_has_every_fault_and_its_end() -> None:
    """Each fault is a mark in the lane of the holder that it met; a pause has one for its end too."""
    shown = lay_out(RUN)
    assert [(mark.worker, mark.letter, mark.what, round(mark.at, 2)) for mark in shown.marks] == [
        ("A", "H", "hand-over", 0.7),
        ("B", "K", "kill -9", 1.7),
        ("C", "P", "pause", 4.7),
        ("C", "C", "resumed", 7.55),
        ("A", "R", "restart", 8),
    ]
    assert [(stretch.what, stretch.begin, stretch.end) for stretch in shown.stretches] == [
        ("paused", 4.7, 7.55),
        ("server away", 8, 8.3),
    ]


def test_layout_of_a_killed_or_paused_holder_says_since_when_nobody_renews() -> None:
    """From the fault to the expiry a tenure is kept by nobody."""
    assert [bar.forsaken for bar in lay_out(RUN).bars] == [None, 1.7, 4.7, None]


def test_layout_of_a_stale_write_says_whether_it_was_accepted() -> None:
    """A write after one of a higher fence is stale, whatever became of it."""
    unfenced = replace(RUN, attempts=[replace(write, position=write.position or 6) for write in RUN.attempts])
    for records, accepted in ((RUN, False), (unfenced, True)):
        (stale,) = lay_out(records).stale_writes
        assert (stale.worker, stale.fence, stale.at, stale.accepted) == ("C", 3, 7.6, accepted)


def test_layout_of_records_that_break_off_says_what_is_not_known() -> None:
    """A pause without an end goes on, a worker without a tenure has a lane, and no end is made up."""
    records = Records([], RUN.tenures[2:3], [Fault(FaultKind.PAUSE, 3, BEGUN + seconds(4.7))], workers="CDE")
    shown = lay_out(replace(records, tenures=[replace(records.tenures[0], lost="")]))
    assert shown.workers == ["C", "D", "E"]
    assert shown.bars[0].ending is Ending.UNKNOWN
    assert shown.stretches[0].end == shown.span == 2.6


def test_layout_of_no_records_is_empty() -> None:
    """Where nothing was recorded there is nothing to show, and no error."""
    shown = lay_out(Records([Attempt("A", 1, BEGUN, 1)], [], []))
    assert (shown.workers, shown.bars, shown.span) == (["A"], [], 0.1)


@pytest.mark.slow("takes half a second or so")
@given(LABELS)
def test_spread_of_labels_lets_none_cover_another(wanted: Sequence[tuple[float, int]]) -> None:
    """Labels keep their order and their distance, and stay in the row where they fit into it."""
    edges = spread(wanted, 0, 100)
    ends = [edge + width for edge, (_, width) in zip(edges, wanted, strict=True)]
    assert all(end <= edge + 1e-9 for end, edge in zip(ends, edges[1:], strict=False))
    assert all(edge >= 0 and end <= 100 + 1e-9 for edge, end in zip(edges, ends, strict=True))


def test_spread_of_labels_with_room_leaves_them_in_place() -> None:
    """A label that covers nothing is centred on its place; one in the way of another goes to the right."""
    assert spread([(10, 4), (20, 6)], 0, 30) == [8, 17]
    assert spread([(10, 4), (11, 6)], 0, 30) == [8, 12]


@settings(max_examples=50)
@given(LABELS)
def test_caption_of_symbols_covers_neither_symbol_nor_text(wanted: Sequence[tuple[float, int]]) -> None:
    """A text stands beside its own symbol where nothing else is, or is left out."""
    edges = caption(wanted, 1, 0, 80)
    texts = [
        (edge, edge + width, place) for edge, (place, width) in zip(edges, wanted, strict=True) if edge is not None
    ]
    assert all(abs(begin - place - 1) < 1e-9 or abs(end - place) < 1e-9 for begin, end, place in texts)
    assert all(begin >= 0 and end <= 80 for begin, end, _ in texts)
    taken = sorted((begin, end) for begin, end, _ in texts)
    assert all(before[1] <= after[0] for before, after in pairwise(taken))
    assert all(end <= place or place + 1 <= begin for begin, end, _ in texts for place, _ in wanted)


def test_caption_at_the_end_of_the_row_stands_on_the_left() -> None:
    """Where there is no room on the right there may be some on the left, and else there is none."""
    assert caption([(10, 5), (28, 5)], 1, 0, 30) == [11, 23]
    assert caption([(0, 5), (2, 5)], 1, 0, 6) == [None, None]


def test_scale_places_moments_and_ticks_in_its_room() -> None:
    """Moments stay inside, and the ticks are round numbers with the distance that was asked for."""
    scale = Scale(span=8.2, start=10, room=82)
    assert [scale.place(moment) for moment in (-1, 0, 4.1, 8.2, 9)] == [10, 10, 51, 92, 92]
    assert scale.ticks(8) == list(range(9))
    assert scale.ticks(30) == [0, 5]
