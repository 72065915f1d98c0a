"""The runner of the broken patches, tried on a toy package with forged patches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broken.run import Bench, RottenError

TOY = '''"""A toy."""


def double(number: int) -> int:
    return number * 2
'''
TESTS = """
import pytest
from toy import double

@pytest.mark.parametrize("number", [0, 1])
def test_double(number):
    assert double(number) == number + number

def test_other():
    assert True

@pytest.fixture
def failing():
    raise RuntimeError

def test_set_up(failing):
    pass

@pytest.fixture
def complaining():
    yield
    raise RuntimeError

def test_teardown(complaining):
    assert double(1) == 2

def test_teardown_alone(complaining):
    pass
"""
# Without the plugins that take a second to import.
QUICK = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout"}
BROKEN = "    return number * 3"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A package `toy` and its tests."""
    package, tests = tmp_path / "installed" / "toy", tmp_path / "root" / "tests"
    for folder in (package, tests):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text(TOY)
    (tests / "test_toy.py").write_text(TESTS)
    (tests.parent / "pytest.ini").write_text("[pytest]\n")
    return Bench(package, tests.parent)


def forge(folder: Path, *tests: str, to: str = BROKEN, context: str = "def double(number: int) -> int:") -> Path:
    """Write a patch that replaces double's return line."""
    path = folder / "forged.patch"
    path.write_text(
        "# why: double triples\n"
        + "".join(f"# test: {test}\n" for test in tests)
        + "--- a/toy/__init__.py\n+++ b/toy/__init__.py\n@@ -4,2 +4,2 @@\n"
        + f" {context}\n-    return number * 2\n+{to}\n"
    )
    return path


def test_runner_patch_that_breaks_its_test_is_accepted(bench: Bench, tmp_path: Path) -> None:
    """A named test that fails for one of its parameters is what the patch promises."""
    judged = bench.judge(forge(tmp_path, "tests/test_toy.py::test_double"), QUICK)
    assert judged.why == "double triples"
    assert judged.tests == ("tests/test_toy.py::test_double",)


def test_runner_test_that_fails_and_errs_at_its_teardown_is_accepted(bench: Bench, tmp_path: Path) -> None:
    """What a failed call leaves behind may make its teardown err as well: it has failed all the same."""
    assert bench.judge(forge(tmp_path, "tests/test_toy.py::test_teardown"), QUICK).tests


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        (["tests/test_toy.py::test_double", "tests/test_toy.py::test_other"], "test_other still passes"),
        (["tests/test_toy.py::test_missing"], "pytest could not run"),
        (["tests/test_toy.py::test_set_up"], "did not fail but had: error"),
        (["tests/test_toy.py::test_teardown_alone"], "did not fail but had: error"),
        ([], "the header needs"),
    ],
)
def test_runner_test_that_does_not_fail_is_a_complaint(
    bench: Bench, tmp_path: Path, tests: list[str], complaint: str
) -> None:
    """A test that passes, is missing or errs outside of its call proves nothing, and neither does no test."""
    with pytest.raises(RottenError, match=complaint):
        bench.judge(forge(tmp_path, *tests), QUICK)


def test_runner_patch_without_a_place_is_a_complaint(bench: Bench, tmp_path: Path) -> None:
    """A patch whose lines are no longer in the package is named instead of skipped."""
    patch = forge(tmp_path, "tests/test_toy.py::test_double", context="def twice(number: int) -> int:")
    with pytest.raises(RottenError, match="does not apply"):
        bench.judge(patch, QUICK)


def test_runner_patch_that_cannot_be_imported_is_a_complaint(bench: Bench, tmp_path: Path) -> None:
    """A patch that only breaks the syntax proves nothing about the test."""
    patch = forge(tmp_path, "tests/test_toy.py::test_double", to="    return (")
    with pytest.raises(RottenError, match="pytest could not run"):
        bench.judge(patch, QUICK)
