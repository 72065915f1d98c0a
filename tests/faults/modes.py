"""The tables of docs/explanation/failure-modes.md, and what their faults are made on."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from asyncpg_lease import LeaseTable
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel
from tests.support.typing import Pool

KEY = "mode"

SLACK = 0.1
"""Seconds of moved time by which a timer may be late; what a busy machine takes is not counted."""

_OF_EVERY_LEASE = {"INFO lease acquired", "INFO lease released"}
_DOCUMENT = Path(__file__).parents[2] / "docs" / "explanation" / "failure-modes.md"


class Mode(NamedTuple):
    """A row: what is seen of a fault and when; the log's records; and those that are not always there."""

    seen: str
    when: str
    logged: frozenset[str]
    perhaps: frozenset[str]


def modes(title: str) -> dict[str, Mode]:
    """Read the table under a heading, by its faults."""
    section = _DOCUMENT.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    found = {}
    for fault, seen, when, said in rows[2:]:
        records = [record for record in said.split("; ") if record]
        perhaps = frozenset(record.removeprefix("perhaps ") for record in records if record.startswith("perhaps "))
        logged = frozenset(record for record in records if not record.startswith("perhaps "))
        found[fault] = Mode(seen, when, logged, perhaps)
    return found


class Scene(NamedTuple):
    """A table, on a pool behind a proxy, an administrator's connection, and what moves time."""

    pool: Pool
    table: LeaseTable
    proxy: Proxy
    observe: Observer
    travel: Travel


Fault = Callable[[Scene], AbstractAsyncContextManager[object]]


class Faults(dict[str, Fault]):
    """Faults under their words in the document, which are their docstrings; each is there until its context is left."""

    def make(self, function: Callable[[Scene], AsyncIterator[None]]) -> Callable[[Scene], AsyncIterator[None]]:
        """Add a generator function (a decorator)."""
        words = (function.__doc__ or "").removesuffix(".")
        self[words[:1].lower() + words[1:]] = asynccontextmanager(function)
        return function


class Logged(logging.Handler):
    """Keeps, of each record from INFO on, its level and the beginning of its template, up to its first colon."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record."""
        self.records.append(f"{record.levelname} {str(record.msg).partition(':')[0]}")

    def difference(self, mode: Mode) -> tuple[set[str], set[str]]:
        """Return what was logged that the document does not have, and what it has that was not logged."""
        seen = {record for record in self.records if "by the search_path" not in record}
        return seen - mode.logged - mode.perhaps - _OF_EVERY_LEASE, set(mode.logged) - seen


@asynccontextmanager
async def logging_kept() -> AsyncIterator[Logged]:
    """Keep the library's log for as long as the block lasts."""
    logger, handler = logging.getLogger("asyncpg_lease"), Logged()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
