"""Guarding a transaction by a tenure: the check, and what its answers mean."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import asyncpg

from asyncpg_lease._driver import ask, ask_again
from asyncpg_lease._rows import guard_row, info_row, is_live
from asyncpg_lease._statements import IDENTITY
from asyncpg_lease._transaction import closing_unless
from asyncpg_lease.errors import LeaseError, LeaseSnapshotError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from asyncpg_lease._driver import AnyConnection
    from asyncpg_lease._store import Store
    from asyncpg_lease._tenure import Tenure

__all__ = [
    "Over",
    "check_connection",
    "check_database",
    "confirm",
    "guard",
    "guard_first",
]


class Over(NamedTuple):
    """A tenure that a check did not find live: the row's holder and fence, None where there is no row; was it revoked.

    Of a first statement's check they are not known, with a conflict only that the row changed while it ran.
    """

    holder: str | None
    fence: int | None
    revoked: bool = False
    conflict: asyncpg.SerializationError | None = None


def check_connection(connection: object, *, in_transaction: bool) -> None:
    """Refuse what cannot be guarded, before anything is sent.

    Raises:
        TypeError: it is no connection.
        RuntimeError: it is closed, of another event loop, or in the wrong state.
    """
    if not callable(getattr(connection, "is_in_transaction", None)):
        msg = (
            f"connection must be a connection, as from pool.acquire(), not {type(connection).__name__};"
            " for SQLAlchemy there is asyncpg_lease.contrib.sqlalchemy.guard()"
        )
        raise TypeError(msg)
    guarded: AnyConnection = connection  # type: ignore[assignment] # as a caller without a type checker would
    try:
        closed, in_one = guarded.is_closed(), guarded.is_in_transaction()
    except asyncpg.InterfaceError as error:
        msg = f"the connection cannot be used: {error}"
        raise RuntimeError(msg) from error
    if closed:
        msg = f"the connection {connection!r} is closed"
        raise RuntimeError(msg)
    loop = asyncio.get_running_loop()
    if getattr(connection, "_loop", loop) is not loop:
        msg = f"the connection {connection!r} belongs to another event loop"
        raise RuntimeError(msg)
    # Where its BEGIN was cut off the driver would take the next transaction for a savepoint, and commit nothing.
    begun = in_one or getattr(connection, "_top_xact", None) is not None
    if begun and not in_transaction:
        msg = (
            f"a transaction is open on {connection!r} already, and this one would be a savepoint of it:"
            " use another connection, or held.guard(connection) inside the open one"
        )
        raise RuntimeError(msg)
    if in_transaction and not in_one:
        msg = (
            f"no transaction is open on {connection!r}, and a guard ends with its transaction:"
            " open one, or use held.transaction(connection)"
        )
        raise RuntimeError(msg)


async def check_database(store: Store, tenure: Tenure, connection: AnyConnection) -> None:
    """Refuse a connection to another database than the lease's; asks the server once for each connection.

    Raises:
        LeaseError: it is another one.
        RuntimeError: its transaction has failed.
    """
    if store.leads_to(connection):
        return
    # First, since it may take its time, and in an open transaction the other one may be what takes the snapshot.
    expected = await store.identity()
    with _in_own_words(store, tenure), _bounded_question(connection):
        found = (await ask(connection, IDENTITY))[0]
    if found != expected:
        # The pool's own connections may lead elsewhere by now, after a failover to another server.
        expected = await store.identity(anew=True)
    if found != expected:
        (server, database), (other_server, other_database) = expected, found
        msg = (
            f"lease {tenure.key!r} of {tenure.holder!r} with fence {tenure.fence} is in database {database} of server"
            f" {server}, and {connection!r} leads to database {other_database} of server {other_server}: a guard"
            " works in the lease's own database alone; elsewhere write the fence and refuse a lower one"
        )
        raise LeaseError(msg)
    store.remember(connection)


async def guard_first(store: Store, tenure: Tenure, connection: AnyConnection, *, idle: int | None) -> Over | None:
    """Check the tenure as the open transaction's first statement; return None where it is live, its successor shut out.

    Anything else is to be confirmed after the transaction's end.

    Args:
        store: the lease's table.
        tenure: what must be live.
        connection: with the open transaction, in which nothing was sent yet.
        idle: milliseconds for which the transaction may be idle; None: what the session has.

    Raises:
        RuntimeError: the transaction is read-only.
        Exception: what the driver raised.
    """
    args = (tenure.key, tenure.holder, str(tenure.fence), None if idle is None else str(idle))
    try:
        with _in_own_words(store, tenure):
            live = is_live((await ask(connection, store.name.statements.guard_first, *args))[0])
    except asyncpg.SerializationError as error:
        return Over(None, None, conflict=error)
    return None if live else Over(None, None)


async def guard(store: Store, tenure: Tenure, connection: AnyConnection) -> Over | None:
    """Check the tenure inside a transaction; return None where it is live, and its successor shut out.

    Args:
        store: the lease's table.
        tenure: what must be live.
        connection: with the open transaction, whose snapshot may be an old one.

    Raises:
        LeaseSnapshotError: the transaction's snapshot is older than the lease's row.
        RuntimeError: the transaction is read-only, or has failed.
        Exception: what the driver raised.
    """
    args = (tenure.key, tenure.holder, str(tenure.fence))
    try:
        with _in_own_words(store, tenure):
            row = guard_row((await ask(connection, store.name.statements.guard, *args))[0])
            # A COMMIT that was cut off may have been carried out only now.
            check_connection(connection, in_transaction=True)
    except asyncpg.SerializationError as error:
        raise LeaseSnapshotError(tenure.key, tenure.holder, tenure.fence) from error
    if row.live:
        return None
    over = Over(row.holder, row.fence, row.revoked)
    if row.snapshot == "new":
        return await confirm(store, tenure, connection, over)
    if row.fence is None:
        # It may have been claimed for the first time since the snapshot.
        raise LeaseSnapshotError(tenure.key, tenure.holder, tenure.fence)
    return over


async def confirm(store: Store, tenure: Tenure, connection: AnyConnection, over: Over) -> Over:
    """Look, in a new snapshot, what has become of a tenure that was not found live; return what is in its row.

    The check's own look at the row is of before the lock was waited for. Even a first statement's snapshot is older
    than its execution: the driver has it parsed first, which takes the snapshot, a round trip earlier.

    Raises:
        SerializationError: it is live, and the check met a change of its row.
        LeaseSnapshotError: it is live, and the check saw the row as it was before.
    """
    with _bounded_question(connection):
        rows = await ask_again(connection, store.name.statements.get, tenure.key)
    if not rows:
        return Over(None, None)
    info = info_row(rows[0])
    if (info.holder, info.fence, info.state) != (tenure.holder, tenure.fence, "held"):
        return Over(info.holder, info.fence, info.revoked_at is not None)
    if over.conflict is not None:
        raise over.conflict
    raise LeaseSnapshotError(tenure.key, tenure.holder, tenure.fence)


def _bounded_question(connection: AnyConnection) -> AbstractContextManager[None]:
    """Close the connection where a question is cut off; not in the caller's own transaction.

    The rollback of that, on a closed connection, would come out in the place of a cancellation.
    """
    return nullcontext() if connection.is_in_transaction() else closing_unless(connection, asyncpg.PostgresError)


@contextmanager
def _in_own_words(store: Store, tenure: Tenure) -> Iterator[None]:
    """Say what is wrong with a transaction, or with the table, in this library's words where it has any."""
    try:
        yield
    except asyncpg.ReadOnlySQLTransactionError as error:
        msg = (
            f"lease {tenure.key!r}: the transaction is read-only, and a guard takes a lock:"
            " there is nothing to fence where nothing is written"
        )
        raise RuntimeError(msg) from error
    except asyncpg.InFailedSQLTransactionError as error:
        msg = f"lease {tenure.key!r}: the transaction has failed already, and can only be rolled back"
        raise RuntimeError(msg) from error
    except Exception as error:
        explained = store.explain(error)
        if explained is error:
            raise
        raise explained from error
