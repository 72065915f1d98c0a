"""The statements of sql/, bound to a table's name."""

from __future__ import annotations

import logging
import re
import sys
from functools import lru_cache
from pkgutil import get_data
from typing import TYPE_CHECKING, NamedTuple

from asyncpg_lease._driver import Statement, stamp_of, stamped

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["IDENTITY", "Statements", "TableName", "bind", "key_range", "quote_name"]

logger = logging.getLogger("asyncpg_lease")

_TABLE = re.compile(r"\blease\b")
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
_NAMES = (
    *("table", "claim", "renew", "release", "get", "list", "guard", "guard_first", "identity", "revoke"),
    *("floor_lay", "floor_wait", "floor_settle", "floor_raise", "prunable", "prune", "greatest", "lift", "lagging"),
)
_SURROGATES = range(0xD800, 0xE000)


def _read(name: str) -> str:
    text = get_data("asyncpg_lease", f"sql/{name}.sql")
    if text is None:
        msg = f"the installed package lacks sql/{name}.sql: install asyncpg-lease again"
        raise ImportError(msg)
    return _COMMENT.sub("", text.decode()).strip()


# At import, since a file must not be read inside an event loop.
_TEXTS = {name: _read(name) for name in _NAMES}

IDENTITY = stamped(_TEXTS["identity"])
"""The statement that tells which database a connection leads to; about no table."""


class Statements(NamedTuple):
    """One table's statements."""

    claim: Statement
    renew: Statement
    release: Statement
    get: Statement
    list: Statement
    guard: Statement
    guard_first: Statement
    revoke: Statement
    floor_lay: Statement
    floor_wait: Statement
    floor_settle: Statement
    floor_raise: Statement
    prunable: Statement
    prune: Statement
    greatest: Statement
    lift: Statement
    lagging: Statement

    @classmethod
    def bound_to(cls, table: str) -> Statements:
        """Bind every statement to a quoted table name."""
        stamps = {name: stamp_of(_TEXTS[name], table) for name in cls._fields}
        return cls(**{name: Statement(bind(name, table, stamp), stamp) for name, stamp in stamps.items()})


def quote_name(*parts: str) -> str:
    """Quote an identifier of one or more parts so that any name is safe."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)


@lru_cache(maxsize=256)
def bind(name: str, table: str, stamp: str = "stamp") -> str:
    """Return the statement of sql/<name>.sql for a quoted table name, without its comments, with its stamp."""
    # The stamp first, since a table may be named 'stamp', quotes included.
    text = _TEXTS[name].replace("'stamp'", f"'{stamp}'")
    # A function, since a name may hold what re would take for a group reference.
    return _TABLE.sub(lambda _: table, text)


class TableName:
    """The table's name, and its schema once that is known.

    An unqualified name is looked up in the search_path once, and qualified from then on: another connection's
    search_path must not lead to another table.
    """

    __slots__ = ("_on_found", "name", "schema", "statements")

    def __init__(self, name: str, schema: str | None, on_found: Callable[[str], None] | None = None) -> None:
        self._on_found = on_found
        self.name: str = name
        self.schema = schema
        self.statements: Statements = Statements.bound_to(self.quoted)

    def __str__(self) -> str:
        return self.quoted

    @property
    def quoted(self) -> str:
        """The name as SQL."""
        return quote_name(self.name) if self.schema is None else quote_name(self.schema, self.name)

    def resolve(self, schema: str) -> None:
        """Take note of the schema in which the table was found, unless that was known."""
        if self.schema is None:
            self.schema = schema
            self.statements = Statements.bound_to(self.quoted)
            logger.info("lease table %s was found by the search_path", self.quoted)
            if self._on_found is not None:
                self._on_found(schema)


def key_range(prefix: str) -> tuple[str, str | None]:
    """Return the least key with a prefix, and the key before which such keys end (None: nowhere).

    In the order of "C", that of the bytes, which for UTF-8 is that of the code points.
    """
    for end in range(len(prefix), 0, -1):
        following = ord(prefix[end - 1]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= sys.maxunicode:
            return prefix, prefix[: end - 1] + chr(following)
    return prefix, None
