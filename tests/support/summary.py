"""A pytest plugin: the run ends by saying what it ran on and what it left out, for people and for CI.

`--runs FILE` also writes those lines to a file, which CI compares with tests/expected-runs.txt: a server
that was not there, or a test that began to skip, is then an error and not silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.runs import NOTES, Notes, versions

REST = "the others: `nox -t ci`, which takes about 18 minutes, and `nox -t night`: see CONTRIBUTING.md"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--runs FILE`."""
    parser.addoption("--runs", type=Path, metavar="FILE", help="write what ran and what was skipped to FILE")


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing noted."""
    config.stash[NOTES] = Notes()
    config.pluginmanager.register(_Collector(config.stash[NOTES]))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what a process of pytest-xdist noted to the one that began it."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        notes = session.config.stash[NOTES]
        output["servers"], output["loops"] = sorted(notes.servers), sorted(notes.loops)
        output["poolers"] = sorted(notes.poolers)


class _Collector:
    """Takes over what each process of pytest-xdist noted."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        output: dict[str, list[str]] = getattr(node, "workeroutput", {})
        self.notes.servers.update(output.get("servers", ()))
        self.notes.loops.update(output.get("loops", ()))
        self.notes.poolers.update(output.get("poolers", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Print the lines, and write the file where the run came to its end."""
    # Sorted, since tests that run at once are told of in any order.
    lines = [*config.stash[NOTES].lines(), *sorted(_skipped(terminalreporter))]
    terminalreporter.section("what ran")
    for line in lines:
        terminalreporter.line(line)
    # For people alone: they change from day to day, and what CI compares does not.
    terminalreporter.line("versions: " + ", ".join(f"{name} {number}" for name, number in versions().items()))
    if config.option.markexpr:
        terminalreporter.line(f"only the tests that are {config.option.markexpr!r}; {REST}")
    path: Path | None = config.getoption("--runs")
    # A process of pytest-xdist's knows of its own tests alone, and may have had none.
    ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if path is not None and ended and not hasattr(config, "workerinput"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))


def _skipped(reporter: pytest.TerminalReporter) -> Iterator[str]:
    for report in reporter.getreports("skipped"):
        _path, _line, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, "")
        yield f"skipped: {report.nodeid}: {reason.removeprefix('Skipped: ')}"
