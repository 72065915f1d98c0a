"""The rules that breaks take away, as rules.toml has them, and what is wrong with a set of rules and breaks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.broken.breaks import Break

FILE = Path(__file__).with_name("rules.toml")
_GUARANTEE = re.compile(r"[GN]\d")
# What ast.parse would find too; but that takes a second for all the tests.
_FUNCTION = re.compile(r"^(?:async )?def (\w+)\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its id, one sentence, and where it comes from.

    A source is a section of docs/explanation/guarantees.md ("G4", "N1"), a row of docs/explanation/failure-modes.md
    ("row: ..."), or a fault that was mended ("fixed: ...", as CHANGELOG.md has it).
    """

    name: str
    says: str
    sources: tuple[str, ...]

    @property
    def is_of_a_guarantee(self) -> bool:
        """Whether one of the guarantees promises it."""
        return any(_GUARANTEE.fullmatch(source) for source in self.sources)


def read_rules(path: Path = FILE) -> Mapping[str, Rule]:
    """Read the rules by their ids."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: Rule(name, table["rule"], tuple(table["sources"])) for name, table in tables.items()}


def complaints(rules: Mapping[str, Rule], breaks: Sequence[Break], root: Path) -> Iterator[str]:
    """Yield what can be seen to be wrong without running anything.

    Args:
        rules: All rules.
        breaks: All breaks.
        root: The folder in which the tests are.
    """
    for broken in breaks:
        if broken.rule not in rules:
            yield f"{broken.name}: there is no rule {broken.rule}"
        for test in broken.tests:
            path, _, function = test.partition("[")[0].partition("::")
            if function not in _functions(root / path):
                yield f"{broken.name}: there is no test {test}"
    for name in rules.keys() - {broken.rule for broken in breaks}:
        yield f"rule {name} has no break"


@cache
def _functions(path: Path) -> frozenset[str]:
    """Return the names of the functions of a module; no names if there is no module."""
    if not path.is_file():
        return frozenset()
    return frozenset(_FUNCTION.findall(path.read_text(encoding="utf-8")))
