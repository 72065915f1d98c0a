"""The timeline of the tenures as text, for terminals."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from rich.text import Text

from asyncpg_lease.cli._glyphs import Glyphs
from asyncpg_lease.cli._timeline import PAUSED, Bar, Ending, Scale, Stretch, Timeline, Write, caption, spread

_T = TypeVar("_T", Bar, Stretch, Write)
_NAME_ROOM = 12
_TICK_ROOM = 8
ENDING_STYLES = {
    Ending.RELEASED: "green",
    Ending.RAN_OUT: "yellow",
    Ending.LOST: "magenta",
    Ending.UNKNOWN: "red",
}
_FORSAKEN_STYLE = "yellow"
_PAUSED_STYLE = "magenta"
_AWAY_STYLE = "red"


class _Row:
    """One line of cells, painted one over the other."""

    def __init__(self, width: int) -> None:
        self._cells = [(" ", "")] * width

    def paint(self, place: float, text: str, style: str) -> None:
        for cell, character in enumerate(text, round(place)):
            if 0 <= cell < len(self._cells):
                self._cells[cell] = (character, style)

    def fill(self, begin: float, end: float, character: str, style: str) -> None:
        # Whatever happened for however short a time is seen.
        cells = max(round(end) - round(begin), 1)
        self.paint(begin, character * cells, style)

    def to_text(self, head: str, style: str = "bold") -> Text:
        text = Text(head, style=style, no_wrap=True, overflow="crop")
        for cell_style, run in groupby(self._cells, key=lambda cell: cell[1]):
            text.append("".join(character for character, _ in run), f"not bold {cell_style}")
        text.rstrip()
        return text


class Chart:
    """Draws a timeline as lines of at most `width` columns, from 40 on.

    For each worker: what was done to it, its tenures, and how they ended; then the axis and a legend.
    """

    def __init__(self, timeline: Timeline, width: int, glyphs: Glyphs) -> None:
        self._timeline = timeline
        self._glyphs = glyphs
        self._head = min(max(map(len, timeline.workers), default=0), _NAME_ROOM) + 2
        self._room = width - self._head
        self._width = width
        self._shortened: dict[str, str] = {}
        # The last cell is for what happens in the last moment.
        self._scale = Scale(timeline.span, 0, self._room - 1)

    def lines(self) -> list[Text]:
        """Draw it."""
        title = Text("Who held the lease, in seconds on the server's clock; each number is a fence", no_wrap=True)
        title.truncate(self._width, overflow="crop")
        lines = [title, Text()]
        for worker in self._timeline.workers:
            lines += [self._marks(worker), self._bars(worker), self._endings(worker)]
        return [*lines, *self._axis(), Text(), *self._legend()]

    def _row(self) -> _Row:
        return _Row(self._room)

    def _marks(self, worker: str) -> Text:
        row = self._row()
        for stretch in self._of(worker, self._timeline.stretches):
            if stretch.what == PAUSED:
                self._fill(row, stretch.begin, stretch.end, self._glyphs.paused, _PAUSED_STYLE)
        marks = [mark for mark in self._timeline.marks if mark.worker == worker]
        places = [round(self._scale.place(mark.at)) for mark in marks]
        wanted = [(float(place), len(mark.what) + 2.0) for place, mark in zip(places, marks, strict=True)]
        edges = caption(wanted, 1, 0, self._room)
        for mark, place, edge in zip(marks, places, edges, strict=True):
            if edge is None:
                self._shortened[mark.letter] = mark.what
                row.paint(place, mark.letter, "bold cyan")
            else:
                row.paint(place, self._glyphs.pointer, "bold cyan")
                row.paint(edge, f" {mark.what} ", "cyan")
        return row.to_text(" " * self._head)

    def _bars(self, worker: str) -> Text:
        row = self._row()
        bars = self._of(worker, self._timeline.bars)
        for bar in bars:
            self._fill(row, bar.begin, bar.end, self._glyphs.held, "green")
            if bar.forsaken is not None:
                self._fill(row, bar.forsaken, bar.end, self._glyphs.forsaken, _FORSAKEN_STYLE)
        for stretch in self._of(worker, self._timeline.stretches):
            if stretch.what != PAUSED:
                self._fill(row, stretch.begin, stretch.end, self._glyphs.away, _AWAY_STYLE)
        self._fences(row, bars)
        for write in self._of(worker, self._timeline.stale_writes):
            row.paint(self._scale.place(write.at), self._glyphs.stale, _write_style(write))
        return row.to_text(f"{worker[:_NAME_ROOM]:<{self._head}}")

    def _fences(self, row: _Row, bars: Sequence[Bar]) -> None:
        # The number is cut out of the bar, and readable without colours too.
        style = "bold green" if self._glyphs.is_ascii else "bold green reverse"
        widths = [len(str(bar.fence)) for bar in bars]
        wanted = [
            (self._scale.place(bar.begin) + 1 + width / 2, width) for bar, width in zip(bars, widths, strict=True)
        ]
        for bar, edge in zip(bars, spread(wanted, 0, self._room), strict=True):
            row.paint(edge, str(bar.fence), style)

    def _fill(self, row: _Row, begin: float, end: float, character: str, style: str) -> None:
        row.fill(self._scale.place(begin), self._scale.place(end), character, style)

    def _endings(self, worker: str) -> Text:
        row = self._row()
        words = [(bar.end, str(bar.ending), ENDING_STYLES[bar.ending]) for bar in self._of(worker, self._timeline.bars)]
        words += [
            (write.at, "ACCEPTED" if write.accepted else "refused", _write_style(write))
            for write in self._of(worker, self._timeline.stale_writes)
        ]
        words.sort(key=lambda word: word[0])
        wanted = [(self._scale.place(at), len(text) + 1.0) for at, text, _ in words]
        for (_, text, style), edge in zip(words, spread(wanted, 0, self._room + 1), strict=True):
            row.paint(edge, text, style)
        return row.to_text(" " * self._head)

    @staticmethod
    def _of(worker: str, items: Iterable[_T]) -> list[_T]:
        return [item for item in items if item.worker == worker]

    def _axis(self) -> list[Text]:
        line, numbers = self._row(), self._row()
        line.paint(0, self._glyphs.axis * self._room, "dim")
        for tick in self._scale.ticks(_TICK_ROOM):
            line.paint(self._scale.place(tick), self._glyphs.tick, "dim")
            numbers.paint(self._scale.place(tick), f"{tick:g}", "dim")
        return [line.to_text(" " * self._head), numbers.to_text(" " * self._head)]

    def _legend(self) -> list[Text]:
        glyphs, shown = self._glyphs, self._timeline
        stretches = {stretch.what for stretch in shown.stretches}
        entries = [(glyphs.held, "held", "green")]
        if any(bar.forsaken is not None for bar in shown.bars):
            entries.append((glyphs.forsaken, "not renewed: runs out", _FORSAKEN_STYLE))
        if PAUSED in stretches:
            entries.append((glyphs.paused, "paused", _PAUSED_STYLE))
        if stretches - {PAUSED}:
            entries.append((glyphs.away, "server away", _AWAY_STYLE))
        if shown.stale_writes:
            entries.append((glyphs.stale, "stale write", _write_style(shown.stale_writes[0])))
        entries += [(letter, what, "bold cyan") for letter, what in self._shortened.items()]
        lines = [Text(no_wrap=True)]
        for glyph, what, style in entries:
            if lines[-1].cell_len + len(what) + 2 > self._width:
                lines.append(Text(no_wrap=True))
            lines[-1].append(glyph, style).append(f" {what}   ")
        for line in lines:
            line.rstrip()
        return lines


def _write_style(write: Write) -> str:
    return "bold red" if write.accepted else "bold green"
