"""The lease table: creating it, verifying its shape, and saying what to run where it is not right."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import asyncpg

from asyncpg_lease._catalog import (
    CHECKS,
    COLUMNS,
    FIND,
    FIND_IN_PATH,
    FIRST_IN_PATH,
    INDEXES,
    LOCK,
    MARKED,
    NAMESPACE,
    TRAITS,
)
from asyncpg_lease._driver import Row, ask, is_mixed_up
from asyncpg_lease._statements import TableName, bind, quote_name
from asyncpg_lease.errors import LeaseTableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncpg_lease._driver import Connection

__all__ = ["create", "explain", "find", "settle", "verify"]

# A table of an older shape has one of these at least; an application's own with the same name hardly any.
_MARKS = ("holder", "fence", "expires_at")

# name: type, not null
_SHAPE = {
    "key": ('text COLLATE "C"', True),
    "holder": ("text", True),
    "fence": ("bigint", True),
    "acquired_at": ("timestamp with time zone", True),
    "expires_at": ("timestamp with time zone", True),
    "released_at": ("timestamp with time zone", False),
    "revoked_at": ("timestamp with time zone", False),
    "completed_tick": ("timestamp with time zone", False),
}

_CREATE_TRIES = 3
_MADE_MEANWHILE = (
    asyncpg.UniqueViolationError,
    asyncpg.DuplicateTableError,
    asyncpg.DuplicateSchemaError,
    asyncpg.DuplicateObjectError,
)

_OTHER_SHAPE = (
    asyncpg.UndefinedColumnError,
    asyncpg.UndefinedFunctionError,
    asyncpg.DatatypeMismatchError,
    asyncpg.WrongObjectTypeError,
)


async def find(connection: Connection, name: TableName) -> str | None:
    """Return the table's oid and settle its schema, or None where there is no such table."""
    if name.schema is None:
        rows = await ask(connection, FIND_IN_PATH, name.name)
    else:
        rows = await ask(connection, FIND, name.quoted)
    if not rows:
        return None
    oid: str
    oid, schema = rows[0]
    name.resolve(schema)
    # Another connection, with another search_path, may have resolved it meanwhile.
    return oid if name.schema == schema else await find(connection, name)


async def settle(connection: Connection, name: TableName) -> None:
    """Settle the schema of an unqualified name before a statement that cannot tell where it went."""
    if name.schema is None:
        await find(connection, name)


async def create(connection: Connection, name: TableName) -> None:
    """Create the table, and its schema where one was named, unless it is there.

    Any number of replicas may do so at once. Where the table exists this needs no right to create
    anything and takes no lock.

    Raises:
        LeaseTableError: no schema to create it in, no right to, or another table has its name.
    """
    if await _is_there(connection, name):
        return
    try:
        await _create_beside_migrations(connection, name)
    except asyncpg.InsufficientPrivilegeError as error:
        problem = f"{error}: have a role that may create it run {_ways_to_create(name)}"
        raise LeaseTableError(name.quoted, problem) from error


async def _is_there(connection: Connection, name: TableName) -> bool:
    oid = await find(connection, name)
    if oid is None:
        return False
    if not await ask(connection, MARKED, oid, ",".join(_MARKS)):
        raise _another(name)
    return True


async def _create_beside_migrations(connection: Connection, name: TableName) -> None:
    """Create it; a migration of the user's takes no lock of ours, and may make the schema or the table meanwhile."""
    for _ in range(_CREATE_TRIES - 1):
        with suppress(*_MADE_MEANWHILE):
            await _create(connection, name)
            return
    await _create(connection, name)


async def _create(connection: Connection, name: TableName) -> None:
    # READ COMMITTED, so that what a quicker replica committed while we waited for the lock is seen.
    async with connection.transaction(isolation="read_committed"):
        # IF NOT EXISTS alone lets two at once fail with 23505.
        await ask(connection, LOCK)
        if await _is_there(connection, name):
            return
        if name.schema is None:
            found = await ask(connection, FIRST_IN_PATH)
            if not found:
                problem = "no schema of the search_path exists, so there is none to create it in: pass schema="
                raise LeaseTableError(name.quoted, problem)
            schema = found[0][0]
        else:
            schema = name.schema
            if not await ask(connection, NAMESPACE, schema):
                await connection.execute(f"CREATE SCHEMA {quote_name(schema)}")
        await connection.execute(bind("table", quote_name(schema, name.name)))
    name.resolve(schema)


