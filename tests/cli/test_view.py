"""What the demo's screen shows, and how, for boards that no process has made."""

import io

import pytest
from rich.console import Console, RenderableType

from tests.support.inside import ASCII, UNICODE, Board, Event, FaultKind, Glyphs, State, View

_HOLDER = "worker-1/0123456789abcdef"


def _board(*, fenced: bool = True) -> Board:
    return Board("nightly-report", 2.0, list(FaultKind), fenced=fenced, start=100)


def _hear(board: Board, moment: float, kind: str, worker: str = "worker-1", **fields: object) -> None:
    fence = 0 if kind in {"hired", "paused", "resumed", "killed", "ended", "begins"} else 7
    event = Event(100 + moment, worker, kind, **{"fence": fence} | fields)  # type: ignore[arg-type]
    board.hear(event, late=fields.get("text") == "late", writes=3)


def _held(*, fenced: bool = True) -> Board:
    """A board on which worker-1 has just claimed; worker-2 waits."""
    board = _board(fenced=fenced)
    for worker in ("worker-1", "worker-2"):
        _hear(board, 0, "hired", worker)
    _hear(board, 1, "acquired", holder=_HOLDER, expires_in=2.0)
    return board


def _render(shown: RenderableType, width: int, height: int, *, colours: bool = False) -> list[str]:
    out = io.StringIO()
    console = Console(
        file=out, width=width, height=height, force_terminal=colours, color_system="standard" if colours else None
    )
    console.print(shown)
    return out.getvalue().splitlines()


def _draw(board: Board, now: float, width: int = 80, height: int = 24, glyphs: Glyphs = UNICODE) -> list[str]:
    return _render(View(board, glyphs).draw(100 + now, width, height), width, height)


def _line(lines: list[str], text: str) -> str:
    return next(line for line in lines if text in line)


def test_board_of_a_tenure_follows_it_to_its_release() -> None:
    """A worker holds from its claim on, its expiry moves with each renewal, and a release ends it."""
    board = _held()
    row = board.rows["worker-1"]
    assert (row.state, row.holder, row.fence, row.left(101.5)) == (State.HOLDING, _HOLDER, 7, 1.5)
    _hear(board, 2, "renewed", holder=_HOLDER, expires_in=1.9)
    assert row.left(102) == pytest.approx(1.9)
    _hear(board, 2.1, "wrote")
    _hear(board, 2.2, "released")
    assert (row.state, row.fence, row.left(102.2), row.accepted) == (State.WAITING, 0, 0, 1)


def test_board_of_a_paused_holder_lets_its_lease_run_out() -> None:
    """Nothing but the clock tells that a paused holder's lease is over; when it is told it waits again."""
    board = _held()
    row = board.rows["worker-1"]
    _hear(board, 2, "paused")
    assert (row.state, row.has_run_out(102.9), row.has_run_out(103)) == (State.PAUSED, False, True)
    _hear(board, 4, "resumed")
    _hear(board, 4, "refused")
    assert (row.state, row.refused, row.accepted) == (State.HOLDING, 1, 0)
    _hear(board, 4, "lost", text="stalled")
    assert (row.state, row.has_run_out(104)) == (State.WAITING, False)


def test_board_of_a_killed_worker_keeps_its_lease_until_it_is_started_again() -> None:
    """The lease of a dead holder is there until it has run out, and the end of its process is no news."""
    board = _held()
    row = board.rows["worker-1"]
    _hear(board, 2, "killed")
    _hear(board, 2, "ended", text="status -9")
    assert (row.state, row.fence, row.left(102)) == (State.KILLED, 7, 1)
    _hear(board, 4, "hired")
    assert (row.state, row.fence) == (State.WAITING, 0)
    _hear(board, 5, "ended", text="status 0")
    assert row.state is State.ENDED


def test_view_of_a_holder_has_its_name_fence_and_bar() -> None:
    """One glance tells who holds, under which fence, and for how long if nothing renews it."""
    lines = _draw(_held(), 2)
    row = _line(lines, "worker-1 ")
    assert "● holding worker-1/0123     7 ████████" in row
    assert " 1.0 s" in row
    assert "○ waiting" in _line(lines, "worker-2")


