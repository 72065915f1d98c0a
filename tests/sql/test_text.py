"""The files in sql/: what each must say, and must not."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

import asyncpg_lease
from tests.support.inside import bind

FILES = sorted(path.name for path in files(asyncpg_lease).joinpath("sql").iterdir() if path.name.endswith(".sql"))
ON_A_TABLE = ["claim", "get", "guard", "guard_first", "list", "release", "renew", "table"]
FROZEN = re.compile(
    r"\bnow\s*\(|'now'|\b(current_timestamp|current_date|current_time|localtime|localtimestamp"
    r"|transaction_timestamp|statement_timestamp)\b",
    re.IGNORECASE,
)
COMMENT = re.compile(r"--.*")


def read(name: str) -> str:
    """Return the text of one file."""
    return files(asyncpg_lease).joinpath("sql", name).read_text()


def test_statements_are_all_there() -> None:
    """One file for each statement or object."""
    assert {f"{name}.sql" for name in ON_A_TABLE} <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_statement_never_asks_for_the_time_its_transaction_began(name: str) -> None:
    """Only clock_timestamp() is right after a wait for a lock."""
    assert FROZEN.search(COMMENT.sub("", read(name))) is None


@pytest.mark.parametrize("name", FILES)
def test_statement_says_its_invariant_in_its_header(name: str) -> None:
    """Each file begins with a comment, and that says what the statement keeps."""
    header = re.match(r"(--.*\n)+", read(name))
    assert header is not None
    assert "-- Invariant: " in header[0]


@pytest.mark.parametrize("name", ON_A_TABLE)
def test_statement_bound_to_a_table_has_no_comment_and_no_other_name(name: str) -> None:
    """What is sent has the table's name wherever the file says `lease`, and nothing that only people read."""
    bound = bind(name, '"x"')
    assert "--" not in bound
    assert re.search(r"\blease\b", bound) is None
    assert len(re.findall(r'"x"', bound)) == len(re.findall(r"\blease\b", COMMENT.sub("", read(f"{name}.sql"))))
