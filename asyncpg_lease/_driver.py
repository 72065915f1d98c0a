"""The driver's types and errors: what they say of a statement, and when to run it again."""

from __future__ import annotations

import asyncio
import random
import ssl
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeVar

    Connection: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    AnyConnection: TypeAlias = asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]
    # A pool of one's own record class is no pool of plain records to a type checker. Either is welcome, and what the
    # rows are is nobody's business here: public signatures name it, nothing below them does.
    RecordT = TypeVar("RecordT", bound=asyncpg.Record)
    Pool: TypeAlias = asyncpg.Pool[Any]

__all__ = [
    "RETRIED",
    "Fetcher",
    "Row",
    "Statement",
    "WrongAnswerError",
    "ask",
    "ask_again",
    "is_mixed_up",
    "is_passing",
    "is_usable",
    "may_have_been_done",
    "stamp_of",
    "stamped",
    "terminate",
    "unreadable",
]

Row: TypeAlias = tuple[Any, ...]

SERIALIZATION_TRIES = 20
RETRIED = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
"""What a default isolation above READ COMMITTED makes of somebody else's commit."""


def may_have_been_done(error: BaseException) -> bool:
    """Tell whether the server may have carried out the statement that ended with this error.

    Where the server itself answered with an error it has rolled the statement back. Everything else,
    a broken link above all, says nothing of what became of it.
    """
    answered = isinstance(error, asyncpg.PostgresError) and not isinstance(error, asyncpg.PostgresConnectionError)
    return not answered


class Fetcher(Protocol):
    """What runs a statement; asyncpg's connections do."""

    async def fetch(
        self, query: str, /, *args: object, record_class: type[asyncpg.Record]
    ) -> Sequence[Iterable[object]]:
        """Run one statement and return its rows."""


class Statement(NamedTuple):
    """A statement, and the stamp that it takes as its last argument and puts at the end of each row of its answer."""

    sql: str
    stamp: str


class WrongAnswerError(Exception):
    """The server carried out another statement than was meant."""


def stamp_of(*parts: str) -> str:
    """Return a stamp that only a statement of these parts has."""
    return sha256("\0".join(parts).encode()).hexdigest()[:16]


def stamped(question: str, *, arguments: int = 0) -> Statement:
    """Make a statement of a question that changes nothing, has no varying parts, and has no null in its first column.

    Args:
        question: the SELECT.
        arguments: how many it takes.
    """
    stamp = stamp_of(question)
    own = f"(VALUES ('{stamp}'::text)) AS own (stamp)"
    join = f"LEFT JOIN ({question}) AS answer ON ${arguments + 1}::text = own.stamp"
    return Statement(f"SELECT answer.*, own.stamp FROM {own} {join}", stamp)  # noqa: S608 - of our own making


async def ask(connection: Fetcher, statement: Statement, *args: object) -> list[Row]:
    """Run a statement and return its rows, without the stamp.

    The driver prepares statements under names that it counts, so every process has the same ones. A pooler that
    gives a transaction to whichever server link is free, and knows nothing of them, can have the server run what
    another process prepared under that name: a list of keys in place of a claim, or the claim of another table.
    Its answer may look like a grant, and would be one, but for the stamp at the end of each row. As an argument the
    stamp keeps a statement of ours that runs in the place of another from doing anything. Each answers one row at
    least, of nulls where there is nothing to tell, so that another's silence is not believed either.

    Raises:
        WrongAnswerError: the answer is another statement's.
        TypeError: codecs of the pool's own for text have made something else of it.
    """
    msg = "the answer is that of another statement, or the connection's class or codecs made something else of it"
    try:
        # Rows of asyncpg's own, since one of the pool's record class may be no sequence at all.
        found = await connection.fetch(statement.sql, *args, statement.stamp, record_class=asyncpg.Record)
        rows = [tuple(row) for row in found]
    except (AssertionError, BufferError) as error:
        # What the driver makes of a column of another type.
        raise WrongAnswerError(msg) from error
    if not rows:
        raise WrongAnswerError(msg)
    for row in rows:
        stamp = row[-1] if row else None
        if stamp != statement.stamp:
            if row and (not isinstance(stamp, (str, int, float)) or str(stamp).lower() == statement.stamp):
                raise unreadable(stamp)
            raise WrongAnswerError(msg)
    # Where there is nothing to tell it comes in one row of nulls.
    return [row[:-1] for row in rows if row[0] is not None]


def unreadable(value: object) -> TypeError:
    """Return the error of an answer of which the pool's codecs have made something else."""
    msg = (
        f"a statement's answer came as {value!r}: the pool's own codecs for text, int8 or float8 must return str and"
        " numbers; leave those types alone, or give leases a pool of their own"
    )
    return TypeError(msg)


def is_mixed_up(error: BaseException) -> bool:
    """Tell whether the error means that the server lacks, or mistakes, a statement that the driver prepared."""
    if isinstance(error, asyncpg.ProtocolViolationError):
        # Poolers have the same code for errors of their own, which name no function of the server's.
        return error.server_source_function == "exec_bind_message"
    return isinstance(
        error,
        (
            WrongAnswerError,
            asyncpg.InvalidSQLStatementNameError,
            asyncpg.DuplicatePreparedStatementError,
            # What we send always fits our own parameters, and what comes back their columns.
            asyncpg.InvalidBinaryRepresentationError,
            asyncpg.CharacterNotInRepertoireError,
            asyncpg.ProtocolError,
        ),
    )


async def ask_again(connection: Fetcher, statement: Statement, *args: object) -> list[Row]:
    """Run a statement, again where somebody else's commit made it fail.

    Under READ COMMITTED none of ours does; a default isolation above it lets every contended one.

    Raises:
        SerializationError: still so after many tries.
        DeadlockDetectedError: the same.
        WrongAnswerError: as `ask`.
    """
    for attempt in range(SERIALIZATION_TRIES):
        try:
            return await ask(connection, statement, *args)
        except RETRIED:
            await asyncio.sleep(random.uniform(0.0, 0.002) * attempt)  # noqa: S311 - jitter
    return await ask(connection, statement, *args)


def is_usable(connection: AnyConnection) -> bool:
    """Tell whether a connection in hand is open still; a pool takes one that was closed out of our hands."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


def terminate(connection: AnyConnection) -> None:
    """Close a connection at once, which ends the statement that is under way on it; its pool takes it back."""
    # A proxy whose pool has taken it back already refuses.
    with suppress(asyncpg.InterfaceError):
        connection.terminate()


def is_passing(error: BaseException) -> bool:
    """Tell whether the error may be gone at a later try: a lost link, a restart, a failover, no answer.

    A certificate that nobody trusted vouches for stays what it is, as a wrong password does.
    """
    return not isinstance(error, ssl.SSLCertVerificationError) and isinstance(
        error,
        (
            OSError,  # TimeoutError is one
            asyncpg.PostgresConnectionError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
            asyncpg.InsufficientResourcesError,
            asyncpg.OperatorInterventionError,
            asyncpg.ReadOnlySQLTransactionError,
            asyncpg.LockNotAvailableError,
            *RETRIED,
        ),
    )