async def verify(connection: Connection, name: TableName) -> None:
    """Check that the table is there, has the shape that the statements need, and may be used.

    More columns are no harm, nor is a greater default of fence.

    Raises:
        LeaseTableError: with everything that is wrong, and what to run.
    """
    oid = await find(connection, name)
    if oid is None:
        raise _missing(name)
    table = name.quoted
    kind, persistence, user, allowed = (await ask(connection, TRAITS, oid))[0]
    columns = await ask(connection, COLUMNS, oid)
    if not any(column in _MARKS for column, *_ in columns):
        raise _another(name)
    problems = []
    if kind != "r":
        problems.append("it is no ordinary table")
    if persistence != "p":
        problems.append(f"it is emptied by a crash, and fences with it: ALTER TABLE {table} SET LOGGED")
    if allowed != "true":
        problems.append(f"no right to use it: GRANT SELECT, INSERT, UPDATE ON {table} TO {quote_name(user)}")
    shape = _wrong_columns(table, columns) + await _wrong_constraints(connection, table, oid)
    if shape:
        problems.append(f"it has another shape; run: {'; '.join(shape)}")
    if problems:
        raise LeaseTableError(table, "; ".join(problems))


async def _wrong_constraints(connection: Connection, table: str, oid: str) -> list[str]:
    problems = []
    indexes = await ask(connection, INDEXES, oid)
    for index, constraint, fits in indexes:
        if fits != "true":
            drop = (
                f"ALTER TABLE {table} DROP CONSTRAINT {quote_name(constraint)}" if constraint else f"DROP INDEX {index}"
            )
            problems.append(f"an index too many: {drop}")
    if not any(fits == "true" for _, _, fits in indexes):
        problems.append(f"ALTER TABLE {table} ADD PRIMARY KEY (key)")
    if not await ask(connection, CHECKS, oid):
        problems.append(
            f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS lease_validity,"
            " ADD CONSTRAINT lease_validity CHECK (expires_at > acquired_at)"
        )
    return problems


def _wrong_columns(table: str, rows: Sequence[Row]) -> list[str]:
    found = {name: (kind, not_null == "true", filled == "true") for name, kind, not_null, filled in rows}
    problems = []
    for name, (kind, not_null) in _SHAPE.items():
        if name not in found:
            problems.append(f"ALTER TABLE {table} ADD {name} {kind}{' NOT NULL' if not_null else ''}")
            continue
        has_kind, has_not_null, _ = found[name]
        if has_kind != kind:
            problems.append(f"{name} is {has_kind}: ALTER TABLE {table} ALTER {name} TYPE {kind}")
        if has_not_null != not_null:
            problems.append(f"ALTER TABLE {table} ALTER {name} {'SET' if not_null else 'DROP'} NOT NULL")
    for name, (_, not_null, filled) in found.items():
        if name not in _SHAPE and not_null and not filled:
            problems.append(f"a column that no claim fills: ALTER TABLE {table} ALTER {quote_name(name)} DROP NOT NULL")
    return problems


def explain(error: BaseException, name: TableName, rights: str = "SELECT, INSERT, UPDATE") -> BaseException:
    """Return what the driver's error means for the table, or the error itself where it is about something else.

    The rights are those that the call needs, all of them: whichever failed, it is one GRANT.
    """
    table = name.quoted
    translated: LeaseTableError
    if isinstance(error, (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)):
        translated = _missing(name)
    elif isinstance(error, _OTHER_SHAPE):
        translated = LeaseTableError(table, f"it has another shape ({error}): LeaseTable.verify() says what to alter")
    elif isinstance(error, asyncpg.InsufficientPrivilegeError):
        schema = "" if name.schema is None else f" and GRANT USAGE ON SCHEMA {quote_name(name.schema)}"
        translated = LeaseTableError(
            table, f"{error}: GRANT {rights} ON {table}{schema} TO the role that uses the pool"
        )
    elif is_mixed_up(error):
        # The driver adds a hint of many lines, which its own caller is to read.
        said, _, _ = str(error).partition("\n")
        translated = LeaseTableError(
            table,
            f"a prepared statement was missing, in the way, or mistaken for another ({said}), as happens behind a"
            " pooler of transactions such as PgBouncer: create the pool with"
            " asyncpg.create_pool(..., statement_cache_size=0)",
        )
    else:
        return error
    translated.__cause__ = error
    return translated


def _missing(name: TableName) -> LeaseTableError:
    schema, dot, table = name.name.rpartition(".")
    hint = f"; for table {table} in schema {schema} pass schema={schema!r}" if dot else ""
    return LeaseTableError(
        name.quoted,
        f"there is no such table, or this role may not see it: run {_ways_to_create(name)}{hint}",
    )


def _another(name: TableName) -> LeaseTableError:
    return LeaseTableError(
        name.quoted,
        'this is another table, not one of leases: use another name, such as LeaseTable(pool, "job_lease")',
    )


def _ways_to_create(name: TableName) -> str:
    arguments = ["pool"]
    if name.name != "lease":
        arguments.append(repr(name.name))
    if name.schema is not None:
        arguments.append(f"schema={name.schema!r}")
    call = f"await LeaseTable({', '.join(arguments)}).create()"
    return f"`{call}` once at start-up, or asyncpg_lease/sql/table.sql in a migration"
