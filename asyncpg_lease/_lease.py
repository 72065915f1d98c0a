"""Lease: one tenure in the hands of a program, from the claim to where it is left."""

from __future__ import annotations

import logging
import os
import warnings
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

from asyncpg_lease._guarded import guard_open, guarded_transaction
from asyncpg_lease._holding import Holding, State

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    import asyncpg

    from asyncpg_lease._driver import RecordT
    from asyncpg_lease._transaction import IdleTimeout, Isolation
    from asyncpg_lease.errors import LeaseLostError, LossReason

__all__ = ["Lease", "current_lease"]


logger = logging.getLogger("asyncpg_lease")


class Lease:
    """A lease that was acquired: made by `acquire`, `try_acquire` and `lease` only.

    Enter it once, with ``async with``: from then on it is renewed, and the body is told when it is lost. The
    block's end releases it, after the body has ended, shielded from cancellation and bounded in time.

    Not entered, it runs out after its ttl unless it is released. Belongs to its pool's event loop; a forked
    child's copy is not held and sends nothing.

    .. versionadded:: 0.1
    """

    def __init__(self, holding: Holding) -> None:
        self._holding = holding

    def __repr__(self) -> str:
        """Name key, holder, fence and state."""
        return f"<Lease {self._holding!r}>"

    def __del__(self) -> None:
        """Warn of a lease that was neither left nor released: it keeps everybody out until its ttl is over.

        An entered one that nobody can leave any more is renewed no longer, or it would be for ever.
        """
        holding = self._holding
        if holding.state is State.LEFT or holding.gone or holding.process != os.getpid():
            return
        if holding.state is State.ENTERED:
            # A garbage collection may run in any thread, and after the loop was closed.
            with suppress(RuntimeError):
                holding.loop.call_soon_threadsafe(holding.abandon)
        msg = f"{self!r} was dropped: use `async with` on it, or release it; its row stays until its ttl is over"
        # Python hides a ResourceWarning unless it is asked for.
        logger.warning("lease dropped: %s", msg, extra={"lease_key": self.key, "lease_holder": self.holder})
        warnings.warn(msg, ResourceWarning, stacklevel=1, source=self)

    @property
    def key(self) -> str:
        """The key."""
        return self._holding.claim.tenure.key

    @property
    def holder(self) -> str:
        """Who holds: ``label/random``, or the explicit holder."""
        return self._holding.claim.tenure.holder

    @property
    def fence(self) -> int:
        """The fencing token: greater than that of every earlier tenure of the key.

        Write it with whatever the job writes, and refuse a write with a lower one.
        """
        return self._holding.claim.tenure.fence

    @property
    def acquired_at(self) -> datetime:
        """When the tenure began, by the server's clock, aware UTC."""
        return self._holding.claim.row.acquired_at

    @property
    def expires_at(self) -> datetime:
        """When the row runs out, by the server's clock, aware UTC; as of the last renewal that was heard of."""
        return self._holding.expires_at

    @property
    def joined(self) -> bool:
        """Whether it joined a live tenure of the same explicit holder, whose first handle releases it."""
        return not self._holding.claim.began

    @property
    def remaining(self) -> float:
        """Seconds of trust left, by the local clock; 0.0 once it is lost or left."""
        return self._holding.remaining

    @property
    def is_held(self) -> bool:
        """Whether the lease may be relied on now; no I/O.

        False after a loss, after the local deadline even where the event loop was blocked and nobody could
        say so yet, after the block was left, and in a forked child. True while a cancelled body unwinds, and while a
        revoked one drains. It is no promise for the moment after: fence what is written.
        """
        return self._holding.is_held

    @property
    def lost(self) -> LeaseLostError | None:
        """The loss, once the lease is gone or can no longer be confirmed; None before.

        A revoked lease is not lost: the job keeps it until it has ended, for at most `drain`. See `stop_reason`.
        """
        return self._holding.lost

    @property
    def stop_reason(self) -> LossReason | None:
        """Why the job should end now: ``revoked``, or the reason of the loss; None if it may go on. No I/O.

        ``revoked`` says that an operator called `LeaseTable.revoke`; the next renewal brings it. If `is_held` is true
        beside it, the renewals go on while the job ends, and `transaction` accepts what the job writes meanwhile.
        """
        stop = self._holding.stop
        return None if stop is None else stop.reason

    def raise_if_stopping(self) -> None:
        """Raise if the job should end: the lease is revoked, lost, or past its local deadline. No I/O, from any thread.

        Call it at every step of a job. It knows what the heartbeat knows, and costs nothing. `confirm` asks the server
        what happened to the row since the last renewal. Only what is written in `transaction` is safe.

        Raises:
            LeaseLostError: it is.
            RuntimeError: this is a forked child's copy.
        """
        self._holding.raise_if_stopping()

    async def wait_stopping(self) -> LossReason | None:
        """Wait until the job should end: the lease is revoked or lost.

        Returns:
            The `stop_reason`; None if the block is left without one.
        """
        await self._holding.wait_for(self._holding.stopping)
        return self.stop_reason

    async def wait_lost(self) -> LeaseLostError | None:
        """Wait until the lease is gone, or can no longer be confirmed. A revocation alone does not end the wait.

        Returns:
            The loss; None if the block is left without one.
        """
        await self._holding.wait_for(self._holding.over)
        return self.lost

    async def confirm(self) -> None:
        """Ask the server whether the tenure is live, at this moment; cancels nothing, renews nothing.

        A round trip, for the moment before something that cannot be undone and cannot be fenced. The lease may be over
        by the time the answer comes.

        Raises:
            LeaseLostError: it is not.
            RuntimeError: the lease was left, or this is a forked child's copy or another event loop.
            Exception: what the driver raised; no evidence of a loss.
        """
        await self._holding.confirm()

    async def renew(self) -> None:
        """Renew now, beside the heartbeat; a row that another session has locked is waited for.

        Raises:
            LeaseLostError: the tenure is over; the body of an entered lease is cancelled or flagged as well.
            RuntimeError: the lease was left, or this is a forked child's copy or another event loop.
            Exception: what the driver raised; no evidence of a loss.
        """
        await self._holding.renew()

    def transaction(
        self,
        connection: asyncpg.Connection[RecordT] | asyncpg.pool.PoolConnectionProxy[RecordT],
        isolation: Isolation | None = None,
        idle_timeout: IdleTimeout = "ttl",
    ) -> AbstractAsyncContextManager[None]:
        """Open a transaction in which this tenure is live, and which ends before any successor starts.

        Its first statement checks the tenure and locks the row's key until the end. Renewals and the release pass;
        whoever else claims the key finds it unavailable, at once, until the transaction has ended, even after the
        lease ran out. So what is written in it is never stale, however long the process was paused in between.
        It is committed at the block's end, and rolled back where an exception comes out. Where the commit is cut off,
        by a cancellation or a loss, the connection is closed and the outcome is not known.

        A transaction that is left open keeps the key shut: the same statement has the server end the session when
        the transaction is idle for longer than `idle_timeout`, also where the body computes for so long between two
        statements. A client that is stopped in the middle of a statement is not idle; see the documentation for what
        ends that.

        Args:
            connection: any connection to the lease's own database, without an open transaction; asyncpg's.
            isolation: "read_committed", "repeatable_read" or "serializable"; None: the session's default.
            idle_timeout: seconds, or a timedelta, from 1 ms to 24 days, never more than what the session has;
                "ttl": the lease's; None: what the session has.

        Raises:
            LeaseLostError: the tenure is over, and nothing was written; the body of an entered lease is cancelled or
                flagged as well.
            LeaseSnapshotError: the lease was renewed between the check's snapshot and its execution; begin again.
            SerializationError: its row was changed while the check waited for it, and it is live; begin again.
            LeaseError: the connection leads to another database than the lease's.
            RuntimeError: a transaction is open already, or it is read-only; the body has ended it itself; the
                connection is closed or of another event loop; the lease was left, or this is a forked child's copy
                or another event loop.
            TypeError: it is no connection, or idle_timeout is no duration.
            ValueError: idle_timeout is out of range, or there is no such isolation.
            Exception: what the driver raised.

        Example:
            ```python
            async with lease(pool, "nightly-report") as held, pool.acquire() as connection:
                async with held.transaction(connection):
                    await connection.execute("UPDATE report SET body = $1", "all is well")
            ```
        """
        return guarded_transaction(self._holding, connection, isolation, idle_timeout)

    async def guard(self, connection: asyncpg.Connection[RecordT] | asyncpg.pool.PoolConnectionProxy[RecordT]) -> None:
        """Check this tenure inside a transaction that is open already, and keep its successor out until that ends.

        The check of `transaction` alone: nothing ends a transaction that is left open but what the session has for
        it. A ROLLBACK TO a savepoint that is older than the guard takes the guard away.

        Under REPEATABLE READ and SERIALIZABLE it has to be the transaction's first statement: what was renewed since
        the snapshot was taken cannot be judged.

        Args:
            connection: one to the lease's own database, with an open transaction.

        Raises:
            LeaseLostError: the tenure is over: roll back; the body of an entered lease is cancelled or flagged as well.
            LeaseSnapshotError: the transaction's snapshot is older than the lease's row; says nothing of a loss.
            LeaseError: the connection leads to another database than the lease's.
            RuntimeError: no transaction is open, or it is read-only or has failed; the connection is closed or of
                another event loop; the lease was left, or this is a forked child's copy or another event loop.
            TypeError: it is no connection.
            Exception: what the driver raised.
        """
        await guard_open(self._holding, connection)

    async def release(self) -> None:
        """Release now: renew no more and expire the row, so that the next one can have it.

        Idempotent. Inside its block it is your word that the work is done: nothing protects the rest of the
        body. Bounded and shielded as at the block's end; where the server is not reached that is logged, and
        the row runs out by itself. A lease that is lost, or joined, is not touched; a revoked one is.

        Raises:
            RuntimeError: another event loop than the lease's.
        """
        self._holding.check_own_loop()
        cancelled = await self._holding.release()
        if cancelled is not None:
            raise cancelled

    async def __aenter__(self) -> Self:
        """Start the heartbeat; the task that enters is the one that a loss cancels.

        Awaits nothing, so that no cancellation comes between a claim and its block.

        Raises:
            RuntimeError: entered before, released, another event loop, a forked child, or no task.
            LeaseLostError: it was not entered before its deadline, or it was revoked, and is released for that.
        """
        self._holding.enter()
        # Without those that were left in another context, which could not take them out of this one.
        _entered.set((self, *(held for held in _entered.get() if held._holding.is_inside)))  # noqa: SLF001
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave: stop the heartbeat, then release; then say what came of the body.

        The body's own exception comes out as it is, and so does whoever else's cancellation.

        Raises:
            LeaseLostError: the lease was lost or revoked before the body had ended, and `on_lost` is "cancel".
        """
        # By value: another context than the entering one may leave, and not the last one entered.
        _entered.set(tuple(held for held in _entered.get() if held is not self))
        await self._holding.leave(error)


_entered: ContextVar[tuple[Lease, ...]] = ContextVar("asyncpg_lease.entered", default=())


def current_lease(key: str | None = None) -> Lease:
    """Return the innermost lease whose block this context is in, so that deep code finds its fence.

    Also one that is lost and not left yet: what is written then must carry its fence all the same. Tasks
    that were started inside the block see it too, until it is left.

    Args:
        key: only the lease of that key; None: of any.

    Raises:
        LookupError: there is none.

    .. versionadded:: 0.1
    """
    for held in _entered.get():
        if held._holding.state is State.ENTERED and key in (None, held.key):  # noqa: SLF001 - this module's own
            return held
    which = "no lease is" if key is None else f"no lease of {key!r} is"
    msg = f"{which} entered in this context: call this inside its `async with` block"
    raise LookupError(msg)
