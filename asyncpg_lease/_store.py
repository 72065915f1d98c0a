"""What the floors above need of a table: its claims, renewals and settings in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncpg_lease._claims import Claims
from asyncpg_lease._pool import Connections
from asyncpg_lease._renewals import Renewals
from asyncpg_lease._statements import LeaseInfo, TableName, info_row
from asyncpg_lease.schema import explain

if TYPE_CHECKING:
    from asyncpg_lease._driver import Pool
    from asyncpg_lease.events import Notifier

__all__ = ["Store"]


class Store:
    """One lease table on one pool.

    A task of it that is under way keeps it alive, by way of `explain`: so the registry of default
    tables, which holds stores weakly, never makes a second one beside it.
    """

    def __init__(self, pool: Pool, name: TableName, poll: float, notifier: Notifier) -> None:
        self.name = name
        self.poll = poll
        self.notifier = notifier
        self.connections = Connections(pool, self._explain)
        self.claims = Claims(self.connections, name)
        self.renewals = Renewals(self.connections, name)

    def __repr__(self) -> str:
        return f"<Store {self.name} on {self.connections.pool!r}>"

    async def get(self, key: str, limit: float) -> LeaseInfo | None:
        """Read what the table says of a key."""
        rows = await self.connections.fetch(f"the reading of {key!r}", self.name.statements.get, key, limit=limit)
        return info_row(tuple(rows[0])) if rows else None

    def _explain(self, error: BaseException) -> BaseException:
        return explain(error, self.name)
