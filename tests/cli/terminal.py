"""A terminal for a program under test: what it has on its screen, and what it leaves there."""

import os
import signal
import subprocess
import termios
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pyte

from tests.cli.conftest import PATIENCE, Scratch, Watched, wait_until

_ENTER, _LEAVE, _SHOW_CURSOR, _HIDE_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?25l"
# Wider than any line of the demo may be: what was meant to be one line stays one.
_WIDE, _TALL = 400, 100


class Terminal(Watched):
    """Runs a command in a terminal of a size.

    Args:
        command: the program and its arguments.
        scratch: the folder to run it in.
        size: columns and rows.
        environment: variables beside those of the folder.
    """

    def __init__(
        self, command: Sequence[str], scratch: Scratch, size: tuple[int, int], environment: dict[str, str]
    ) -> None:
        self._written = bytearray()
        self._lock = threading.Lock()
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = os.openpty()
        self.resize(*size)
        # Whatever the terminal of the tests is, it is not this one.
        plain = {name: value for name, value in scratch.environment().items() if name not in {"COLUMNS", "LINES"}}
        process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=scratch.folder,
            env=plain | {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | environment,
            start_new_session=True,
        )
        os.close(slave)
        super().__init__(process, self._read, partial(os.close, self._master))

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size, as its user does."""
        termios.tcsetwinsize(self._master, (rows, columns))
        with self._lock:
            self._screen.resize(rows, columns)

    @property
    def output(self) -> bytes:
        """All that was written to it so far."""
        with self._lock:
            return bytes(self._written)

    @property
    def lines(self) -> list[str]:
        """What can be seen on it now."""
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    def colour(self, character: str) -> set[str]:
        """Name the colours in which a character can be seen on it now."""
        with self._lock:
            cells = [cell for row in self._screen.buffer.values() for cell in row.values()]
        return {cell.fg for cell in cells if cell.data == character}

    def widest(self) -> int:
        """Return the width of the widest line that was drawn while it ran, and not only what fitted."""
        screen = pyte.Screen(_WIDE, self._screen.lines)
        stream = pyte.ByteStream(screen)
        widest = 0
        for frame in self.output.rpartition(_LEAVE)[0].split(b"\x1b[H"):
            screen.reset()
            stream.feed(frame)
            widest = max(widest, *(len(line.rstrip()) for line in screen.display))
        return widest

    def left_behind(self) -> list[str]:
        """Return what stands below the prompt when the program has left the other screen, unwrapped."""
        screen = pyte.Screen(_WIDE, _TALL)
        pyte.ByteStream(screen).feed(self.output.rpartition(_LEAVE)[2])
        return [line.rstrip() for line in screen.display if line.strip()]

    def is_restored(self) -> bool:
        """Whether it shows the ordinary screen and a cursor."""
        output = self.output
        return (
            output.rfind(_SHOW_CURSOR) > output.rfind(_HIDE_CURSOR) and _LEAVE in output.rpartition(b"\x1b[?1049h")[2]
        )

    def wait_for(self, text: str) -> list[str]:
        """Wait until a text can be seen on it, and return what could be seen then."""
        seen: list[str] = []

        def is_seen() -> bool:
            seen[:] = self.lines
            return any(text in line for line in seen)

        wait_until(is_seen, PATIENCE, lambda: f"{text!r} not in:\n" + "\n".join(seen))
        return seen

    def watch(self, observe: Callable[[list[str]], None]) -> int:
        """Show what can be seen again and again until the program ends; return its status."""
        while self.process.poll() is None:
            observe(self.lines)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
        return self.finish()

    def press_ctrl_c(self) -> None:
        """Do what a terminal does: the whole group in front gets it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def _read(self) -> None:
        # Where nobody has it open any more a terminal's other side is an error on Linux, and an end elsewhere.
        with suppress(OSError):
            while written := os.read(self._master, 65536):
                with self._lock:
                    self._written += written
                    self._stream.feed(written)
