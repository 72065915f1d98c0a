"""All breaks, without running them: each finds its places, its rule and its tests, and each rule has a break."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import asyncpg_lease
from tests.broken.breaks import Break, BreakError, read_all
from tests.broken.places import Package
from tests.broken.rules import Rule, complaints, read_rules
from tests.broken.run import ROOT

CHANGELOG = ROOT / "CHANGELOG.md"


@pytest.fixture(scope="module")
def breaks() -> list[Break]:
    """All breaks."""
    return read_all()


@pytest.fixture(scope="module")
def rules() -> Mapping[str, Rule]:
    """All rules."""
    return read_rules()


def test_break_finds_each_of_its_texts_once(breaks: list[Break]) -> None:
    """Each edit of each break has one place in the package, and changes it."""
    package = Package.read(Path(asyncpg_lease.__file__).parent)
    texts = {source.path: source.text for source in package.sources}
    wrong = []
    for broken in breaks:
        try:
            changed = package.broken(broken)
        except BreakError as error:
            wrong.append(f"{broken.name}: {error}")
        else:
            wrong += [f"{broken.name} leaves {path}" for path, text in changed.items() if text == texts[path]]
    assert wrong == []


def test_break_names_a_rule_and_tests_that_are_there(breaks: list[Break], rules: Mapping[str, Rule]) -> None:
    """Each break has a rule and tests, and each rule has a break."""
    assert list(complaints(rules, breaks, ROOT)) == []


def test_rule_comes_from_a_guarantee_a_row_or_a_fault(rules: Mapping[str, Rule]) -> None:
    """Each source of a rule stands on its page, and each guarantee and each row of the tables is the source of one."""
    pages = ROOT / "docs/explanation"
    guarantees = re.findall(r"^## ([GN]\d):", (pages / "guarantees.md").read_text(), re.MULTILINE)
    rows = re.findall(r"^\| (?!fault)(.*?) \|", (pages / "failure-modes.md").read_text(), re.MULTILINE)
    sources = {source for rule in rules.values() for source in rule.sources}
    begun = {source: [row for row in rows if f"row: {row}".startswith(source)] for source in sources}
    unknown = {source for source in sources - set(guarantees) if not begun[source] and not source.startswith("fixed: ")}
    assert unknown == set()
    assert set(guarantees) - sources == set()
    assert set(rows) - {row for found in begun.values() for row in found} == set()


def test_rule_of_a_mended_fault_quotes_the_changelog(rules: Mapping[str, Rule]) -> None:
    """Each such source begins a line under "Fixed"."""
    fixed = CHANGELOG.read_text().partition("### Fixed")[2]
    quoted = {
        source.removeprefix("fixed: ") for rule in rules.values() for source in rule.sources if "fixed: " in source
    }
    assert {text for text in quoted if f"- {text}" not in fixed} == set()


def test_every_sentence_of_a_rule_is_short(rules: Mapping[str, Rule]) -> None:
    """A rule is one sentence of at most 25 words."""
    assert {name: rule.says for name, rule in rules.items() if len(rule.says.split()) > 25} == {}
