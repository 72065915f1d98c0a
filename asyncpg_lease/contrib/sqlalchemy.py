"""Guarding SQLAlchemy's transactions: those of an AsyncSession or AsyncConnection on asyncpg."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

if TYPE_CHECKING:
    from asyncpg_lease import Lease

__all__ = ["guard"]

Target: TypeAlias = AsyncSession | async_scoped_session[AsyncSession] | AsyncConnection


async def guard(held: Lease, target: Target) -> None:
    """Check inside the target's transaction that the tenure is live, and keep its successor out until that ends.

    What `Lease.guard` does, for SQLAlchemy: where no transaction is open it begins the one that SQLAlchemy would begin
    with the target's next statement. A savepoint, ``begin_nested()``, that is rolled back takes away a guard made
    inside it.

    Call it first in a transaction: under REPEATABLE READ and SERIALIZABLE the first statement settles what the
    transaction sees, and what was renewed since cannot be judged. What the session has changed and not flushed yet
    is flushed later, so that it is guarded too.

    Args:
        held: the lease.
        target: a session, a scoped one, or a connection, to the lease's own database. Of a session with several
            binds pass the connection: ``await session.connection(bind_arguments=...)``.

    Raises:
        LeaseLostError: the tenure is over: roll back; the body of an entered lease is cancelled or flagged as well.
        LeaseSnapshotError: the transaction's snapshot is older than the lease's row; says nothing of a loss.
        LeaseError: the target leads to another database than the lease's.
        RuntimeError: the target is in autocommit, or its transaction is read-only; or as `Lease.guard`.
        TypeError: the target is none of the three, or not on asyncpg.
        Exception: what SQLAlchemy or the driver raised.

    Example:
        ```python
        async with lease(pool, "nightly-report") as held:
            async with AsyncSession(engine) as session, session.begin():
                await guard(held, session)
                session.add(Report(day=today, last_fence=held.fence))
        ```

    .. versionadded:: 0.1
    """
    _check_target(target)
    connection = target if isinstance(target, AsyncConnection) else await target.connection()
    driver = connection.dialect.driver
    if driver != "asyncpg":
        msg = f"a guard needs an engine on asyncpg, postgresql+asyncpg://, and this one is on {driver}"
        raise TypeError(msg)
    # SQLAlchemy begins with the first statement that it is given. SHOW takes no snapshot: the guard's is the first.
    await connection.exec_driver_sql("SHOW transaction_isolation")
    inner = (await connection.get_raw_connection()).driver_connection
    assert isinstance(inner, asyncpg.Connection)  # noqa: S101 - the dialect is asyncpg's
    if not inner.is_in_transaction():
        msg = (
            "the engine or connection is in AUTOCOMMIT, where a guard would end with its own statement:"
            " give it a transaction, as with execution_options(isolation_level='READ COMMITTED')"
        )
        raise RuntimeError(msg)
    await held.guard(inner)


def _check_target(target: object) -> None:
    if not isinstance(target, (AsyncSession, async_scoped_session, AsyncConnection)):
        msg = f"target must be an AsyncSession or an AsyncConnection, not {type(target).__name__}"
        raise TypeError(msg)
