"""The timeline of the tenures as a picture."""

from collections.abc import Sequence
from itertools import pairwise

from asyncpg_lease.cli._canvas import Canvas
from asyncpg_lease.cli._timeline import (
    PAUSED,
    SERVER_AWAY,
    Bar,
    Ending,
    Mark,
    Scale,
    Stretch,
    Timeline,
    Write,
    caption,
    lay_out,
    spread,
)
from asyncpg_lease.cli._verdict import Outcome

_WIDTH = 960
_MARGIN, _TOP = 28, 84
_LANE, _BAR_TOP, _BAR = 82, 24, 28
_BELOW = 80
_TICK_ROOM = 60
# More than the fonts of browsers need on average, so that no text covers another.
_CHARACTER = 8.2
_SYMBOL = 14.0
_GAP = 10
_ENDING_STYLES = {
    Ending.RELEASED: "released",
    Ending.RAN_OUT: "ran-out",
    Ending.LOST: "lost",
    Ending.UNKNOWN: "bad",
}
_LEGEND = (
    ("held", "held; the number is the fence"),
    ("write", "a tick for each write"),
    ("forsaken", "not renewed any more"),
    ("away", "server away"),
)


def draw_picture(outcome: Outcome) -> str:
    """Draw a run as an SVG, also one that was broken off."""
    heading = "Who held the lease, and what was done to whom"
    verdict = _sum_up(outcome)
    return _Picture(lay_out(outcome.records), heading, verdict).draw(heading, verdict, ok=outcome.green)


