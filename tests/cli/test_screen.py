"""The demo in a terminal: it draws itself while it runs, and leaves the timeline and the verdict."""

import asyncio
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from tests.cli.conftest import Scratch
from tests.cli.terminal import Terminal
from tests.support.inside import UNICODE, Lines, Screen, View, choose_narrator


@pytest.fixture
def open_demo(scratch: Scratch) -> Iterator[Callable[..., Terminal]]:
    """Start the demo in a terminal; whichever still runs at the end is ended."""
    opened: list[Terminal] = []

    def start(*arguments: str, size: tuple[int, int] = (80, 24), **environment: str) -> Terminal:
        command = [sys.executable, "-m", "asyncpg_lease", "demo", *arguments]
        opened.append(Terminal(command, scratch, size, environment))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.mark.night("runs the demo from its beginning to its end; it also does so without a terminal")
def test_demo_on_a_small_terminal_shows_the_holder_and_ends_green(
    open_demo: Callable[..., Terminal], scratch: Scratch, tmp_path: Path
) -> None:
    """Holder, fence and bar are live, the paused holder's bar runs dry, and a timeline and a picture stay."""
    picture = tmp_path / "demo.svg"
    terminal = open_demo("--svg", str(picture))
    seen: list[list[str]] = []
    assert terminal.watch(seen.append) == 0, terminal.left_behind()
    rows = [line for lines in seen for line in lines if line.startswith("│ worker-")]
    assert any("● holding" in row and "█" in row for row in rows)
    assert any("✗ killed" in row for row in rows)
    paused = [row.count("█") for row in rows if "■ paused" in row]
    assert paused == sorted(paused, reverse=True)
    assert (paused[0] > 0, paused[-1]) == (True, 0)
    assert any("LATE WRITE REFUSED" in line for lines in seen for line in lines)
    assert terminal.widest() <= 80
    assert terminal.is_restored()
    *lines, told = terminal.left_behind()
    assert told == f"The picture is in {picture}"
    assert max(map(len, lines)) <= 80
    left = "\n".join(lines)
    for word in ("▼ hand-over", "▼ kill -9", "pause ┄", "▼ resumed", "restart", "refused", "GREEN: all of it held."):
        assert word in left, left
    assert "end not recorded" not in left
    assert "stale write refused" in {element.text for element in ET.parse(picture).iter()}  # noqa: S314 (our own)
    assert not scratch.leftovers()


@pytest.mark.night("runs the demo until its last fault")
def test_demo_unfenced_on_a_wide_terminal_shows_the_accepted_write(
    open_demo: Callable[..., Terminal], scratch: Scratch
) -> None:
    """Without the check the stale write is accepted, and both the screen and the timeline say so."""
    terminal = open_demo("--unfenced", size=(140, 40), NO_COLOR="1")
    beside = terminal.wait_for("acquired, fence 1")
    assert any("who holds the lease" in line and "what happens" in line for line in beside)
    terminal.wait_for("LATE WRITE ACCEPTED")
    assert terminal.colour("█") == {"default"}
    assert terminal.finish() == 1
    assert terminal.widest() <= 140
    lines = terminal.left_behind()
    assert 100 < max(map(len, lines)) <= 140
    left = "\n".join(lines)
    assert "ACCEPTED" in left
    assert "RED, as it must be without the fence check" in left
    assert terminal.is_restored()
    assert not scratch.leftovers()


@pytest.mark.slow("starts a server and three workers")
def test_demo_on_ctrl_c_gives_the_terminal_back(open_demo: Callable[..., Terminal], scratch: Scratch) -> None:
    """The cursor and the ordinary screen come back, nothing stays below the prompt, and no process either."""
    terminal = open_demo()
    terminal.wait_for("● holding")
    assert terminal.colour("█") == {"green"}
    terminal.resize(100, 30)
    wait = terminal.wait_for("╯")
    assert any(len(line) == 100 for line in terminal.wait_for("─" * 90)), wait
    terminal.press_ctrl_c()
    assert terminal.finish() == 130
    assert terminal.is_restored()
    assert terminal.left_behind() == []
    assert not scratch.leftovers()


@pytest.mark.slow("starts a server and three workers")
def test_demo_on_a_dumb_terminal_prints_lines(open_demo: Callable[..., Terminal]) -> None:
    """Where the screen would not be understood there are plain lines, without an escape in them."""
    terminal = open_demo(TERM="dumb")
    terminal.wait_for("  time  who")
    terminal.press_ctrl_c()
    assert terminal.finish() == 130
    assert b"\x1b" not in terminal.output


@pytest.mark.parametrize(
    ("term", "size", "expected"),
    [
        ("xterm", (60, 18), Screen),
        ("xterm", (59, 18), Lines),
        ("xterm", (60, 17), Lines),
        ("unknown", (80, 24), Lines),
        ("", (80, 24), Lines),
    ],
)
def test_narrator_on_a_terminal_is_the_screen_where_that_fits(
    term: str, size: tuple[int, int], expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that is small, or of which nothing is known, gets plain lines."""
    master, slave = os.openpty()
    for name, value in {"TERM": term, "COLUMNS": str(size[0]), "LINES": str(size[1])}.items():
        monkeypatch.setenv(name, value)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with open(master, "rb"), open(slave, "w") as terminal, monkeypatch.context() as patch:  # noqa: PTH123 (no paths)
        patch.setattr(sys, "stdout", terminal)
        assert type(choose_narrator()) is expected


def test_narrator_without_a_terminal_is_lines_whatever_is_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FORCE_COLOR wants colours in a file; it does not want a screen there."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert type(choose_narrator()) is Lines


@pytest.mark.slow("starts a server and three workers")
def test_demo_on_a_terminal_without_unicode_draws_ascii(open_demo: Callable[..., Terminal]) -> None:
    """Under LC_ALL=C everything is drawn with characters that any terminal has."""
    terminal = open_demo(LC_ALL="C")
    terminal.wait_for("+- who holds the lease -")
    terminal.press_ctrl_c()
    assert terminal.finish() == 130
    assert terminal.output.isascii()


async def test_screen_that_fails_to_draw_ends_the_work_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in drawing is an error of the demo, which tidies up first."""
    tidied = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            tidied.set()

    def fail(*_: object) -> None:
        message = "no such glyph"
        raise RuntimeError(message)

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(View, "draw", fail)
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, width=80, height=24), UNICODE)
    with pytest.raises(RuntimeError, match="no such glyph"):
        await screen.accompany(work())
    assert tidied.is_set()
    assert out.getvalue().endswith("\x1b[?25h\x1b[?1049l")


async def test_screen_on_a_cancellation_says_what_could_not_be_tidied_up() -> None:
    """An error on the way out is not lost behind the cancellation."""

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            message = "drop it by hand"
            raise RuntimeError(message)

    screen = Screen(Console(file=io.StringIO(), force_terminal=True, width=80, height=24), UNICODE)
    accompanying = asyncio.create_task(screen.accompany(work()))
    await asyncio.sleep(0.01)
    accompanying.cancel()
    with pytest.raises(RuntimeError, match="drop it by hand"):
        await accompanying
