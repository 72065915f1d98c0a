"""The driver's types and errors: what they say of a statement, and when to run it again."""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import TYPE_CHECKING

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeAlias, TypeVar

    Connection: TypeAlias = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]
    # A pool of one's own record class is no pool of plain records to a type checker. Either is welcome, and what the
    # rows are is nobody's business here: public signatures name it, nothing below them does.
    RecordT = TypeVar("RecordT", bound=asyncpg.Record)
    Pool: TypeAlias = asyncpg.Pool[Any]

__all__ = ["RETRIED", "fetch", "fetch_again", "is_passing", "is_usable", "may_have_been_done", "terminate"]

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


async def fetch(connection: Connection, sql: str, *args: object) -> Sequence[asyncpg.Record]:
    """Run a statement; its rows are asyncpg's own, since one of the pool's record class may be no sequence at all."""
    return await connection.fetch(sql, *args, record_class=asyncpg.Record)


async def fetch_again(connection: Connection, sql: str, *args: object) -> Sequence[asyncpg.Record]:
    """Run a statement, again where somebody else's commit made it fail.

    Under READ COMMITTED none of ours does; a default isolation above it lets every contended one.

    Raises:
        SerializationError: still so after many tries.
        DeadlockDetectedError: the same.
    """
    for attempt in range(SERIALIZATION_TRIES):
        try:
            return await fetch(connection, sql, *args)
        except RETRIED:
            await asyncio.sleep(random.uniform(0.0, 0.002) * attempt)  # noqa: S311 - jitter
    return await fetch(connection, sql, *args)


def is_usable(connection: Connection) -> bool:
    """Tell whether a connection in hand is open still; a pool takes one that was closed out of our hands."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


def terminate(connection: Connection) -> None:
    """Close a connection at once, which ends the statement that is under way on it."""
    if is_usable(connection):
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
