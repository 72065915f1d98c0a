"""The timeline in a terminal."""

from dataclasses import replace

import pytest
from rich.text import Text

from tests.cli.test_timeline import RUN, seconds
from tests.support.inside import ASCII, UNICODE, Chart, Glyphs, Records, choose_glyphs, lay_out

_WORDS = ("hand-over", "kill -9", "pause", "resumed", "restart", "released", "ran out", "lost", "refused")


def _draw(records: Records, width: int = 80, glyphs: Glyphs = UNICODE) -> list[Text]:
    return Chart(lay_out(records), width, glyphs).lines()


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_chart_of_a_run_fits_and_names_everything(width: int, glyphs: Glyphs) -> None:
    """Every tenure has its fence and its end, every fault its word, and no line is too long."""
    lines = _draw(RUN, width, glyphs)
    text = "\n".join(line.plain for line in lines)
    assert max(line.cell_len for line in lines) <= width
    assert [word for word in _WORDS if word not in text] == []
    assert [fence for fence in "1234" if f"{glyphs.held}{fence}{glyphs.held}" not in text] == []
    assert text.isascii() == glyphs.is_ascii


def test_chart_of_a_run_shows_what_nobody_renewed_and_for_how_long() -> None:
    """A bar is as long as its tenure, and its end is another one from the fault on."""
    bar = next(line.plain for line in _draw(RUN, glyphs=ASCII) if line.plain.startswith("B"))
    scale = (80 - len("B  ") - 1) / 9
    assert bar.count("=") == pytest.approx(0.7 * scale - 1, abs=1)
    assert bar.count(":") == pytest.approx(1.9 * scale, abs=1)


def test_chart_of_a_stale_write_that_was_accepted_is_red() -> None:
    """What must not happen is told in words and in red."""
    unfenced = replace(RUN, attempts=[replace(write, position=write.position or 6) for write in RUN.attempts])
    line = next(line for line in _draw(unfenced) if "ACCEPTED" in line.plain)
    assert any("red" in str(span.style) and "ACCEPTED" in line.plain[span.start : span.end] for span in line.spans)
    assert "refused" not in "".join(line.plain for line in _draw(unfenced))


def test_chart_of_crowded_faults_falls_back_to_letters() -> None:
    """Where there is no room for a fault's word its letter stands for it."""
    crowded = [replace(RUN.faults[0], at=RUN.tenures[0].acquired_at + seconds(0.3 * index)) for index in range(4)]
    lines = [line.plain for line in _draw(replace(RUN, faults=crowded), 60)]
    assert lines[2].count("▼") + lines[2].count("H") == 4
    assert "H" in lines[2]
    assert "H hand-over" in lines[-1]


@pytest.mark.parametrize(
    ("encoding", "locale", "expected"),
    [("utf-8", "UTF-8", UNICODE), ("utf-8", "ANSI_X3.4-1968", ASCII), ("iso8859-1", "UTF-8", ASCII)],
)
def test_glyphs_where_something_is_not_utf_8_are_ascii(
    encoding: str, locale: str, expected: Glyphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under LC_ALL=C Python writes UTF-8, which the terminal may not show: the locale has a say too."""
    monkeypatch.setattr("locale.getencoding", lambda: locale)
    assert choose_glyphs(encoding) is expected
