"""What the statements of sql/ must keep to, read from their text."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

COMMENT = re.compile(r"--.*$", re.MULTILINE)
UPDATE = re.compile(r"\bUPDATE\s+lease\b.*?\bSET\b(.*?)(?:\bFROM\b\s+\w+\s+WHERE|\bWHERE\b)", re.DOTALL | re.IGNORECASE)
FENCE = re.compile(r"(?:^|,)\s*(?:holder|fence)\s*=", re.IGNORECASE)
# One of no row asks for the right alone.
DELETE = re.compile(r"\b(?:DELETE\s+FROM|TRUNCATE)\s+(?:ONLY\s+)?lease\b(?!\s+WHERE\s+false\s*(?:\)|$))", re.IGNORECASE)
LOCK = re.compile(r"\bFOR\s+UPDATE\b", re.IGNORECASE)

STATEMENTS = {
    file.name: COMMENT.sub("", file.read_text())
    for file in files("asyncpg_lease").joinpath("sql").iterdir()
    if file.name.endswith(".sql")
}


def culprits(text: str) -> list[str]:
    """Return what changes hands or deletes, a statement each, without a FOR UPDATE before it in the same statement."""
    found = []
    for statement in text.split(";"):
        changes = [match for match in UPDATE.finditer(statement) if FENCE.search(match[1])]
        changes += DELETE.finditer(statement)
        found += [match[0] for match in changes if not LOCK.search(statement, 0, match.start())]
    return found


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_statement_that_changes_hands_or_deletes_locks_for_update_first(name: str) -> None:
    """A guard's FOR KEY SHARE keeps out FOR UPDATE and nothing less: an UPDATE of no key column alone would pass."""
    assert culprits(STATEMENTS[name]) == []


WITHOUT_THE_LOCK = [
    STATEMENTS["claim.sql"].replace("FOR UPDATE SKIP LOCKED", "FOR NO KEY UPDATE SKIP LOCKED"),
    *(STATEMENTS[name].replace("FOR UPDATE", "FOR SHARE") for name in ("floor_raise.sql", "lift.sql", "prune.sql")),
    "UPDATE lease SET fence = fence + 1 WHERE key = $1",
    "UPDATE lease AS target SET expires_at = $2, holder = $1 FROM free WHERE true",
    "DELETE FROM lease WHERE key = $1",
    "SELECT FROM lease FOR UPDATE; DELETE FROM lease WHERE key = $1",
    "DELETE FROM lease WHERE false OR key = $1",
]


def test_rule_finds_what_it_is_for() -> None:
    """The claim is one that moves the fence, and each other way to do so without the lock is found."""
    assert [statement for statement in WITHOUT_THE_LOCK if not culprits(statement)] == []
    assert culprits("UPDATE lease SET released_at = clock_timestamp() WHERE fence = $1") == []
