"""Transactions that a tenure guards."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from asyncpg_lease._guard import check_connection, check_database, confirm, guard, guard_first
from asyncpg_lease._transaction import check_isolation, fold_idle_timeout, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from asyncpg_lease._driver import AnyConnection
    from asyncpg_lease._holding import Holding
    from asyncpg_lease._transaction import IdleTimeout, Isolation

__all__ = ["guard_open", "guarded_transaction"]


async def guard_open(holding: Holding, connection: AnyConnection) -> None:
    """Check the tenure inside the connection's open transaction, and keep its successor out until that ends."""
    holding.check_usable()
    tenure = holding.claim.tenure
    check_connection(connection, in_transaction=True)
    await check_database(holding.store, tenure, connection)
    over = await guard(holding.store, tenure, connection)
    if over is not None:
        holding.raise_over(over)
    holding.check_usable()


@asynccontextmanager
async def guarded_transaction(
    holding: Holding, connection: AnyConnection, isolation: Isolation | None, idle_timeout: IdleTimeout
) -> AsyncIterator[None]:
    """Open a transaction whose first statement checks the tenure, and end it after the body."""
    holding.check_usable()
    check_isolation(isolation)
    idle = fold_idle_timeout(idle_timeout, holding.options.ttl)
    check_connection(connection, in_transaction=False)
    store, tenure = holding.store, holding.claim.tenure
    await check_database(store, tenure, connection)
    async with opened(connection, isolation, idle):
        over = await guard_first(store, tenure, connection, idle=idle)
        if over is None:
            # A lock may have been waited for until the lease was given up or left.
            holding.check_usable()
            yield
    # Only now: a loss may cancel this very task, and the end of the transaction is to be waited for.
    if over is not None:
        holding.raise_over(await confirm(store, tenure, connection, over))
