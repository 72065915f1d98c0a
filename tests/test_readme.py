"""The Python blocks of README.md, docs/ and the docstrings run as they stand, on a database of their own.

Blocks of one document run in order and share their names; a block may await at its top level.
`asyncpg.create_pool()` without arguments finds the database by the usual PG variables, and DATABASE_URL
holds its DSN. Comments like `<!-- skip: next -->` and `<!-- invisible-code-block: python -->` are sybil's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import CodeBlockParser, SkipParser

import asyncpg_lease
from tests.support.blocks import Evaluator, evaluate
from tests.support.leftovers import close_pool
from tests.support.loops import chosen_factory
from tests.support.typing import Pool

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [path for path in sorted(Path(asyncpg_lease.__file__).parent.glob("*.py")) if "```python" in path.read_text()]
# Relative to the root, and why.
SLOW = {
    "README.md": "it imports a web framework, and its lifespan runs for half a second",
    "docs/how-to/fence-http.md": "it imports a web framework",
    "docs/how-to/fence-postgresql.md": "it starts another server",
    "docs/how-to/fence-redis.md": "it starts a Redis",
    "docs/how-to/fence-sqlalchemy.md": "it imports SQLAlchemy",
    "docs/how-to/revoke.md": "its jobs run for seconds",
    "docs/index.md": "its jobs run at set times",
}
# What examples do while they hold a lease.
JOBS = ["do_work", "write_report"]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, dsn: str) -> Iterator[asyncio.Runner]:
    """An event loop that a document's blocks share; the environment says where their database is."""
    where = urlsplit(dsn)
    variables = {
        "DATABASE_URL": dsn,
        "PGHOST": where.hostname or "",
        "PGPORT": str(where.port or 5432),
        "PGUSER": where.username or "",
        "PGPASSWORD": where.password or "",
        "PGDATABASE": where.path.lstrip("/"),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with asyncio.Runner(loop_factory=chosen_factory()) as runner:
        yield runner


def documents() -> Iterator[object]:
    """Yield each document as a parameter, with a mark if it is slow."""
    for path in DOCUMENTS:
        name = path.relative_to(ROOT).as_posix()
        yield pytest.param(path, id=name, marks=[pytest.mark.slow(SLOW[name])] if name in SLOW else [])


@pytest.mark.parametrize("path", list(documents()))
def test_document_blocks_run_as_they_stand(path: Path, runner: asyncio.Runner) -> None:
    """Every Python block of a document runs without an error; README.md has some."""
    sybil = Sybil(parsers=[CodeBlockParser("python", Evaluator(runner)), SkipParser()])
    document = sybil.parse(path)
    document.namespace["__name__"] = "__main__"
    assert evaluate(document) > 0 or path.name != "README.md"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_docstring_examples_run_as_they_stand(path: Path, runner: asyncio.Runner) -> None:
    """Every example in a docstring runs, given a pool, the table, a table of reports, and some work to do."""
    pool = runner.run(_prepare())
    sybil = Sybil(
        parsers=[CodeBlockParser("python", Evaluator(runner))], document_types={".py": PythonDocStringDocument}
    )
    document = sybil.parse(path)
    public = {name: getattr(asyncpg_lease, name) for name in asyncpg_lease.__all__}
    given = {"asyncio": asyncio, "asyncpg": asyncpg, "pool": pool, **dict.fromkeys(JOBS, _do_work), **public}
    document.namespace.update(given)
    try:
        assert evaluate(document) > 0
    finally:
        runner.run(close_pool(pool))


def test_slow_documents_are_there() -> None:
    """No document that was moved or dropped is called slow."""
    assert [name for name in SLOW if not (ROOT / name).is_file()] == []


def test_readme_has_the_test_command_in_one_line() -> None:
    """CI takes the test command from a marked block: one line, for people to copy."""
    block = re.search(r"<!-- the test command -->\n+```\w*\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    assert len(block[1].splitlines()) == 1


async def _prepare() -> Pool:
    pool = await asyncpg.create_pool(min_size=1, max_size=4)
    await asyncpg_lease.LeaseTable(pool).create()
    await pool.execute("CREATE TABLE report (body text)")
    return pool


async def _do_work(**_: object) -> None:
    await asyncio.sleep(0)
