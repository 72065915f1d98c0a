"""How the demo's screen looks: a board drawn for a terminal of some size."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from asyncpg_lease.cli._board import Board, Note, Row, State, Tone
from asyncpg_lease.cli._glyphs import Glyphs
from asyncpg_lease.cli._verdict import FaultKind

WIDE = 116
_NOTES_WIDTH, _WORKERS_WIDTH = 69, 64
_BORDERS = 4
_LEFT_ROOM = 6
_HOLDER_FITS = 70
_COLUMNS = {"worker": 8, "state": 9, "holder": 13, "fence": 5, "time left": 0, "writes": 6, "refused": 7}
_TO_THE_RIGHT = {"fence", "writes", "refused"}
_FULL, _HALF, _LITTLE = 1.0, 0.5, 0.2
_WORDS = {
    FaultKind.HAND_OVER: "The holder ends its job and releases: the next has it at once.",
    FaultKind.KILL: "The dead release nothing: the lease runs dry, another takes over.",
    FaultKind.PAUSE: "It sleeps past its ttl, unaware. The fence stops its late write.",
    FaultKind.RESTART: "Sessions die; the lease is a row: the tenure goes on, same fence.",
}
_UNFENCED = "It sleeps past its ttl, unaware. NOTHING STOPS ITS LATE WRITE."
_BEFORE = "Three workers want one lease. Each write carries its fence."
_FEWEST_ROWS = 3
_STEP_HEIGHT = 4
_STATE_STYLES = {
    State.WAITING: "dim",
    State.HOLDING: "bold green",
    State.PAUSED: "bold magenta",
    State.KILLED: "bold red",
    State.ENDED: "dim",
}
_TONE_STYLES = {
    Tone.PLAIN: "",
    Tone.QUIET: "dim",
    Tone.DEED: "bold cyan",
    Tone.REFUSED: "bold green",
    Tone.ACCEPTED: "bold red",
}


class View:
    """Draws a board.

    Args:
        board: what to draw; it may change between two drawings.
        glyphs: the characters of the terminal.
    """

    def __init__(self, board: Board, glyphs: Glyphs) -> None:
        self._board = board
        self._glyphs = glyphs
        self._box = box.ASCII if glyphs.is_ascii else box.ROUNDED

    def draw(self, now: float, width: int, height: int) -> RenderableType:
        """Draw it for a terminal of this size, as it is at this moment of the local monotonic clock."""
        head = self._head(now, width)
        if width < WIDE:
            workers = self._workers(now, width - _BORDERS)
            strip = Text(" ", no_wrap=True, overflow="crop").append_text(Text("   ").join(self._each_step()))
            head += [strip, Text()]
            notes = self._notes(height - len(head) - (workers.height or 0))
            return Group(*head, workers, notes)
        left = max(width - _NOTES_WIDTH, _WORKERS_WIDTH)
        room = height - len(head)
        workers = self._tall_workers(now, left - _BORDERS)
        steps = self._steps(room - (workers.height or 0))
        beside = Table.grid(padding=0)
        beside.add_column(width=left)
        beside.add_column(width=width - left)
        beside.add_row(Group(workers, steps), self._notes(room))
        return Group(*head, beside)

    def last_notes(self) -> list[Text]:
        """Draw what happened, the last of it last."""
        return [self._note(note) for note in self._board.notes]

    def _head(self, now: float, width: int) -> list[Text]:
        board = self._board
        title = Text(f" asyncpg-lease demo  {board.key}, ttl {board.ttl:g} s", style="bold")
        clock = f"{now - board.start:.1f} s "
        title.truncate(width - len(clock))
        title.append(clock.rjust(width - title.cell_len), "not bold dim")
        doing = Text(f" {self._glyphs.next} ", style="bold yellow").append(board.now, "bold")
        why = _BEFORE if board.current is None else self._explain(board.current)
        lines = [title, Text(), doing, Text(f"   {why}", style="dim"), Text()]
        for line in lines:
            line.no_wrap, line.overflow = True, "crop"
        return lines

    def _explain(self, kind: FaultKind) -> str:
        return _UNFENCED if kind is FaultKind.PAUSE and not self._board.fenced else _WORDS[kind]

    def _steps(self, height: int) -> Panel:
        parts: list[RenderableType] = []
        for kind, step in zip(self._board.planned, self._each_step(), strict=True):
            parts.append(step)
            if height >= _STEP_HEIGHT * len(self._board.planned):
                parts.append(Padding(Text(self._explain(kind), style="dim"), (0, 0, 1, 2)))
        return self._panel(Group(*parts), "what is done to the holder", height)

    def _each_step(self) -> list[Text]:
        board, glyphs = self._board, self._glyphs
        reached = -1 if board.current is None else list(board.planned).index(board.current)
        steps = []
        for index, kind in enumerate(board.planned):
            if index == reached:
                steps.append(Text(f"{glyphs.next} {kind}", style="bold yellow"))
            else:
                done = index < reached
                steps.append(Text(f"{glyphs.done if done else glyphs.idle} {kind}", style="green" if done else "dim"))
        return steps

    def _workers(self, now: float, width: int) -> Panel:
        names = [name for name in _COLUMNS if name != "holder" or width >= _HOLDER_FITS]
        widths = _fit(names, "time left", width)
        lines = [_line({name: Text(name, "dim") for name in names}, widths)]
        for name, row in sorted(self._board.rows.items()):
            bar = self._bar(row, now, widths["time left"] - _LEFT_ROOM)
            lines.append(_line(self._worker(name, row, now) | {"time left": bar}, widths))
        return self._workers_panel(lines, 1)

    def _tall_workers(self, now: float, width: int) -> Panel:
        """Give each bar a line of its own, as long as it can be."""
        names = [name for name in _COLUMNS if name != "time left"]
        widths = _fit(names, "holder", width)
        lines = [_line({name: Text(name, "dim") for name in names}, widths)]
        for name, row in sorted(self._board.rows.items()):
            lines += [_line(self._worker(name, row, now), widths), self._bar(row, now, width - _LEFT_ROOM)]
        return self._workers_panel(lines, 2)

    def _workers_panel(self, lines: list[Text], height: int) -> Panel:
        rows = max(len(self._board.rows), _FEWEST_ROWS)
        return self._panel(Group(*lines), "who holds the lease", 1 + rows * height + 2)

    def _worker(self, name: str, row: Row, now: float) -> dict[str, Text]:
        over = row.has_run_out(now)
        style = "dim" if row.state in {State.WAITING, State.ENDED} else ""
        return {
            "worker": Text(name, style="bold" if row.state is State.HOLDING and not over else style),
            "state": self._state(row, over=over),
            "holder": Text(row.holder, style="strike dim" if over else style),
            "fence": Text(str(row.fence or ""), style="dim" if over else "bold"),
            "writes": Text(str(row.accepted or ""), style="bold red" if row.stale else ""),
            "refused": Text(str(row.refused or ""), style="bold green"),
        }

    def _state(self, row: Row, *, over: bool) -> Text:
        if over and row.state is State.HOLDING:
            return Text(f"{self._glyphs.stopped} late", style="bold yellow")
        glyph = {
            State.HOLDING: self._glyphs.holding,
            State.PAUSED: self._glyphs.stopped,
            State.KILLED: self._glyphs.gone,
        }.get(row.state, self._glyphs.idle)
        return Text(f"{glyph} {row.state}", style=_STATE_STYLES[row.state])

    def _bar(self, row: Row, now: float, room: int) -> Text:
        if row.runs_out is None:
            return Text()
        left = row.left(now)
        share = min(left / self._board.ttl, _FULL)
        parts = self._glyphs.parts
        eighths = round(share * room * len(parts))
        whole, part = divmod(eighths, len(parts))
        filled = parts[-1] * whole + (parts[part - 1] if part else "")
        bar = Text(filled, style="green" if share > _HALF else "yellow" if share > _LITTLE else "red")
        bar.append(self._glyphs.track * (room - len(filled)), "dim")
        return bar.append(f" {left:.1f} s", "" if left else "bold red")

    def _notes(self, height: int) -> Panel:
        lines = self.last_notes()[-max(height - 2, 1) :]
        return self._panel(Group(*lines), "what happens", height)

    def _note(self, note: Note) -> Text:
        line = Text(f"{note.moment - self._board.start:5.1f}  ", style="dim", no_wrap=True)
        style = _TONE_STYLES[note.tone]
        if note.tone is Tone.DEED:
            line.append(f"{self._glyphs.next} {note.what}", f"not dim {style}")
        else:
            line.append(f"{note.who:<8}  {note.what}", style if note.tone is Tone.QUIET else f"not dim {style}")
        return line

    def _panel(self, content: RenderableType, title: str, height: int) -> Panel:
        return Panel(content, title=title, title_align="left", box=self._box, border_style="dim", height=height)


def _fit(names: Sequence[str], flexible: str, width: int) -> dict[str, int]:
    """Choose the widths of columns with a space between them; one of them takes all the room that is left."""
    widths = {name: _COLUMNS[name] for name in names} | {flexible: 0}
    widths[flexible] = max(width - sum(widths.values()) - len(widths) + 1, _LEFT_ROOM + 1)
    return widths


def _line(cells: Mapping[str, Text], widths: Mapping[str, int]) -> Text:
    """Put cells beside each other."""
    shown = []
    for name, width in widths.items():
        cell = cells[name]
        cell.truncate(width)
        blank = " " * (width - cell.cell_len)
        shown.append(Text(blank).append_text(cell) if name in _TO_THE_RIGHT else Text().append_text(cell).append(blank))
    line = Text(" ").join(shown)
    line.no_wrap, line.overflow = True, "crop"
    return line
