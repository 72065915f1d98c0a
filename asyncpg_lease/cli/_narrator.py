"""Who tells what happens in the demo: the interface, the words, and plain lines."""

import time
from collections.abc import Coroutine, Sequence
from typing import Final, Protocol, TypeVar

from asyncpg_lease.cli._crew import Event
from asyncpg_lease.cli._verdict import FaultKind, Outcome

_T = TypeVar("_T")
_WIDTH: Final = 79
_PHRASES = {
    "acquired": "acquired",
    "released": "released",
    "lost": "lost its lease ({text}): the job is cancelled",
    "failed": "write failed ({text})",
    "logged": "({text})",
    "ended": "process ended ({text})",
    "refused": "LATE WRITE REFUSED: its fence is too old",
}


class Narrator(Protocol):
    """Tells a person what happens while it happens."""

    def introduce(self, key: str, ttl: float, *, planned: Sequence[FaultKind], fenced: bool) -> None:
        """Say what will happen."""

    async def accompany(self, work: Coroutine[object, object, _T]) -> _T:
        """Wait for the work that calls `hear` and `act`, and show what it says until it has ended."""

    def hear(self, event: Event, *, late: bool, writes: int) -> None:
        """Take what a worker said; `writes` is how many its tenure has made so far."""

    def act(self, what: str) -> None:
        """Take something that the demo does, or does to the holder or its server."""

    def conclude(self, outcome: Outcome) -> None:
        """Say how it ended."""


class Lines:
    """Prints plain lines of at most 79 columns, each with the time since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def introduce(self, key: str, ttl: float, *, planned: Sequence[FaultKind], fenced: bool) -> None:
        """Print what will happen."""
        embedded = FaultKind.RESTART in planned
        server = "an embedded PostgreSQL" if embedded else "your PostgreSQL"
        check = "a stale one is refused" if fenced else "NOTHING CHECKS IT"
        restart = "a restart of the server" if embedded else "no restart, as the server is yours"
        _print(f"Three worker processes compete for the lease {key!r} (ttl {ttl:g} s) on")
        _print(f"{server}. Each write has its fence, and {check}.")
        _print("What is done to the holder: a hand-over, kill -9, a pause past its ttl,")
        _print(f"{restart}. Then: a verdict from what was recorded.")
        _print("")
        _print(f"{'time':>6}  {'who':<8}  {'fence':>5}  {'left':>4}  what")

    async def accompany(self, work: Coroutine[object, object, _T]) -> _T:
        """Wait for the work: each line is printed as it comes."""
        return await work

    def hear(self, event: Event, *, late: bool, writes: int) -> None:
        """Print what a worker said, unless it says too little for a line."""
        what = describe(event, late=late, writes=writes)
        if what is not None:
            self._print(event.moment, event.worker, event.fence, event.left, what)

    def act(self, what: str) -> None:
        """Print what the demo does."""
        _print(f"{time.monotonic() - self._start:6.2f}  --- {what}"[:_WIDTH])

    def conclude(self, outcome: Outcome) -> None:
        """Print the verdict, or why there is none."""
        if outcome.failure:
            _print(f"RED: {outcome.failure}")
            return
        _print("")
        _print("Verdict, from what the database and the workers recorded:")
        for finding in outcome.findings:
            _print(f"  {'ok' if finding.ok else 'FAIL':<4}  {finding.rule:<27}  {finding.detail}"[:_WIDTH])
        _print(sum_up(outcome))

    def _print(self, moment: float, who: str, fence: int, left: float | None, what: str) -> None:
        passed = f"{moment - self._start:6.2f}"
        shown_fence = str(fence or "")
        shown_left = "" if left is None else f"{left:.1f}"
        _print(f"{passed}  {who:<8}  {shown_fence:>5}  {shown_left:>4}  {what}"[:_WIDTH])


def describe(event: Event, *, late: bool, writes: int) -> str | None:
    """Say in words what a worker said; None where it says too little to be told."""
    if event.kind == "renewed":
        return f"renewed, {writes} writes so far"
    if event.kind == "wrote" and late:
        return "LATE WRITE ACCEPTED: nothing checked its fence"
    phrase = _PHRASES.get(event.kind)
    return phrase and phrase.format(text=event.text)


def sum_up(outcome: Outcome) -> str:
    """Say the verdict in one line."""
    if outcome.green:
        return "GREEN: all of it held."
    if not outcome.fenced:
        return "RED, as it must be without the fence check: see the lines that say FAIL."
    return "RED: see the lines that say FAIL."


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 (the output of a command)