class _Picture:
    def __init__(self, timeline: Timeline, heading: str, verdict: str) -> None:
        self._timeline = timeline
        names = max(map(len, timeline.workers), default=0) * _CHARACTER + 2 * _GAP
        self._scale = Scale(timeline.span, _MARGIN + names, _WIDTH - 2 * _MARGIN - names - _GAP)
        self._tops = {worker: float(_TOP + index * _LANE) for index, worker in enumerate(timeline.workers)}
        self._floor = _TOP + len(self._tops) * _LANE
        self._height = self._floor + _BELOW
        self._canvas = Canvas(_WIDTH, self._height, heading, f"{verdict} {_describe(timeline)}".strip())

    def draw(self, heading: str, verdict: str, *, ok: bool) -> str:
        canvas = self._canvas
        canvas.rect((0.5, 0.5, _WIDTH - 1, self._height - 1), "back", corner=10)
        canvas.text(_MARGIN, 38, heading, "heading")
        canvas.text(_MARGIN, 64, verdict, "verdict good" if ok else "verdict bad")
        self._ground()
        for before, after in pairwise(self._timeline.bars):
            self._passing(before, after)
        for worker, top in self._tops.items():
            self._lane(worker, top)
        self._legend()
        return canvas.to_svg()

    def _ground(self) -> None:
        for top in self._tops.values():
            self._canvas.rect((_MARGIN - 12, top + 2, _WIDTH - 2 * _MARGIN + 24, _LANE - 6), "lane", corner=6)
        for tick in self._scale.ticks(_TICK_ROOM):
            place = self._scale.place(tick)
            self._canvas.line((place, _TOP, place, self._floor + 4), "grid")
            self._canvas.text(place, self._floor + 20, f"{tick:g} s", "dim", anchor="middle")
        for stretch in self._timeline.stretches:
            if stretch.what == SERVER_AWAY:
                begin, length = self._extent(stretch)
                self._canvas.rect((begin, _TOP, length, self._floor - _TOP), "away", tip=_tell_stretch(stretch))

    def _passing(self, before: Bar, after: Bar) -> None:
        """Lead the eye from the end of a tenure to the begin of the next."""
        upper, lower = sorted(
            (
                (self._tops[bar.worker], self._scale.place(at))
                for bar, at in ((before, before.end), (after, after.begin))
            )
        )
        if upper[0] != lower[0]:
            self._canvas.line((upper[1], upper[0] + _BAR_TOP + _BAR, lower[1], lower[0] + _BAR_TOP), "passed")

    def _lane(self, worker: str, top: float) -> None:
        bar_top = top + _BAR_TOP
        bars = [bar for bar in self._timeline.bars if bar.worker == worker]
        stale = [write for write in self._timeline.stale_writes if write.worker == worker]
        self._canvas.text(_MARGIN, bar_top + 19, worker, "name")
        for stretch in self._timeline.stretches:
            if stretch.what == PAUSED and stretch.worker == worker:
                begin, length = self._extent(stretch)
                self._canvas.line((begin, top + 14, begin + length, top + 14), "paused", tip=_tell_stretch(stretch))
        for bar in bars:
            self._bar(bar, bar_top)
        self._fences(bars, bar_top)
        self._marks([mark for mark in self._timeline.marks if mark.worker == worker], top)
        for write in stale:
            self._stale(write, bar_top)
        self._endings(bars, stale, bar_top + _BAR + 17)

    def _bar(self, bar: Bar, top: float) -> None:
        place, tip = self._scale.place, _tell_bar(bar, self._timeline.writes_of(bar))
        begin, end = place(bar.begin), place(bar.end)
        kept = end if bar.forsaken is None else min(place(bar.forsaken), end)
        if kept < end:
            self._canvas.rect((kept, top, end - kept, _BAR), "forsaken-back")
            self._canvas.rect((kept, top + 0.5, end - kept, _BAR - 1), "forsaken", tip=tip)
        self._canvas.rect((begin, top, max(kept - begin, 2), _BAR), "held", corner=3, tip=tip)
        for write in self._timeline.writes_of(bar):
            if write.accepted and not write.stale:
                at = place(write.at)
                self._canvas.line((at, top + _BAR - 7, at, top + _BAR - 1), "write")

    def _fences(self, bars: Sequence[Bar], top: float) -> None:
        place = self._scale.place
        widths = [len(str(bar.fence)) * _CHARACTER + 6 for bar in bars]
        wanted = [(place(bar.begin) + 4 + width / 2, width) for bar, width in zip(bars, widths, strict=True)]
        edges = spread(wanted, self._scale.start, _WIDTH)
        for bar, width, edge in zip(bars, widths, edges, strict=True):
            kept = place(bar.end if bar.forsaken is None else bar.forsaken)
            inside = place(bar.begin) <= edge and edge + width <= kept
            self._canvas.text(edge + 3, top + 18, str(bar.fence), "fence on" if inside else "fence")

    def _marks(self, marks: Sequence[Mark], top: float) -> None:
        places = [self._scale.place(mark.at) for mark in marks]
        widths = [len(mark.what) * _CHARACTER + 4 for mark in marks]
        wanted = [(place - _SYMBOL / 2, width) for place, width in zip(places, widths, strict=True)]
        edges = caption(wanted, _SYMBOL, self._scale.start, _WIDTH - _MARGIN)
        for mark, place, width, edge in zip(marks, places, widths, edges, strict=True):
            tip = f"{mark.what} at {mark.at:.2f} s, while {mark.worker} held fence {mark.fence}"
            self._canvas.line((place, top + _BAR_TOP - 4, place, top + _BAR_TOP + _BAR), "mark-line")
            self._canvas.triangle(place, top + _BAR_TOP - 2, 6, "mark", tip=tip)
            if edge is not None and edge > place:
                self._canvas.text(edge, top + 18, mark.what, "mark")
            elif edge is not None:
                self._canvas.text(edge + width, top + 18, mark.what, "mark", anchor="end")

    def _stale(self, write: Write, top: float) -> None:
        self._canvas.cross(self._scale.place(write.at), top + _BAR / 2, 6, _outcome(write), tip=_tell_write(write))

    def _endings(self, bars: Sequence[Bar], stale: Sequence[Write], base: float) -> None:
        words = [(bar.end, str(bar.ending), _ENDING_STYLES[bar.ending]) for bar in bars]
        words += [(write.at, f"stale write {_outcome(write)}", f"{_outcome(write)}-word stale-word") for write in stale]
        words.sort(key=lambda word: word[0])
        widths = [len(text) * _CHARACTER + _GAP for _, text, _ in words]
        wanted = [(self._scale.place(at), width) for (at, _, _), width in zip(words, widths, strict=True)]
        edges = spread(wanted, self._scale.start, _WIDTH - _MARGIN)
        for (_, text, style), width, edge in zip(words, widths, edges, strict=True):
            self._canvas.text(edge + width / 2, base, text, style, anchor="middle")

    def _legend(self) -> None:
        canvas, middle, x = self._canvas, self._floor + 50, float(_MARGIN)
        for style, what in _LEGEND:
            if style == "write":
                canvas.rect((x, middle - 7, 22, 14), "held", corner=2)
                for at in (x + 6, x + 11, x + 16):
                    canvas.line((at, middle, at, middle + 6), "write")
            else:
                canvas.rect((x, middle - 7, 22, 14), style, corner=2)
            canvas.text(x + 30, middle + 5, what, "dim")
            x += 30 + len(what) * _CHARACTER + _GAP

    def _extent(self, stretch: Stretch) -> tuple[float, float]:
        begin = self._scale.place(stretch.begin)
        return begin, max(self._scale.place(stretch.end) - begin, 2)


def _sum_up(outcome: Outcome) -> str:
    if outcome.green:
        return "GREEN: nobody wrote over a successor, and every stale write was refused."
    failed = (f"{finding.rule} {finding.detail}" for finding in outcome.findings if not finding.ok)
    word = "RED" if outcome.fenced else "RED, without the fence check"
    return f"{word}: {outcome.failure or '; '.join(failed)}"


def _describe(timeline: Timeline) -> str:
    return " ".join(f"{_tell_bar(bar, timeline.writes_of(bar))}." for bar in timeline.bars)


def _tell_bar(bar: Bar, writes: Sequence[Write]) -> str:
    accepted = sum(write.accepted for write in writes)
    reason = f" ({bar.reason})" if bar.reason else ""
    span = f"from {bar.begin:.2f} to {bar.end:.2f} s"
    return f"{bar.worker} held the lease with fence {bar.fence} {span}, {accepted} writes, {bar.ending}{reason}"


def _tell_stretch(stretch: Stretch) -> str:
    who = f"{stretch.worker} paused" if stretch.what == PAUSED else stretch.what
    return f"{who} from {stretch.begin:.2f} to {stretch.end:.2f} s"


def _tell_write(write: Write) -> str:
    return f"a stale write of {write.worker} with fence {write.fence} at {write.at:.2f} s: {_outcome(write)}"


def _outcome(write: Write) -> str:
    return "accepted" if write.accepted else "refused"
