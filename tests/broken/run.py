"""Break the package on purpose, one patch at a time, and see the named tests fail.

    python -m tests.broken [PATCH ...]

A patch is a unified diff against asyncpg_lease/ with a header above it:

    # why: one sentence, what is broken and what follows
    # test: tests/path/test_file.py::test_name     (one line for each test that must fail)

Each patch goes onto a copy of the installed package that shadows the original, and only its tests run.
A test that still passes, errs for another reason, does not exist, or a patch that no longer applies,
makes the run fail: a guard that nobody would miss is no guard, and a patch that rots is no proof.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree as ET

from asyncpg_lease.testing.server import EmbeddedServer
from tests.broken.child import context, run
from tests.support.databases import TEST_SETTINGS

_HEADER = re.compile(r"^# (why|test): *(.+?) *$", re.MULTILINE)
_AT_ONCE = 6
_processes = context()
_DSN = "ASYNCPG_LEASE_TEST_DSN"
_TEST_SECONDS = 30
_PATCH_SECONDS = 120


class RottenError(Exception):
    """A patch proves nothing; the message says why."""


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch file: where it is, the rule that it breaks, the tests that must fail."""

    path: Path
    why: str
    tests: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Patch:
        """Read the header.

        Raises:
            RottenError: If it does not say why, or names no test.
        """
        header = path.read_text().partition("\n--- ")[0]
        fields = _HEADER.findall(header)
        whys = [value for name, value in fields if name == "why"]
        tests = tuple(value for name, value in fields if name == "test")
        if len(whys) != 1 or not tests:
            message = "the header needs one '# why:' and at least one '# test:'"
            raise RottenError(message)
        return cls(path, whys[0], tests)


@dataclass(frozen=True, slots=True)
class Bench:
    """Where patches are tried: the package that is broken and the folder with its tests in it."""

    package: Path
    root: Path

    def judge(self, path: Path, environment: Mapping[str, str]) -> Patch:
        """Apply a patch to a copy of the package, see that every test that it names fails, and return it.

        Args:
            path: The patch.
            environment: Variables for its tests, beside this process's own.

        Raises:
            RottenError: If it proves nothing.
        """
        patch = Patch.read(path)
        with tempfile.TemporaryDirectory(prefix="broken-") as folder:
            copy = Path(folder)
            shutil.copytree(self.package, copy / self.package.name)
            _apply(patch, copy)
            results = self._run(patch, copy, environment)
        for test in patch.tests:
            _expect_failure(test, results)
        return patch

    def _run(self, patch: Patch, copy: Path, environment: Mapping[str, str]) -> list[ET.Element]:
        report = copy / "report.xml"
        # Plain assertions: what they compared is of no interest, and their rewriting takes time.
        options = ["-q", "-p", "no:cacheprovider", "--assert=plain", f"--timeout={_TEST_SECONDS}"]
        arguments = [*options, f"--junitxml={report}", *patch.tests]
        code, output = self._pytest(arguments, copy, environment)
        if code < 0:
            # A crash of the interpreter, in broken code that ends connections in odd moments, says nothing: once more.
            code, output = self._pytest(arguments, copy, environment)
        if code not in {0, 1}:
            message = f"pytest could not run its tests:\n{output[-2000:]}"
            raise RottenError(message)
        return list(ET.parse(report).iter("testcase"))

    def _pytest(self, arguments: Sequence[str], copy: Path, environment: Mapping[str, str]) -> tuple[int, str]:
        output = copy / "output.txt"
        process = _processes.Process(target=run, args=(arguments, self.root, copy, dict(environment), output))
        process.start()
        process.join(_PATCH_SECONDS)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
            message = f"its tests did not end within {_PATCH_SECONDS} s"
            raise RottenError(message)
        return code, output.read_text(errors="replace")


def _apply(patch: Patch, copy: Path) -> None:
    done = subprocess.run(
        ["git", "apply", "--whitespace=nowarn", str(patch.path.resolve())],
        cwd=copy,
        # A folder inside some checkout would make git apply nothing, and say nothing.
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        message = f"it does not apply:\n{done.stderr}"
        raise RottenError(message)


def _expect_failure(test: str, results: Sequence[ET.Element]) -> None:
    """See that the named test failed in its own call, for one of its parameters at least; no skip, no error else.

    A failure may leave behind what its teardown then complains of: an error beside a failure of the same result.
    """
    # JUnit's reports say tests.path.test_file and test_name[parameters].
    dotted = test.replace(".py::", ".").replace("::", ".").replace("/", ".")
    wanted = re.compile(rf"{re.escape(dotted)}(\[.*\])?", re.DOTALL)
    mine = [result for result in results if wanted.fullmatch(f"{result.get('classname')}.{result.get('name')}")]
    failed, kinds = False, set[str]()
    # A call that failed and a teardown that complained are two results of one name.
    for name in {result.get("name") for result in mine}:
        tags = {child.tag for result in mine if result.get("name") == name for child in result}
        if "failure" in tags:
            failed = True
        else:
            kinds |= tags & {"error", "skipped"}
    if kinds:
        message = f"{test} did not fail but had: {', '.join(sorted(kinds))}"
        raise RottenError(message)
    if not failed:
        message = f"{test} still passes"
        raise RottenError(message)


@contextmanager
def _servers() -> Iterator[SimpleQueue[str]]:
    """Yield the DSNs of as many servers as patches run at once.

    One each: a test that measures its whole server must not fail because of its neighbour.
    """
    queue: SimpleQueue[str] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(_AT_ONCE):
            given = os.environ.get(_DSN)
            queue.put(given or stack.enter_context(EmbeddedServer(TEST_SETTINGS)).dsn)
        yield queue


def _report(bench: Bench, servers: SimpleQueue[str], path: Path) -> str | None:
    """Judge one patch, print a line, and return the complaint if there is one."""
    started = time.monotonic()
    dsn = servers.get()
    complaint = None
    try:
        bench.judge(path, {_DSN: dsn})
    except RottenError as error:
        complaint = f"{path.name}: {error}"
    finally:
        servers.put(dsn)
    verdict = "proves nothing" if complaint else "breaks its tests"
    print(f"{path.name}: {verdict} ({time.monotonic() - started:.1f} s)", flush=True)
    return complaint


def main(arguments: Sequence[str]) -> int:
    """Judge the patches named, or all of them; return the exit code."""
    here = Path(__file__).parent
    paths = [Path(argument) for argument in arguments] or sorted(here.glob("*.patch"))
    if not paths:
        print("there is no patch: nothing shows that the tests can fail")
        return 1
    found = importlib.util.find_spec("asyncpg_lease")
    assert found is not None
    assert found.origin is not None
    bench = Bench(package=Path(found.origin).parent, root=here.parents[1])
    with _servers() as servers, ThreadPoolExecutor(_AT_ONCE) as pool:
        complaints = [complaint for complaint in pool.map(partial(_report, bench, servers), paths) if complaint]
    for complaint in complaints:
        print(f"\n{complaint}")
    print(f"\n{len(paths) - len(complaints)} of {len(paths)} patches break the tests that they name")
    return 1 if complaints else 0