def test_view_of_a_paused_holder_runs_dry() -> None:
    """Its bar is shorter each time, and empty when the server lets somebody else in."""
    board = _held()
    _hear(board, 1, "paused")
    bars = [_line(_draw(board, now), "paused").count("█") for now in (1, 1.5, 2, 2.5, 3, 9)]
    assert bars == sorted(bars, reverse=True)
    assert (bars[0] > 12, bars[-2:]) == (True, [0, 0])
    assert " 0.0 s" in _line(_draw(board, 9), "paused")


@pytest.mark.parametrize(("now", "colour"), [(1.5, 32), (2.3, 33), (2.8, 31)], ids=["green", "yellow", "red"])
def test_view_of_a_bar_goes_from_green_to_red(now: float, colour: int) -> None:
    """The colour of a bar says how near its end is."""
    drawn = View(_held(), UNICODE).draw(100 + now, 80, 24)
    line = next(line for line in _render(drawn, 80, 24, colours=True) if "█" in line)
    assert f"\x1b[{colour}m█" in line


def test_view_of_a_holder_past_its_expiry_is_late() -> None:
    """A worker that goes on without having noticed is not shown as the holder."""
    board = _held()
    _hear(board, 2, "paused")
    _hear(board, 4, "resumed")
    assert "■ late" in _line(_draw(board, 4), "worker-1 ")


@pytest.mark.parametrize("width", [80, 140])
def test_view_of_what_happens_ends_with_the_last(width: int) -> None:
    """The notes are those of the plain lines; the oldest make room for the newest."""
    board = _held()
    for number in range(60):
        _hear(board, 1 + number / 10, "failed", text=f"Error{number}")
    board.act(109, "that was all")
    lines = _draw(board, 9, width)
    assert "Error0)" not in "".join(lines)
    assert "write failed (Error59)" in lines[-3]
    assert "9.0  ▶ that was all" in lines[-2]
    assert "▶ that was all" in lines[2]


def test_view_on_a_wide_terminal_puts_the_notes_beside_the_table() -> None:
    """There each bar has a line of its own, and each step its explanation."""
    lines = _draw(_held(), 2, 140, 40)
    assert "what happens" in _line(lines, "who holds the lease")
    assert _line(lines, "█").count("█") >= 30
    assert any("The dead release nothing" in line for line in lines)


def test_view_of_the_steps_says_what_is_done_and_what_is_next() -> None:
    """The fault under way is marked, and explained for a run without the check as well."""
    board = _held()
    _hear(board, 1, "begins", worker="", text="pause")
    assert "✓ hand-over   ✓ kill -9   ▶ pause   ○ restart" in "\n".join(_draw(board, 2))
    assert "▶ next, right after a renewal: pause" in "\n".join(_draw(board, 2))
    assert "The fence stops its late write" in "\n".join(_draw(board, 2))
    unfenced = _held(fenced=False)
    _hear(unfenced, 1, "begins", worker="", text="pause")
    assert "NOTHING STOPS ITS LATE WRITE" in "\n".join(_draw(unfenced, 2))


def test_view_of_an_accepted_late_write_is_red() -> None:
    """What must not happen stands out."""
    board = _held()
    _hear(board, 2, "wrote", text="late")
    lines = _render(View(board, UNICODE).draw(102, 80, 24), 80, 24, colours=True)
    assert "\x1b[1;31mworker-1  LATE WRITE ACCEPTED" in _line(lines, "LATE WRITE")


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_view_of_any_size_fits(glyphs: Glyphs) -> None:
    """However a terminal is resized, the drawing goes on and is no wider than it."""
    board = _held()
    wrong: list[tuple[int, int]] = []
    for width in (*range(1, 160, 13), 80, 115, 116):
        for height in (1, 5, 17, 24, 40):
            lines = _draw(board, 2, width, height, glyphs)
            fits = max(map(len, lines)) <= width and ((width, height) < (60, 17) or len(lines) <= max(height, 17))
            if not fits or "".join(lines).isascii() != glyphs.is_ascii:
                wrong.append((width, height))
    assert wrong == []
