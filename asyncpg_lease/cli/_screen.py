"""The demo live in a terminal: a screen while it runs, then a timeline and the verdict on the ordinary one."""

import asyncio
import os
import time
from collections.abc import Coroutine, Sequence
from typing import TypeVar

from rich.console import Console
from rich.live import Live
from rich.text import Text

from asyncpg_lease.cli._board import Board
from asyncpg_lease.cli._chart import Chart
from asyncpg_lease.cli._crew import Event
from asyncpg_lease.cli._glyphs import Glyphs, choose_glyphs
from asyncpg_lease.cli._narrator import Lines, Narrator, sum_up
from asyncpg_lease.cli._timeline import lay_out
from asyncpg_lease.cli._verdict import FaultKind, Outcome
from asyncpg_lease.cli._view import View

_T = TypeVar("_T")
_INTERVAL = 0.1
_LEAST_WIDTH, _LEAST_HEIGHT = 60, 18
# Longer lines are hard to read, and the bars gain nothing.
_GREATEST_WIDTH = 140


def choose_narrator() -> Narrator:
    """Choose the screen where there is a terminal that can show it, else plain lines."""
    console = Console(highlight=False, markup=False, emoji=False)
    # Both are asked, since the environment can make rich take a file for a terminal, and the reverse.
    able = console.file.isatty() and console.is_terminal
    # Without a name a terminal promises nothing.
    if not able or console.is_dumb_terminal or not os.environ.get("TERM"):
        return Lines()
    if console.width < _LEAST_WIDTH or console.height < _LEAST_HEIGHT:
        return Lines()
    return Screen(console, choose_glyphs(console.encoding))


class Screen:
    """Shows the workers and what happens, anew ten times a second, on the terminal's other screen.

    Args:
        console: the terminal.
        glyphs: the characters that it has.
    """

    def __init__(self, console: Console, glyphs: Glyphs) -> None:
        self._console = console
        self._glyphs = glyphs
        self._board = Board("", 1, (), fenced=True, start=time.monotonic())

    def __repr__(self) -> str:
        return f"<Screen of {self._console.width} columns>"

    def introduce(self, key: str, ttl: float, *, planned: Sequence[FaultKind], fenced: bool) -> None:
        """Begin with an empty board; the screen says at each step what it is about."""
        self._board = Board(key, ttl, planned, fenced=fenced, start=time.monotonic())

    async def accompany(self, work: Coroutine[object, object, _T]) -> _T:
        """Show the board for as long as the work runs; an error in drawing ends the work, and comes out.

        However it ends, the terminal is as it was before anything is tidied up.
        """
        working = asyncio.create_task(work, name="work")
        drawing = asyncio.create_task(self._draw(), name="draw")
        try:
            await asyncio.wait((working, drawing), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _end(drawing)
            await _end(working)
            if not working.cancelled():
                working.result()  # Where the tidying up failed, that comes out.
            raise
        await _end(drawing)
        await _end(working)
        if not drawing.cancelled():
            drawing.result()
        return working.result()

    def hear(self, event: Event, *, late: bool, writes: int) -> None:
        """Put what a worker said, or what was done to it, on the board."""
        self._board.hear(event, late=late, writes=writes)

    def act(self, what: str) -> None:
        """Put what the demo does on the board."""
        self._board.act(time.monotonic(), what)

    def conclude(self, outcome: Outcome) -> None:
        """Print the timeline and the verdict, or what happened last where it was broken off."""
        width = min(self._console.width, _GREATEST_WIDTH)
        view = View(self._board, self._glyphs)
        chart = Chart(lay_out(outcome.records), width, self._glyphs)
        ending = [Text(f"RED: {outcome.failure}", "bold red")] if outcome.failure else _tell(outcome)
        told = view.last_notes() if outcome.failure else []
        for line in (Text(), *told, *chart.lines(), Text(), *ending):
            self._console.print(line, no_wrap=True, overflow="crop")

    async def _draw(self) -> None:
        view = View(self._board, self._glyphs)
        with Live(
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live:
            while True:
                live.update(view.draw(time.monotonic(), *self._console.size), refresh=True)
                await asyncio.sleep(_INTERVAL)


async def _end(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()  # Has been seen: whoever wants it asks for the result.


def _tell(outcome: Outcome) -> list[Text]:
    lines = [Text("Verdict, from what the database and the workers recorded:")]
    for finding in outcome.findings:
        word, style = ("ok", "green") if finding.ok else ("FAIL", "bold red")
        lines.append(Text.assemble((f"  {word:<4}  ", style), f"{finding.rule:<27}  {finding.detail}"))
    return [*lines, Text(sum_up(outcome), "bold green" if outcome.green else "bold red")]
