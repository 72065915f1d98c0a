"""docs/explanation/guarantees.md names the tests that show each guarantee: they exist, and can fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.broken.breaks import read_all
from tests.broken.rules import read_rules

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
PAGES = ["guarantees", "failure-modes", "failover"]


def guarantees() -> dict[str, list[str]]:
    """Return the tests that are named for each guarantee."""
    text = (ROOT / "docs/explanation/guarantees.md").read_text()
    sections = re.split(r"^## (?=[GN]\d)", text, flags=re.MULTILINE)[1:]
    named = {section.partition(":")[0]: NAMED.findall(section) for section in sections}
    return {name: ["::".join(test) for test in tests] for name, tests in named.items()}


def broken_tests() -> dict[str, set[str]]:
    """Return the tests of the breaks of each guarantee: they are seen to fail if what keeps it is taken out."""
    rules = read_rules()
    tests: dict[str, set[str]] = {}
    for broken in read_all():
        for source in rules[broken.rule].sources:
            tests.setdefault(source, set()).update(test.partition("[")[0] for test in broken.tests)
    return tests


def test_guarantees_are_the_seven_and_what_is_not_promised() -> None:
    """The page has a section for each."""
    assert list(guarantees()) == [*(f"G{number}" for number in range(1, 8)), "N1"]


@pytest.mark.parametrize("name", [f"G{number}" for number in range(1, 8)])
def test_guarantee_has_a_test_that_was_seen_to_fail(name: str) -> None:
    """Each guarantee is shown by a test that fails on a package without what keeps that guarantee."""
    assert set(guarantees()[name]) & broken_tests()[name]


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_a_page_names_exist(page: str) -> None:
    """No page names a test that is not there."""
    named = NAMED.findall((ROOT / f"docs/explanation/{page}.md").read_text())
    texts = {path: (ROOT / path).read_text() if (ROOT / path).is_file() else None for path, _ in named}
    assert [path for path, text in texts.items() if text is None] == []
    defined = {
        path: set(re.findall(r"^(?:async )?def (\w+)\(", text or "", re.MULTILINE)) for path, text in texts.items()
    }
    assert [f"{path}::{name}" for path, name in named if name and name not in defined[path]] == []
