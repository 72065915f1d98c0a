"""Break the package on purpose, one break at a time, and see the tests fail that it names.

    python -m tests.broken [NAME ...] [--guarantees] [--insist]

`tests.broken.breaks` tells what a break is, and rules.toml has the rules that they break. The run fails if a test
that a break names still passes, errs elsewhere or is not there, if a break no longer finds its place or names a rule
that is not there, and if a rule has no break. Before, every test has to pass on the unchanged package.
A test that is skipped was not tried. The end names it, and with --insist it fails the run too.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from asyncpg_lease.testing import EmbeddedServer
from tests.broken.bench import Bench, Seen
from tests.broken.breaks import Break, BreakError, read_all
from tests.broken.rules import Rule, complaints, read_rules
from tests.support.databases import TEST_SETTINGS, Server

ROOT = Path(__file__).parents[2]
_READ_BY_TESTS = ("tests", "docs", "bench", "README.md", "CHANGELOG.md", "pyproject.toml")
_AT_ONCE = 5
_DSN = "ASYNCPG_LEASE_TEST_DSN"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a break: what was seen, or why it proves nothing."""

    broken: Break
    outcome: Seen | BreakError
    seconds: float

    def __str__(self) -> str:
        """Return the line that is printed."""
        if isinstance(self.outcome, BreakError):
            word = "proves nothing"
        else:
            word = "breaks its tests" if self.outcome.failed else "was not tried"
        return f"{self.broken.name} ({self.broken.rule}): {word} ({self.seconds:.1f} s)"


def main(arguments: Sequence[str]) -> int:
    """Judge the breaks named, those of the guarantees, or all; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.broken", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a break, or a rule for all its breaks")
    parser.add_argument("--guarantees", action="store_true", help="the breaks of the guarantees only")
    parser.add_argument("--insist", action="store_true", help="fail if a test is skipped")
    options = parser.parse_args(arguments)
    options.names = [name.removesuffix(".break") for name in options.names]
    rules, breaks = read_rules(), read_all()
    chosen = _choose(breaks, rules, options.names, guarantees=options.guarantees)
    if unknown := set(options.names) - {name for broken in breaks for name in (broken.name, broken.rule)}:
        parser.error(f"no break and no rule is called {', '.join(sorted(unknown))}: see tests/broken")
    verdicts = _judge(chosen)
    rotten = [f"{it.broken.name}: {it.outcome}" for it in verdicts if isinstance(it.outcome, BreakError)]
    wrong = [*complaints(rules, breaks, ROOT), *rotten]
    untried = {
        test: reason
        for verdict in verdicts
        if isinstance(verdict.outcome, Seen)
        for test, reason in verdict.outcome.untried.items()
    }
    if options.insist:
        wrong += [f"{test} was not tried" for test in untried]
    return _conclude(verdicts, rules, untried, wrong)


def _choose(
    breaks: Sequence[Break], rules: Mapping[str, Rule], names: Sequence[str], *, guarantees: bool
) -> list[Break]:
    return [
        broken
        for broken in breaks
        if (not names or broken.name in names or broken.rule in names)
        and (not guarantees or (broken.rule in rules and rules[broken.rule].is_of_a_guarantee))
    ]


def _judge(breaks: Sequence[Break]) -> list[Verdict]:
    found = importlib.util.find_spec("asyncpg_lease")
    assert found is not None
    assert found.origin is not None
    with _tests() as root, _servers() as servers, ThreadPoolExecutor(_AT_ONCE) as pool:
        bench = Bench(package=Path(found.origin).parent, root=root)
        tests = sorted({test for broken in breaks for test in broken.tests})
        list(pool.map(partial(_control, bench, servers), (tests[place::_AT_ONCE] for place in range(_AT_ONCE))))
        return list(pool.map(partial(_judge_one, bench, servers), breaks))


def _control(bench: Bench, servers: SimpleQueue[str], tests: Sequence[str]) -> None:
    if not tests:
        return
    dsn = servers.get()
    try:
        bench.control(tests, {_DSN: dsn})
    finally:
        servers.put(dsn)


def _judge_one(bench: Bench, servers: SimpleQueue[str], broken: Break) -> Verdict:
    dsn = servers.get()
    started = time.monotonic()
    outcome: Seen | BreakError
    try:
        outcome = bench.judge(broken, {_DSN: dsn})
    except BreakError as error:
        outcome = error
    finally:
        servers.put(dsn)
    verdict = Verdict(broken, outcome, time.monotonic() - started)
    print(f"{verdict}\n  {outcome}" if isinstance(outcome, BreakError) else verdict, flush=True)
    return verdict


@contextmanager
def _tests() -> Iterator[Path]:
    """Copy the tests and what they read to a folder beside which the original package does not stand."""
    with tempfile.TemporaryDirectory(prefix="broken-tests-") as folder:
        for name in _READ_BY_TESTS:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, folder)
        yield Path(folder)


@contextmanager
def _servers() -> Iterator[SimpleQueue[str]]:
    """Yield the DSNs of as many servers as breaks are tried at once: five, or the one that is given.

    One each: a test that measures its whole server must not fail because of its neighbour.
    """
    queue: SimpleQueue[str] = SimpleQueue()
    with ExitStack() as stack:
        if given := os.environ.get(_DSN):
            dsns = [given]
        else:
            servers = [EmbeddedServer(TEST_SETTINGS) for _ in range(_AT_ONCE)]
            for server in servers:
                stack.callback(server.stop)
                server.launch()
            for server in servers:
                server.wait_ready()
                Server.at(server.dsn, "embedded").make_connecting_cheap()
            dsns = [server.dsn for server in servers]
        for dsn in dsns:
            queue.put(dsn)
        yield queue


def _conclude(
    verdicts: Sequence[Verdict], rules: Mapping[str, Rule], untried: Mapping[str, str], wrong: Sequence[str]
) -> int:
    print("".join(f"\n{complaint}" for complaint in wrong))
    if untried:
        print(f"\n{len(untried)} tests were not tried:")
        for test, reason in untried.items():
            print(f"  {test}: {reason}")
    seen = [verdict for verdict in verdicts if isinstance(verdict.outcome, Seen) and verdict.outcome.failed]
    kept = {verdict.broken.rule for verdict in seen} & rules.keys()
    tried = {verdict.broken.rule for verdict in verdicts} & rules.keys()
    print(f"\n{len(seen)} of {len(verdicts)} breaks break the tests that they name; {len(kept)} of {len(tried)} rules")
    return 1 if wrong or not verdicts else 0
