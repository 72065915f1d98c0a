"""One run of pytest on a broken package, in a process that was forked with everything but that package loaded."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path
from typing import Literal

import pytest

LOADED = [
    *("pytest", "pytest_asyncio", "pytest_timeout", "xdist", "hypothesis", "blockbuster", "_pytest.pytester"),
    *("asyncpg", "psycopg", "anyio._backends._asyncio"),
]
"""What takes most of a run's time to import, and imports nothing of the package's."""

_ROOT = Path(__file__).parents[2]
_ROOT_PACKAGE = __name__.partition(".")[0]

Outcome = Literal["passed", "failed", "timed out", "skipped"]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one phase of one test: its set-up, its call, or its tear-down."""

    test: str
    phase: str
    outcome: Outcome
    reason: str


class Recorder:
    """A pytest plugin: gives each test the same limit, and writes down what became of it.

    A function of which one case has failed or timed out is not run with its other parameters.
    """

    def __init__(self, limit: float) -> None:
        self.results: list[Result] = []
        self._limit = limit
        self._failed: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Give the call of each test the limit, whatever its own mark says."""
        for item in items:
            item.add_marker(pytest.mark.timeout(self._limit, func_only=True), append=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip what was seen to fail."""
        if _function(item.nodeid) in self._failed:
            pytest.skip("it has failed with other parameters")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Write down what became of a phase."""
        report = yield
        outcome: Outcome = report.outcome
        if outcome == "failed" and call.when == "call":
            # Not by its error, which a task group would have wrapped.
            outcome = "timed out" if call.duration >= self._limit else "failed"
            self._failed.add(_function(item.nodeid))
        if hasattr(report, "wasxfail"):
            # It was run, and is expected to fail without any break.
            outcome = "passed"
        reason = str(call.excinfo.value) if outcome == "skipped" and call.excinfo is not None else ""
        self.results.append(Result(item.nodeid, report.when, outcome, reason))
        return report


def context() -> ForkServerContext | SpawnContext:
    """Return the way to start such processes; where there is no forking they load everything themselves."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(LOADED)
    return forking


def run(arguments: Sequence[str], root: Path, copy: Path, environment: Mapping[str, str], limit: float) -> None:
    """Run pytest in a folder, on the package in another one, and exit with its code.

    Beside the package come its output (output.txt) and what became of its tests (results.json).
    """
    with (copy / "output.txt").open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.environ.update(environment, PYTHONPATH=str(copy))
    os.chdir(root)
    # The tests come from that folder, and nothing from the checkout from which this was imported.
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in {"", str(_ROOT)})]
    for name in [name for name in sys.modules if name.partition(".")[0] == _ROOT_PACKAGE]:
        del sys.modules[name]
    recorder = Recorder(limit)
    try:
        sys.exit(pytest.main(list(arguments), plugins=[recorder]))
    finally:
        # Also if pytest itself ends with an error, as it does for what a broken package leaves behind.
        results = json.dumps([asdict(result) for result in recorder.results])
        (copy / "results.json").write_text(results, encoding="utf-8")


def read_results(copy: Path) -> list[Result]:
    """Read what `run` has written down."""
    return [Result(**result) for result in json.loads((copy / "results.json").read_text(encoding="utf-8"))]


def _function(test: str) -> str:
    return test.partition("[")[0]
