"""LeaseTable: the verbs on the pool, and the one place where a driver's error becomes ours."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

import asyncpg

from asyncpg_lease import _floor
from asyncpg_lease import schema as _schema
from asyncpg_lease._options import (
    Duration,
    LeaseState,
    check_advance,
    check_fence,
    check_flag,
    check_limit,
    check_name,
    check_prefix,
    check_state,
    check_text,
    fold_duration,
)
from asyncpg_lease._revocation import Revocation, revoke
from asyncpg_lease._rows import LeaseInfo
from asyncpg_lease._statements import TableName, key_range
from asyncpg_lease._store import Store
from asyncpg_lease.events import Notifier, Observers, fold_observers

if TYPE_CHECKING:
    from asyncpg_lease._driver import Connection, Pool, RecordT
    from asyncpg_lease._floor import Pruned

__all__ = ["LeaseTable", "store_of"]

DEFAULT_NAME = "lease"
DEFAULT_POLL = 1.0

QUESTION_LIMIT = 30.0
"""Seconds that get, leases, create and verify may take."""

MAX_AGE = 100 * 365 * 86400.0
"""Seconds, a hundred years: the greatest age that prune takes."""

OBSERVERS_LIMIT = 1.0
"""Seconds for which `aclose` waits for observers."""


class LeaseTable:
    """A table of leases, used through an asyncpg pool.

    Makes no task and no statement until it is used. It holds no connection between statements, so the
    pool may be as small as one connection. Belongs to the pool's event loop.

    Args:
        pool: the asyncpg pool.
        name: the table's name, 1 to 63 UTF-8 bytes; quoted, so any name is safe.
        schema: its schema; None: the first in the search_path that has it, resolved once by the first
            statement and kept from then on.
        poll: seconds between two tries of a waiting acquire, 0.01 to 3600, shortened at random.
        observer: called with every event of the table's leases, or a list or tuple of such; in a thread, see
            `asyncpg_lease.events.Observer`.

    Raises:
        TypeError: the pool is none, above all where it is a single connection; or an observer is not callable.
        ValueError: a name or `poll` out of its range.

    Example:
        ```python
        table = LeaseTable(pool, "lease", schema="jobs")
        await table.create()
        async with lease(table, "nightly-report") as held: ...
        ```

    .. versionadded:: 0.1
    """

    def __init__(
        self,
        pool: asyncpg.Pool[RecordT],
        name: str = DEFAULT_NAME,
        *,
        schema: str | None = None,
        poll: Duration = DEFAULT_POLL,
        observer: Observers | None = None,
    ) -> None:
        _check_pool(pool)
        notifier = Notifier(*fold_observers(observer))
        table = TableName(check_name("name", name), None if schema is None else check_name("schema", schema))
        self._store = Store(pool, table, fold_duration("poll", poll, 0.01, 3600.0), notifier)

    def __repr__(self) -> str:
        """Name the table and its pool."""
        return f"<LeaseTable {self.name} on {self._store.connections.pool!r}>"

    @property
    def name(self) -> str:
        """The table's name as SQL; with its schema as soon as that is known."""
        return self._store.name.quoted

    async def create(self) -> None:
        """Create the table, and its schema where one was named, unless it is there.

        All replicas may do so at their start, at once. Where it exists no right to create is needed.

        Raises:
            LeaseTableError: no right to create it, no schema to create it in, or another table has its name.
        """

        async def work(connection: Connection) -> None:
            await _schema.create(connection, self._store.name)

        await self._store.connections.run("create()", work, QUESTION_LIMIT)

    async def verify(self) -> None:
        """Check that the table exists, has the right shape, and may be used by this role.

        Raises:
            LeaseTableError: with all that is wrong, and the statements that mend it.
        """

        async def work(connection: Connection) -> None:
            await _schema.verify(connection, self._store.name)

        await self._store.connections.run("verify()", work, QUESTION_LIMIT)

    async def get(self, key: str) -> LeaseInfo | None:
        """Read what the table says of a key; None where it was never claimed.

        What it says may be over by the time it is read: it is for people and dashboards. No decision to
        work may be based on it.

        Args:
            key: 1 to 1,024 UTF-8 bytes without NUL.

        Raises:
            TypeError, ValueError: the key cannot be one.
            LeaseTableError: there is no such table, or no right to read it.
        """
        check_text("key", key)
        return await self._store.get(key, QUESTION_LIMIT)

    async def leases(
        self, prefix: str = "", *, state: LeaseState | None = None, limit: int | None = None
    ) -> list[LeaseInfo]:
        """List keys in the order of their bytes. `str()` of each is one readable line.

        Args:
            prefix: only keys that begin with it; found by the primary key's index.
            state: only keys that are ``held``, ``resting`` or ``free`` by the server's clock; None for all. The other
                keys of the prefix are read too.
            limit: at most so many; None for all.

        Raises:
            TypeError, ValueError: the prefix or the state cannot be one, or the limit is below 1.
            LeaseTableError: there is no such table, or no right to read it.
        """
        least, end = key_range(check_prefix("prefix", prefix))
        most = check_limit(limit)
        return await self._store.list(least, end, check_state(state), most, QUESTION_LIMIT)

    async def revoke(self, key: str, *, fence: int | None = None, force: bool = False) -> Revocation:
        """Have a key given up, so that another replica can have it; without two working at once.

        The holder learns of it by its next renewal, within its `heartbeat` and a twentieth of its ttl: its body is
        cancelled, or flagged, and renewals go on until it has ended, so that nobody starts before that. Then the lease
        is released, and this replica lets others go first. A body that has not ended after the lease's `drain` is an
        error in its log, and the lease is given up and runs out. Where several handles share the tenure, by an explicit
        holder, the one that began it releases it, whether the others have ended or not; nobody joins it any more.

        By force the row runs out at once, resting or not, and whoever waits starts. The body that still runs finds
        out by its next renewal, at the latest when its trust ends: until then two may work, unless what they write is
        fenced. An open `Lease.transaction` still keeps the successor out until it ends.

        Args:
            key: 1 to 1,024 UTF-8 bytes without NUL.
            fence: only the tenure with this fence, as the operator saw it; None: whichever has the key now.
            force: whether to end the tenure at once.

        Returns:
            What was done, or why nothing was: a key that is free, resting, unknown, revoked already, or in the
            hands of another tenure is no error.

        Raises:
            TypeError, ValueError: the key or the fence cannot be one.
            LeaseTableError: there is no such table, or no right to change it.
            TimeoutError: another session has the row locked, for 10 s, and nothing was changed; or no connection or no
                answer within 30 s, after which, as after a cancellation, it may have been done.

        Example:
            ```python
            table = LeaseTable(pool)
            info = await table.get("nightly-report")
            if info is not None and info.state == "held":
                print(await table.revoke("nightly-report", fence=info.fence))
            ```
        """
        check_text("key", key)
        check_fence(fence)
        check_flag("force", force)
        return await revoke(self._store, key, fence, force=force, limit=QUESTION_LIMIT)

    async def prune(self, older_than: Duration) -> Pruned:
        """Delete the rows of keys that have been free for long, without a fence ever falling.

        A key that is claimed again starts above the greatest fence that was ever pruned: the reserved row keeps
        it. Nothing is deleted that is held, that rests under its min_hold, that a guarded transaction or a
        claim has locked, or that has a completed_tick. Locks no table and holds up no renewal and no claim of a key
        that has a row. It goes in batches, each a statement of its own, so it may be cancelled, may fail at any point,
        and may run beside other prunes: what it has not deleted the next one does.

        The first one that finds something also waits, at most 30 s, for the transactions of this database that began
        before it and may be claims.

        Args:
            older_than: seconds or a timedelta since a row ran out or was released, 0 to 100 years.

        Returns:
            How many rows were deleted, how many could not be, and the floor.

        Raises:
            TypeError, ValueError: `older_than` is no duration or out of its range.
            LeaseTableError: there is no such table, or no right to use it; this alone needs DELETE, also where
                there is nothing to delete.
            TimeoutError: no connection or no answer in 30 s; or, the first time, the message names the server processes
                whose transactions go on. Nothing is lost: run it again.

        .. versionadded:: 0.1
        """
        return await _floor.prune(self._store, fold_duration("older_than", older_than, 0.0, MAX_AGE))

    async def advance_fences(self, by: int) -> int:
        """Lift every fence past those that were handed out and lost, after a failover or a restore.

        The fence of each row and the floor become the same: the greatest of them all, plus `by`. Tenures that are live
        are over by that: their next renewal finds another fence, their bodies are stopped, and their keys stay shut
        until they would have run out, so that nobody starts beside them, not even the same explicit holder. `get()` and
        `leases()` show such a key as held, with `revoked_at`; `revoke(key, force=True)` opens it at once. A guarded
        transaction is waited for, however long it takes; a warning says so. Until this has returned, a fence may still
        be handed out a second time. Where it was cancelled or has failed, run it again.

        Args:
            by: more than the number of acquisitions, of all keys together, that may have been lost, plus the `by` of
                any advance_fences() among what was lost; 1 to 2**40. Too much does no harm.

        Returns:
            The fence that all rows and the floor have now, which no tenure has; every new tenure has a greater one.

        Raises:
            TypeError, ValueError: `by` is no int or out of its range, or fences would come to 2**62.
            LeaseTableError: there is no such table, or no right to use it.
            TimeoutError: as for `prune`.

        .. versionadded:: 0.1
        """
        return await _floor.advance_fences(self._store, check_advance(by))

    async def aclose(self) -> None:
        """Wait for the claims, releases and give-backs that are under way, and a second at most for observers.

        Each is bounded, and none is begun again after a failure from now on. Leases that are held are
        not touched: leave their blocks first. The pool stays open; close it after this.
        """
        await self._store.claims.aclose()
        await self._store.connections.tasks.wait()
        await self._store.notifier.settle(OBSERVERS_LIMIT)


