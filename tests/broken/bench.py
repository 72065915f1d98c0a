"""One break, tried: it goes onto a copy of the package that shadows the original, and only its tests run."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.broken.breaks import Break, BreakError
from tests.broken.child import Result, context, read_results, run
from tests.broken.places import Package

LIMIT = 10.0
"""Seconds for each test."""
_RUN_LIMIT = 120.0
"""Seconds for all tests of a break together."""
_processes = context()


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a break: the tests that were skipped, with the reasons, and whether any of the others failed."""

    untried: Mapping[str, str]
    failed: bool


@dataclass(frozen=True)
class Bench:
    """Where breaks are tried: the package that is broken, and the folder with its tests in it."""

    package: Path
    root: Path
    limit: float = LIMIT

    @cached_property
    def text(self) -> Package:
        """The package's files."""
        return Package.read(self.package)

    def judge(self, broken: Break, environment: Mapping[str, str]) -> Seen:
        """Apply a break to a copy of the package, and see that every test that it names fails or is skipped.

        Args:
            broken: The break.
            environment: Variables for its tests, beside this process's own.

        Raises:
            BreakError: If it proves nothing.
        """
        changed = self.text.broken(broken)
        with tempfile.TemporaryDirectory(prefix="broken-") as folder:
            copy = Path(folder)
            target = copy / self.package.name
            # With its compiled files: Python compiles again only what has changed.
            shutil.copytree(self.package, target)
            for path, text in changed.items():
                (target / path).write_text(text, encoding="utf-8")
            results = self._run(broken.tests, copy, environment)
        skipped = {test: reason_for_skipping(test, results, hangs=broken.hangs is not None) for test in broken.tests}
        untried = {test: reason for test, reason in skipped.items() if reason is not None}
        return Seen(untried, failed=len(untried) < len(skipped))

    def control(self, tests: Sequence[str], environment: Mapping[str, str]) -> None:
        """See that no test fails on the unchanged package: whatever fails anyway proves nothing.

        Args:
            tests: The tests.
            environment: Variables for them, beside this process's own.

        Raises:
            BreakError: If one fails.
        """
        with tempfile.TemporaryDirectory(prefix="broken-") as folder:
            copy = Path(folder)
            shutil.copytree(self.package, copy / self.package.name)
            results = self._run(tests, copy, environment)
        if wrong := sorted({result.test for result in results if result.outcome in {"failed", "timed out"}}):
            message = f"without any break these tests fail: {', '.join(wrong)}"
            raise BreakError(message)

    def _run(self, tests: Sequence[str], copy: Path, environment: Mapping[str, str]) -> list[Result]:
        # Plain assertions: what they compared is of no interest, and to rewrite them takes time.
        options = ["-q", "-m", "", "-n", "0", "-p", "no:cacheprovider", "--assert=plain"]
        arguments = ([*options, *tests], self.root, copy, dict(environment), self.limit)
        process = _processes.Process(target=run, args=arguments)
        process.start()
        process.join(_RUN_LIMIT)
        if process.exitcode is None:
            process.kill()
            process.join()
            message = f"its tests did not end within {_RUN_LIMIT:.0f} s"
            raise BreakError(message)
        if process.exitcode not in {0, 1}:
            output = (copy / "output.txt").read_text(encoding="utf-8", errors="replace")
            message = f"pytest could not run its tests (exit code {process.exitcode}):\n{output[-2000:]}"
            raise BreakError(message)
        return read_results(copy)


def reason_for_skipping(test: str, results: Sequence[Result], *, hangs: bool) -> str | None:
    """Return None if a test was seen to fail in its own call, with any of its parameters, or why it was skipped.

    A failure may leave behind what the tear-down then complains of: only the call counts.

    Raises:
        BreakError: If it was neither.
    """
    wanted = re.compile(rf"{re.escape(test)}(\[.*\])?", re.DOTALL)
    mine = [result for result in results if wanted.fullmatch(result.test)]
    called = {result.outcome for result in mine if result.phase == "call"}
    if "failed" in called or (hangs and "timed out" in called):
        return None
    if "timed out" in called:
        message = f"{test} ran into its time limit, which proves nothing: does it hang?"
    elif found := [result for result in mine if result.phase != "call" and result.outcome in {"failed", "timed out"}]:
        message = f"{test} did not fail, but its {found[0].phase} did"
    elif reasons := sorted(result.reason for result in mine if result.outcome == "skipped"):
        return reasons[0]
    else:
        message = f"{test} still passes" if called else f"{test} did not run"
    raise BreakError(message)
