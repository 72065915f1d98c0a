"""The runner of the breaks, tried on a toy package with forged breaks, and what it makes of results."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broken.bench import Bench, reason_for_skipping
from tests.broken.breaks import Break, BreakError, Edit
from tests.broken.child import Outcome, Result
from tests.broken.rules import Rule, complaints

TOY = '''"""A toy."""


def double(number: int) -> int:
    return number * 2
'''
TESTS = """
import time

import pytest
from toy import double

@pytest.mark.parametrize("number", [0, 1, 2])
def test_double(number):
    assert double(number) == number + number

def test_other():
    assert True

@pytest.mark.timeout(60)
def test_hang():
    if double(1) != 2:
        time.sleep(30)

@pytest.mark.skip(reason="a program is missing")
def test_missing_program():
    pass
"""
# Without the plugins that take a second to import.
QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout,xdist.plugin"}
TEST = "tests/test_toy.py::test_double"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A package `toy` and its tests."""
    package, tests = tmp_path / "installed" / "toy", tmp_path / "root" / "tests"
    for folder in (package, tests):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text(TOY)
    (tests / "test_toy.py").write_text(TESTS)
    (tests.parent / "pytest.ini").write_text("[pytest]\n")
    return Bench(package, tests.parent, limit=0.5)


def forge(*tests: str, find: str = "number * 2", put: str = "number * 3", hangs: str | None = None) -> Break:
    """Make a break of double()."""
    return Break("forged", "toy-doubles", "It triples.", tests, hangs, (Edit("double", find, put),))


def results(*found: tuple[str, str, Outcome]) -> list[Result]:
    """Make results of one test: parameter, phase and outcome."""
    return [
        Result(f"{TEST}{parameter}", phase, outcome, "why" * (outcome == "skipped"))
        for parameter, phase, outcome in found
    ]


@pytest.mark.slow("each break is a run of pytest in a process of its own")
def test_runner_break_that_fails_its_test_is_seen(bench: Bench) -> None:
    """A test that fails with one of its parameters is what the break promises; a skipped one beside it is named."""
    seen = bench.judge(forge(TEST, "tests/test_toy.py::test_missing_program"), QUICK)
    assert seen.failed
    assert seen.untried == {"tests/test_toy.py::test_missing_program": "a program is missing"}


@pytest.mark.slow("each break is a run of pytest in a process of its own")
def test_runner_time_limit_counts_only_for_a_break_that_hangs(bench: Bench) -> None:
    """A test that runs into the limit, whatever its mark says, proves nothing unless the break says that it hangs."""
    test = "tests/test_toy.py::test_hang"
    with pytest.raises(BreakError, match="proves nothing: does it hang"):
        bench.judge(forge(test), QUICK)
    assert bench.judge(forge(test, hangs="it sleeps"), QUICK).failed


@pytest.mark.slow("each break is a run of pytest in a process of its own")
@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (forge(TEST, "tests/test_toy.py::test_other"), "test_other still passes"),
        (forge("tests/test_toy.py::test_nowhere"), "pytest could not run"),
        (forge(TEST, put="("), "pytest could not run"),
        (forge(TEST, find="number * 4"), "stands 0 times in double"),
    ],
    ids=["it passes", "no such test", "no Python", "no such text"],
)
def test_runner_break_that_proves_nothing_is_an_error(bench: Bench, broken: Break, complaint: str) -> None:
    """A test that passes or is not there, and a package that cannot be imported, prove nothing."""
    with pytest.raises(BreakError, match=complaint):
        bench.judge(broken, QUICK)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (results(("[0]", "call", "passed"), ("[1]", "call", "failed"), ("[1]", "teardown", "failed")), None),
        (results(("[1]", "call", "failed"), ("[2]", "setup", "skipped")), None),
        (results(("", "setup", "skipped")), "why"),
        (results(("[0]", "call", "passed"), ("[1]", "setup", "skipped")), "why"),
    ],
    ids=["one case failed", "the others were left out", "skipped", "one was skipped"],
)
def test_verdict_of_a_test_that_failed_or_was_skipped(found: list[Result], reason: str | None) -> None:
    """A test is seen to fail if one of its cases has; it is not tried if none has and one was skipped."""
    assert reason_for_skipping(TEST, found, hangs=False) == reason


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (results(("", "call", "passed")), "still passes"),
        (results(("", "setup", "failed")), "its setup did"),
        (results(("", "call", "passed"), ("", "teardown", "failed")), "its teardown did"),
        (results(("", "call", "timed out")), "proves nothing"),
        (results(("_more", "call", "failed")), "did not run"),
    ],
)
def test_verdict_of_a_test_that_did_not_fail_is_an_error(found: list[Result], complaint: str) -> None:
    """Only a failure of the test's own call counts."""
    with pytest.raises(BreakError, match=complaint):
        reason_for_skipping(TEST, found, hangs=False)


def test_complaints_are_of_rules_and_tests_that_are_not_there(tmp_path: Path) -> None:
    """A rule without a break, a break without a rule, and a test that is nowhere are each named."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_toy.py").write_text(TESTS)
    rules = {name: Rule(name, "It doubles.", ("G1",)) for name in ("toy-doubles", "toy-triples")}
    sound = forge(f"{TEST}[1]")
    assert list(complaints(rules, [sound], tmp_path)) == ["rule toy-triples has no break"]
    lost = Break("lost", "toy-quadruples", "", ("tests/test_toy.py::test_gone", "tests/gone.py::test_it"), None, ())
    assert set(complaints(rules, [sound, lost], tmp_path)) == {
        "lost: there is no rule toy-quadruples",
        "lost: there is no test tests/test_toy.py::test_gone",
        "lost: there is no test tests/gone.py::test_it",
        "rule toy-triples has no break",
    }
