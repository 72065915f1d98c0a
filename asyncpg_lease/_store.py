"""What the floors above need of a table: its claims, renewals and settings in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from asyncpg_lease._claims import Claims
from asyncpg_lease._driver import ask_again
from asyncpg_lease._pool import Connections
from asyncpg_lease._renewals import Renewals
from asyncpg_lease._statements import LeaseInfo, TableName, info_row
from asyncpg_lease.schema import explain, settle

if TYPE_CHECKING:
    from asyncpg_lease._driver import Connection, Pool
    from asyncpg_lease.events import Notifier

__all__ = ["Store"]

# An alias, since the class below has a method of that name.
Infos: TypeAlias = list[LeaseInfo]


class Store:
    """One lease table on one pool.

    A task of it that is under way keeps it alive, by way of `_explain`.
    """

    def __init__(self, pool: Pool, name: TableName, poll: float, notifier: Notifier) -> None:
        self.name = name
        self.poll = poll
        self.notifier = notifier
        self.connections: Connections = Connections(pool, self._explain)
        self.claims: Claims = Claims(self.connections, name)
        self.renewals: Renewals = Renewals(self.connections, name)

    def __repr__(self) -> str:
        return f"<Store {self.name} on {self.connections.pool!r}>"

    async def get(self, key: str, limit: float) -> LeaseInfo | None:
        """Read what the table says of a key."""
        infos = await self._read(f"the reading of {key!r}", limit, "get", key)
        return infos[0] if infos else None

    async def list(self, least: str, end: str | None, most: int | None, limit: float) -> Infos:
        """Read what the table says of a range of keys."""
        return await self._read("a list of leases", limit, "list", least, end, None if most is None else str(most))

    async def _read(self, what: str, limit: float, statement: Literal["get", "list"], *args: object) -> Infos:
        async def work(connection: Connection) -> Infos:
            await settle(connection, self.name)
            rows = await ask_again(connection, getattr(self.name.statements, statement), *args)
            return [info_row(row) for row in rows]

        return await self.connections.run(what, work, limit)

    def _explain(self, error: BaseException) -> BaseException:
        return explain(error, self.name)