# By identity, since asyncpg's Pool takes no weak reference; a store keeps its pool, so no other pool can
# have the same identity while the entry is there.
_stores: WeakValueDictionary[int, Store] = WeakValueDictionary()

# Where the default table of a pool was found, for as long as the pool lives: its queue takes weak references.
_found: WeakKeyDictionary[object, str] = WeakKeyDictionary()


def store_of(target: asyncpg.Pool[RecordT] | LeaseTable) -> Store:
    """Return the store of a table, or that of the pool's default table: one per pool.

    It lives as long as a lease, a claim or a hand-back of it.

    Raises:
        TypeError: the target is neither.
    """
    if isinstance(target, LeaseTable):
        return target._store  # noqa: SLF001 - this module's own
    store = _stores.get(id(target))
    if store is None:
        _check_pool(target)
        store = _stores[id(target)] = Store(target, _default_name(target), DEFAULT_POLL, Notifier())
    return store


def _default_name(pool: Pool) -> TableName:
    # Private, so it may be missing: the table is looked up anew then, whenever nothing of the last store lives.
    queue = getattr(pool, "_queue", None)
    if queue is None:
        return TableName(DEFAULT_NAME, None)
    return TableName(DEFAULT_NAME, _found.get(queue), on_found=partial(_found.__setitem__, queue))


def _check_pool(pool: object) -> None:
    if isinstance(pool, asyncpg.Pool):
        return
    if isinstance(pool, (asyncpg.Connection, asyncpg.pool.PoolConnectionProxy)):
        msg = (
            "a lease needs a pool, not a single connection: heartbeats go on while the job uses its own;"
            " pass what asyncpg.create_pool() returned"
        )
    else:
        msg = (
            f"a lease needs an asyncpg.Pool or a LeaseTable, not {type(pool).__name__};"
            " pass what asyncpg.create_pool() returned"
        )
    raise TypeError(msg)
