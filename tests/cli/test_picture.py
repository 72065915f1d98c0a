"""The timeline as an SVG."""

import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree as ET

from tests.cli.test_timeline import RUN
from tests.support.inside import FaultKind, Outcome, Records, draw_picture, judge

_SVG = "{http://www.w3.org/2000/svg}"
_WIDTH = 960
_CHARACTER = 7.0


def _draw(records: Records, failure: str = "") -> ET.Element:
    outcome = Outcome(records, () if failure else judge(records, FaultKind), failure)
    return ET.fromstring(draw_picture(outcome))  # noqa: S314 (our own)


def _tips(svg: ET.Element) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{_SVG}title")]


def _texts(svg: ET.Element) -> list[str]:
    return [element.text or "" for element in svg.iter(f"{_SVG}text")]


def test_picture_of_a_run_shows_every_tenure_and_fault() -> None:
    """Each tenure, fault, pause and stale write has a shape with a tip that says what it is."""
    svg = _draw(RUN)
    tips = _tips(svg)
    for worker, fence, ending in (("A", 1, "released"), ("B", 2, "ran out"), ("C", 3, "lost"), ("A", 4, "released")):
        assert any(tip.startswith(f"{worker} held the lease with fence {fence} ") and ending in tip for tip in tips)
        assert str(fence) in _texts(svg)
    for what in ("hand-over at 0.70", "kill -9 at 1.70", "pause at 4.70", "resumed at 7.55", "restart at 8.00"):
        assert any(tip.startswith(what) for tip in tips), what
    assert "C paused from 4.70 to 7.55 s" in tips
    assert "a stale write of C with fence 3 at 7.60 s: refused" in tips
    assert "stale write refused" in _texts(svg)
    assert any(text.startswith("GREEN") for text in _texts(svg))


def test_picture_of_a_run_needs_nothing_beside_it() -> None:
    """It has a title and a description, colours for light and dark, and no script or foreign file."""
    outcome = Outcome(RUN, judge(RUN, FaultKind))
    text = draw_picture(outcome)
    svg = _draw(RUN)
    assert [child.tag for child in svg[:2]] == [f"{_SVG}title", f"{_SVG}desc"]
    assert "B held the lease with fence 2" in (svg[1].text or "")
    assert "prefers-color-scheme: dark" in text
    assert "<script" not in text
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {"#forsaken", "#away"}
    assert not re.search("href|src=|@import|http(?!://www.w3.org/2000/svg)", text)
    assert len(text) < 40_000


def test_picture_of_a_run_lets_no_label_cover_another() -> None:
    """Texts on one line keep clear of each other and of the border."""
    lines = defaultdict(list)
    for text in _draw(RUN).iter(f"{_SVG}text"):
        width = len(text.text or "") * _CHARACTER
        left = float(text.attrib["x"]) - {"middle": width / 2, "end": width}.get(text.get("text-anchor", ""), 0)
        if "heading" not in text.attrib["class"]:
            lines[text.attrib["y"]].append((left, left + width, text.text))
    for extents in lines.values():
        extents.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(extents)), extents
        assert extents[0][0] >= 0
        assert extents[-1][1] <= _WIDTH


def test_picture_of_names_with_markup_escapes_them() -> None:
    """A worker's name is text, whatever is in it."""
    name = "<&>\"'"
    records = replace(
        RUN,
        tenures=[replace(tenure, worker=name) for tenure in RUN.tenures],
        attempts=[replace(attempt, worker=name) for attempt in RUN.attempts],
    )
    svg = _draw(records)
    assert name in _texts(svg)
    assert any(tip.startswith(f"{name} held the lease") for tip in _tips(svg))


def test_picture_of_a_red_run_says_what_failed() -> None:
    """A stale write that was accepted is told apart, and the rule that it broke is named."""
    records = replace(RUN, attempts=[replace(write, position=write.position or 6) for write in RUN.attempts])
    svg = _draw(records)
    assert "stale write accepted" in _texts(svg)
    assert any("accepted" in line.attrib["class"].split() for line in svg.iter(f"{_SVG}line"))
    (verdict,) = (text for text in _texts(svg) if text.startswith("RED"))
    assert "stale writes refused 0 of 1" in verdict


def test_picture_of_a_run_that_broke_off_says_why() -> None:
    """A run without a verdict is drawn as far as it came, down to nothing at all."""
    for records in (RUN, Records([], [], [])):
        assert "RED: the restart did not come" in _texts(_draw(records, "the restart did not come"))
