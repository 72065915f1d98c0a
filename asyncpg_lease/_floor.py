"""The floor under all fences: rows are pruned above it without a fence falling, and all fences lifted with it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import asyncpg

from asyncpg_lease._clock import local_time
from asyncpg_lease._driver import Row, ask_again
from asyncpg_lease._rows import count_row
from asyncpg_lease.errors import LeaseTableError
from asyncpg_lease.schema import explain, settle

if TYPE_CHECKING:
    from asyncpg_lease._driver import Connection
    from asyncpg_lease._store import Store

__all__ = ["Pruned", "advance_fences", "prune"]

STEP_LIMIT = 30.0
"""Seconds for one statement, the wait for a connection included."""

SETTLE_LIMIT = 30.0
"""Seconds to wait for the transactions that began before the floor was laid."""

BATCH = 1000
"""Rows in one statement, which holds their locks."""

SECOND_LOOK = 0.2
"""Seconds from the first look at those transactions to the second: a claim has locked the table by then."""

FIRST_PAUSE = 0.01
MAX_PAUSE = 0.5
"""Seconds between two looks at what is waited for."""

PATIENCE = 10.0
"""Seconds after which a wait is told, and told again."""

FENCE_LIMIT = 2**62
"""Where lifting ends: half of what a bigint holds is left for the acquisitions to come."""

logger = logging.getLogger("asyncpg_lease")

_Step: TypeAlias = Literal[
    "floor_lay", "floor_wait", "floor_settle", "floor_raise", "prunable", "prune", "greatest", "lift", "lagging"
]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune did.

    Attributes:
        deleted: how many rows it deleted.
        kept: how many rows that were free long enough are there still: locked, mostly by a guarded
            transaction or a claim. The next prune deletes them, unless they were claimed.
        floor: the fence above which new keys start; 0 as long as nothing was ever pruned.

    .. versionadded:: 0.1
    """

    deleted: int
    kept: int
    floor: int


async def prune(store: Store, older_than: float) -> Pruned:
    """Delete the rows that have been free for so many seconds, and keep the floor above their fences.

    Each step is committed before the next: to stop in between leaves the floor higher than it need be.
    """
    steps = _Steps(store, "prune()", "SELECT, INSERT, UPDATE, DELETE")
    found, fence, floor = await steps.counts("prunable", older_than)
    deleted = 0
    if found:
        await steps.lay_floor()
        if fence > floor:
            await steps.raise_floor(fence)
        deleted = await steps.in_batches("prune", older_than)
        found, _, floor = await steps.counts("prunable", older_than)
    logger.info(
        "leases pruned: deleted=%d kept=%d floor=%d table=%s",
        deleted,
        found,
        floor,
        store.name,
        extra={"lease_deleted": deleted, "lease_kept": found, "lease_floor": floor, "lease_table": str(store.name)},
    )
    return Pruned(deleted, found, floor)


async def advance_fences(store: Store, by: int) -> int:
    """Lift the floor and all fences to the same one, by so many above the greatest.

    The floor goes first, so that no new key starts below, and so that rows which began below can be seen.
    """
    steps = _Steps(store, "advance_fences()", "SELECT, INSERT, UPDATE")
    await steps.lay_floor()
    (greatest,) = await steps.counts("greatest")
    fence = greatest + by
    if fence >= FENCE_LIMIT:
        msg = f"by is too much for this table: its greatest fence is {greatest}, and with {by} more it passes 2**62"
        raise ValueError(msg)
    await steps.raise_floor(fence)
    lifted = await steps.lift(fence)
    logger.info(
        "fences advanced: fence=%d by=%d lifted=%d table=%s",
        fence,
        by,
        lifted,
        store.name,
        extra={"lease_fence": fence, "lease_by": by, "lease_lifted": lifted, "lease_table": str(store.name)},
    )
    return fence


class _Steps:
    """The statements of one call, each a job of its own: the pool has its connection back in between."""

    def __init__(self, store: Store, what: str, rights: str) -> None:
        self._store = store
        self._what = what
        self._rights = rights

    async def ask(self, step: _Step, *args: object) -> list[Row]:
        """Run one statement."""
        name = self._store.name

        async def work(connection: Connection) -> list[Row]:
            await settle(connection, name)
            try:
                return await ask_again(connection, getattr(name.statements, step), *args)
            except asyncpg.InsufficientPrivilegeError as error:
                raise explain(error, name, self._rights) from error

        return await self._store.connections.run(self._what, work, STEP_LIMIT)

    async def counts(self, step: _Step, *args: object) -> tuple[int, ...]:
        """Run a statement that answers one row of numbers."""
        return count_row((await self.ask(step, *args))[0])

    async def lay_floor(self) -> None:
        """See that the reserved row is there, and that no claim is under way that cannot see it.

        Such a claim, once its statement goes on, would make its key anew at fence 1, though the key was made, used
        and pruned meanwhile.

        Raises:
            TimeoutError: a transaction that may be such a claim goes on. The row stays unsettled, so the next call
                waits again.
        """
        name = self._store.name
        if (await self.ask("floor_lay"))[0] == ("settled",):
            return
        until = local_time() + SETTLE_LIMIT
        pause = SECOND_LOOK
        older = await self.ask("floor_wait", name.quoted, None)
        while older:
            if local_time() >= until:
                pids = ", ".join(str(pid) for _, pid in older)
                msg = (
                    f"{self._what} on {name}: after {SETTLE_LIMIT:g} s there are transactions still that"
                    f" began before the floor of the fences was laid, of the server processes {pids}; nothing was"
                    " changed: run it again when they have ended"
                )
                raise TimeoutError(msg)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)
            older = await self.ask("floor_wait", name.quoted, [transaction for transaction, _ in older])
        await self.ask("floor_settle")

    async def raise_floor(self, fence: int) -> None:
        """Raise the floor to a fence, unless it is as high already."""
        if not await self.ask("floor_raise", str(fence)):
            problem = "the reserved row, with key '', was deleted meanwhile; nothing was changed: run it again"
            raise LeaseTableError(self._store.name.quoted, problem)

    async def in_batches(self, step: _Step, value: object) -> int:
        """Run a statement over all keys, a batch at a time, and return how many rows it changed."""
        changed, after = 0, ""
        while True:
            ((rows, last),) = await self.ask(step, after, value, str(BATCH))
            (count,) = count_row((rows,))
            changed += count
            if count < BATCH:
                return changed
            after = last

    async def lift(self, fence: int) -> int:
        """Lift all fences that are lower, and wait for as long as somebody has one of the rows locked.

        By looking again, since a statement that waits for one row would keep the others of its batch locked.
        """
        lifted = await self.in_batches("lift", str(fence))
        pause, due = FIRST_PAUSE, local_time() + PATIENCE
        while behind := await self.ask("lagging", str(fence)):
            if local_time() >= due:
                keys = ", ".join(repr(key) for (key,) in behind)
                logger.warning(
                    "fences are not advanced yet: rows are locked, mostly by guarded transactions: fence=%d keys=%s",
                    fence,
                    keys,
                    extra={"lease_fence": fence, "lease_keys": keys, "lease_table": str(self._store.name)},
                )
                due = local_time() + PATIENCE
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)
            lifted += await self.in_batches("lift", str(fence))
        return lifted
