"""A transaction of the caller's connection, and its end: committed, rolled back, or closed with the connection."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import anyio
import asyncpg

from asyncpg_lease._driver import is_usable, terminate
from asyncpg_lease._options import Duration, fold_duration
from asyncpg_lease._tasks import CANCELLED_LIMIT
from asyncpg_lease._unwinding import time_to_unwind
from asyncpg_lease._words import describe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from asyncpg_lease._driver import AnyConnection

__all__ = ["IdleTimeout", "Isolation", "check_isolation", "closing_unless", "fold_idle_timeout", "opened"]

IdleTimeout: TypeAlias = Duration | Literal["ttl"] | None
"""Seconds or a timedelta; ``"ttl"``: the lease's; None: what the session has."""

Isolation: TypeAlias = Literal["read_committed", "repeatable_read", "serializable"]
"""An isolation level in asyncpg's words."""

MIN_IDLE = 0.001
MAX_IDLE = (2**31 - 1) / 1000
"""What PostgreSQL's setting, milliseconds in 32 bits, can hold."""

ROLLBACK_LIMIT = 5.0
"""Seconds for a rollback; past that the connection is closed instead, and the server rolls back by itself."""


def check_isolation(isolation: object) -> None:
    """Refuse an isolation level that is none of those.

    Raises:
        ValueError: it is none.
    """
    levels = get_args(Isolation)
    if isolation is not None and isolation not in levels:
        msg = f"isolation must be None or one of {', '.join(map(repr, levels))}, not {isolation!r}"
        raise ValueError(msg)


def fold_idle_timeout(value: object, ttl: float) -> int | None:
    """Return the milliseconds, None for what the session has.

    Raises:
        TypeError: it is neither a duration, "ttl" nor None.
        ValueError: it is out of range.
    """
    if value is None:
        return None
    if value == "ttl":
        return max(1, round(1000 * min(ttl, MAX_IDLE)))
    return round(1000 * fold_duration("idle_timeout", value, MIN_IDLE, MAX_IDLE))


@asynccontextmanager
async def opened(connection: AnyConnection, isolation: Isolation | None, idle: int | None) -> AsyncIterator[None]:
    """Open a transaction; commit it, or roll it back and let the body's own exception out.

    The driver's own block lets out the error of a rollback that failed in its place: a loss that has come while the
    server ended the session would be hidden by a closed connection. And it leaves a connection whose BEGIN or COMMIT
    was cut off as it is: the next transaction would be a savepoint of one that nobody commits, or never end.

    Args:
        connection: without an open transaction.
        isolation: None: the session's default.
        idle: milliseconds after which the server ends it; None: what the session has.

    Raises:
        RuntimeError: the body has ended the transaction itself.
        ConnectionError: the connection was closed before the body's end.
    """
    transaction = connection.transaction(isolation=isolation)
    with closing_unless(connection, asyncpg.InterfaceError):
        await transaction.start()
    try:
        yield
        if is_usable(connection) and not connection.is_in_transaction():
            msg = (
                "the body has ended the transaction itself: what it wrote after that was not guarded; leave the end to"
                " the block, and raise to roll back"
            )
            raise RuntimeError(msg)  # noqa: TRY301 - what is left of it is to be undone
    except BaseException as error:
        if not is_usable(connection):
            error.add_note(_closed_text(idle))
            raise
        # On a frozen link it would never end, and a transaction that stays open keeps the key shut. Nor does it, with
        # asyncpg before 0.32, where the session has ended when a statement was being cancelled: closing would not help.
        limit = CANCELLED_LIMIT if isinstance(error, asyncio.CancelledError) else ROLLBACK_LIMIT
        if (left := time_to_unwind()) is not None:
            # The other half of the grace is for the body's own clean-up.
            limit = min(limit, left / 2)
        try:
            with anyio.fail_after(limit, shield=True):
                await transaction.rollback()
        except BaseException as failure:
            terminate(connection)
            if not isinstance(failure, Exception):
                raise
            error.add_note(f"the rollback failed, and the connection is closed: {describe(failure)}")
        raise
    if not is_usable(connection):
        raise ConnectionError(_closed_text(idle))
    with closing_unless(connection, asyncpg.PostgresError):
        await transaction.commit()


def _closed_text(idle: int | None) -> str:
    limit = "idle_in_transaction_session_timeout" if idle is None else f"its idle_timeout, {idle / 1000:.3f} s here"
    return (
        "the connection was closed inside the block, and nothing was written: by the body, by a lost link, or by the"
        f" server, which ends a transaction that is idle between two statements for longer than {limit}"
    )


@contextmanager
def closing_unless(connection: AnyConnection, clear: type[Exception]) -> Iterator[None]:
    """Close the connection where a statement was cut off, which leaves its outcome unknown; a clear error does not.

    On a frozen link a pool would wait for the answer to such a statement, without end, before it takes it back.
    """
    try:
        yield
    except clear:
        raise
    except BaseException:
        terminate(connection)
        raise
