"""What the floors above need of a table: its claims, renewals and settings in one place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakSet

from asyncpg_lease._claims import Claims
from asyncpg_lease._driver import Row, ask, ask_again
from asyncpg_lease._pool import Connections
from asyncpg_lease._renewals import Renewals
from asyncpg_lease._rows import LeaseInfo, info_row
from asyncpg_lease._statements import IDENTITY, TableName
from asyncpg_lease._tasks import start_timer
from asyncpg_lease.schema import explain, settle

if TYPE_CHECKING:
    import asyncpg

    from asyncpg_lease._driver import AnyConnection, Connection, Pool
    from asyncpg_lease._options import LeaseState
    from asyncpg_lease.events import Notifier

__all__ = ["Store"]

IDENTITY_LIMIT = 5.0
"""Seconds for the one statement that asks which database the table is in."""

# An alias, since the class below has a method of that name.
Infos: TypeAlias = list[LeaseInfo]


class Store:
    """One lease table on one pool.

    A task of it that is under way keeps it alive, by way of `explain`.
    """

    def __init__(self, pool: Pool, name: TableName, poll: float, notifier: Notifier) -> None:
        self.name = name
        self.poll = poll
        self.notifier = notifier
        self.connections: Connections = Connections(pool, self.explain)
        self.claims: Claims = Claims(self.connections, name)
        self.renewals: Renewals = Renewals(self.connections, name)
        self._identity: Row | None = None
        self._standing_back: dict[str, asyncio.TimerHandle] = {}
        self._others: WeakSet[asyncpg.Connection[Any]] = WeakSet()

    def __repr__(self) -> str:
        return f"<Store {self.name} on {self.connections.pool!r}>"

    async def get(self, key: str, limit: float) -> LeaseInfo | None:
        """Read what the table says of a key."""
        infos = await self._read(f"the reading of {key!r}", limit, "get", key)
        return infos[0] if infos else None

    async def list(
        self, least: str, end: str | None, state: LeaseState | None, most: int | None, limit: float
    ) -> Infos:
        """Read what the table says of a range of keys."""
        return await self._read("a list of leases", limit, "list", least, end, state, most and str(most))

    async def _read(self, what: str, limit: float, statement: Literal["get", "list"], *args: object) -> Infos:
        async def work(connection: Connection) -> Infos:
            await settle(connection, self.name)
            rows = await ask_again(connection, getattr(self.name.statements, statement), *args)
            return [info_row(row) for row in rows]

        return await self.connections.run(what, work, limit)

    def leads_to(self, connection: AnyConnection) -> bool:
        """Tell whether this connection is known to lead to the table's own database."""
        if getattr(getattr(connection, "_holder", None), "_pool", None) is self.connections.pool:
            return True
        return _inner(connection) in self._others

    def remember(self, connection: AnyConnection) -> None:
        """Take note that a connection that is not the pool's leads to the table's own database, as long as it lives."""
        self._others.add(_inner(connection))

    async def identity(self, *, anew: bool = False) -> Row:
        """Return which database the table is in, as identity.sql tells it; asked once, unless anew."""
        if self._identity is None or anew:

            async def work(connection: Connection) -> Row:
                return (await ask(connection, IDENTITY))[0]

            self._identity = await self.connections.run("which database this is", work, IDENTITY_LIMIT)
        return self._identity

    def let_others_first(self, key: str, shut_for: float = 0.0) -> None:
        """Have waiting calls that begin now stand back until others can have had the key: two polls after it opens.

        Or whoever was asked for it would have it again, since those who wait look once a poll.
        """
        delay = max(shut_for, 0.0) + 2 * self.poll
        if self.stands_back_for(key) < delay:
            if key in self._standing_back:
                self._standing_back[key].cancel()
            # It also keeps the store of a pool's default table alive until then.
            self._standing_back[key] = start_timer(delay, self._stand_again, key)

    def _stand_again(self, key: str) -> None:
        del self._standing_back[key]

    def stands_back_for(self, key: str) -> float:
        """Return for how many seconds a waiting call for the key is to let others go first."""
        timer = self._standing_back.get(key)
        return 0.0 if timer is None else max(timer.when() - asyncio.get_running_loop().time(), 0.0)

    def explain(self, error: BaseException) -> BaseException:
        """Return the driver's error in this library's words, where it has any."""
        return explain(error, self.name)


def _inner(connection: AnyConnection) -> asyncpg.Connection[Any]:
    """Return the driver's own connection: a pool hands out a proxy, another one each time."""
    own: Any = connection
    inner: asyncpg.Connection[Any] = getattr(own, "_con", own)
    return inner
