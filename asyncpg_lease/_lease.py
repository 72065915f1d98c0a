"""Lease: one tenure in the hands of a program, from the claim to where it is left."""

from __future__ import annotations

import asyncio
import enum
import os
import warnings
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from asyncpg_lease._body import Body
from asyncpg_lease._clock import local_time
from asyncpg_lease._heartbeat import Heartbeat, loss_of
from asyncpg_lease._release import start_release
from asyncpg_lease._tasks import wait_shielded
from asyncpg_lease.errors import LeaseLostError, LossReason
from asyncpg_lease.events import Lost, Notifier

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from asyncpg_lease._claims import Claim
    from asyncpg_lease._options import Options
    from asyncpg_lease._store import Store

__all__ = ["Lease", "entered_leases"]

RELEASE_LIMIT = 5.0
"""Seconds for which leaving a block waits for the release; it goes on by itself until the row runs out."""

MIN_LIMIT = 0.1


class _State(enum.Enum):
    CLAIMED = "claimed, not entered"
    ENTERED = "entered"
    LEFT = "left"


class Lease:
    """A lease that was acquired: made by `acquire`, `try_acquire` and `lease` only.

    Enter it once, with ``async with``: from then on it is renewed, and the body is told when it is lost. The
    block's end releases it, after the body has ended, shielded from cancellation and bounded in time.

    Not entered, it runs out after its ttl unless it is released. Belongs to its pool's event loop; a forked
    child's copy is not held and sends nothing.

    .. versionadded:: 0.1
    """

    def __init__(self, store: Store, claim: Claim, options: Options, notifier: Notifier) -> None:
        self._store = store
        self._claim = claim
        self._options = options
        self._notifier = notifier
        self._heartbeat = Heartbeat(
            store,
            claim,
            shared=options.holder is not None,
            notifier=notifier,
            on_loss=self._lose,
        )
        self._process = os.getpid()
        self._state = _State.CLAIMED
        self._body: Body | None = None
        self._token: Token[tuple[Lease, ...]] | None = None
        self._lost: LeaseLostError | None = None
        self._ended = asyncio.Event()
        self._releasing: asyncio.Future[bool] | None = None

    def __repr__(self) -> str:
        """Name key, holder, fence and state."""
        state = self._state.value if self._lost is None else f"lost: {self._lost.reason}"
        return f"<Lease {self.key!r} of {self.holder!r}, fence {self.fence}, {state}>"

    def __del__(self) -> None:
        """Warn of a lease that was neither entered nor released: it keeps everybody out until its ttl is over."""
        # An __init__ that failed leaves no state.
        if getattr(self, "_state", None) is _State.CLAIMED and self._process == os.getpid():
            msg = f"{self!r} was dropped: use `async with` on it, or release it; its row stays until its ttl is over"
            warnings.warn(msg, ResourceWarning, stacklevel=1, source=self)

    @property
    def key(self) -> str:
        """The key."""
        return self._claim.tenure.key

    @property
    def holder(self) -> str:
        """Who holds: ``label/random``, or the explicit holder."""
        return self._claim.tenure.holder

    @property
    def fence(self) -> int:
        """The fencing token: greater than that of every earlier tenure of the key.

        Write it with whatever the job writes, and refuse a write with a lower one.
        """
        return self._claim.tenure.fence

    @property
    def acquired_at(self) -> datetime:
        """When the tenure began, by the server's clock, aware UTC."""
        return self._claim.row.acquired_at

    @property
    def expires_at(self) -> datetime:
        """When the row would run out by the claim alone, by the server's clock, aware UTC.

        Each renewal moves the row's own; `LeaseTable.get` reads that.
        """
        return self._claim.row.expires_at

    @property
    def joined(self) -> bool:
        """Whether it joined a live tenure of the same explicit holder, whose first handle releases it."""
        return not self._claim.began

    @property
    def remaining(self) -> float:
        """Seconds of trust left, by the local clock; 0.0 once it is lost or left."""
        if self._lost is not None or self._state is _State.LEFT:
            return 0.0
        return self._heartbeat.trust.remaining(local_time())

    @property
    def is_held(self) -> bool:
        """Whether the lease may be relied on now; no I/O.

        False after a loss, after the local deadline even where the event loop was blocked and nobody could
        say so yet, after the block was left, and in a forked child. True while a cancelled body unwinds.
        It is no promise for the moment after: fence what is written.
        """
        return (
            self._lost is None
            and self._state is not _State.LEFT
            and self._process == os.getpid()
            and not self._heartbeat.trust.is_over(local_time())
        )

    @property
    def is_entered(self) -> bool:
        """Whether its block was entered and is not left yet."""
        return self._state is _State.ENTERED

    @property
    def lost(self) -> LeaseLostError | None:
        """The loss, once there is one."""
        return self._lost

    def raise_if_lost(self) -> None:
        """Raise where the lease is lost, or past its local deadline; no I/O.

        Raises:
            LeaseLostError: it is.
            RuntimeError: this is a forked child's copy.
        """
        self._check_process()
        self._check_deadline()
        if self._lost is not None:
            raise self._lost

    async def wait_lost(self) -> LeaseLostError | None:
        """Wait until the lease is lost; return the loss, or None where it was left without one."""
        await self._ended.wait()
        return self._lost

    async def verify(self) -> None:
        """Ask the server whether the tenure is live, at this moment; cancels nothing, renews nothing.

        Raises:
            LeaseLostError: it is not.
            RuntimeError: the lease was left, or this is a forked child's copy or another event loop.
            Exception: what the driver raised; no evidence of a loss.
        """
        self._check_usable()
        tenure = self._claim.tenure
        info = await self._store.get(tenure.key, max(self.remaining, MIN_LIMIT))
        if info is None:
            reason: LossReason = "deleted"
            raise self._loss(reason, None)
        if (info.holder, info.fence, info.state) != (tenure.holder, tenure.fence, "held"):
            raise self._loss(*loss_of(tenure, info.holder, info.fence))

    async def renew(self) -> None:
        """Renew now, beside the heartbeat; a row that another session has locked is waited for.

        Raises:
            LeaseLostError: the tenure is over; the body of an entered lease is cancelled or flagged as well.
            RuntimeError: the lease was left, or this is a forked child's copy or another event loop.
            Exception: what the driver raised; no evidence of a loss.
        """
        self._check_usable()
        while await self._heartbeat.renew(self.remaining) == "busy":
            await asyncio.sleep(0.02)
            self.raise_if_lost()
        self.raise_if_lost()

    async def release(self) -> None:
        """Release now: renew no more and expire the row, so that the next one can have it.

        Idempotent. Inside its block it is your word that the work is done: nothing protects the rest of the
        body. Bounded and shielded as at the block's end; where the server is not reached that is logged, and
        the row runs out by itself. A lease that is lost, or joined, is not touched.
        """
        if self._process != os.getpid():
            return
        cancelled = await self._leave()
        if cancelled is not None:
            raise cancelled

    async def __aenter__(self) -> Self:
        """Start the heartbeat; the task that enters is the one that a loss cancels.

        Awaits nothing, so that no cancellation comes between a claim and its block.

        Raises:
            RuntimeError: entered before, released, another event loop, a forked child, or no task.
            LeaseLostError: it was not entered before its deadline.
        """
        self._check_process()
        self._store.connections.check_loop()
        if self._state is not _State.CLAIMED:
            msg = f"{self!r} can be entered once only, and not after its release: acquire the key again"
            raise RuntimeError(msg)
        body = Body()
        self.raise_if_lost()
        self._body = body
        self._state = _State.ENTERED
        self._token = entered_leases.set((self, *entered_leases.get()))
        self._heartbeat.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave: stop the heartbeat, then release; then say what came of the body.

        The body's own exception comes out as it is, and so does whoever else's cancellation.

        Raises:
            LeaseLostError: the lease was lost before the body had ended, and `on_lost` is "cancel".
        """
        self._forget_context()
        if self._process != os.getpid():
            return
        assert self._body is not None  # noqa: S101 - entered
        self._body.end()
        self._check_deadline()
        if isinstance(error, GeneratorExit):
            # The frame is being closed and may not await: the release goes on without it.
            self._stop()
            self._body.abandon()
            return
        cancelled = await self._leave()
        others, pending = await self._body.settle(delivered=isinstance(error, asyncio.CancelledError))
        cancelled = cancelled or pending
        if isinstance(error, asyncio.CancelledError):
            if others:
                return
        elif cancelled is not None and others:
            raise cancelled
        elif error is not None:
            return
        if self._lost is not None and self._options.on_lost == "cancel":
            raise self._lost from self._lost.__cause__

    async def _leave(self) -> asyncio.CancelledError | None:
        """Stop the heartbeat, then release; return a cancellation that came meanwhile."""
        renewal = self._stop()
        waits: list[asyncio.Future[bool] | asyncio.Task[None]] = [] if renewal is None else [renewal]
        if self._releasing is not None:
            waits.append(self._releasing)
        return await wait_shielded(waits, RELEASE_LIMIT)

    def _stop(self) -> asyncio.Task[None] | None:
        """End the tenure on this side, and start its release where there is something to release."""
        renewal = self._heartbeat.stop()
        if self._state is _State.LEFT:
            return renewal
        self._state = _State.LEFT
        self._ended.set()
        if self._lost is None and self._claim.began:
            self._releasing = start_release(
                self._store, self._claim, self._heartbeat.trust, self._options.min_hold, self._notifier
            )
        return renewal

    def _lose(self, reason: LossReason, taken_by: str | None, cause: BaseException | None) -> None:
        """Take note of a loss, and tell the body; awaits nothing."""
        self._lost = self._loss(reason, taken_by)
        self._lost.__cause__ = cause
        self._ended.set()
        error = None if cause is None else repr(cause)
        tenure = self._claim.tenure
        self._notifier.tell(
            Lost(
                key=tenure.key, holder=tenure.holder, fence=tenure.fence, reason=reason, taken_by=taken_by, error=error
            )
        )
        if self._body is not None and self._options.on_lost == "cancel":
            self._body.cancel(str(self._lost))

    def _loss(self, reason: LossReason, taken_by: str | None) -> LeaseLostError:
        tenure = self._claim.tenure
        return LeaseLostError(tenure.key, tenure.holder, tenure.fence, reason, taken_by=taken_by)

    def _check_deadline(self) -> None:
        """Give up a lease that is past its deadline, where the timer could not do so yet."""
        if self._lost is None and self._state is not _State.LEFT:
            self._heartbeat.check_deadline(local_time())

    def _check_process(self) -> None:
        if self._process != os.getpid():
            msg = f"{self!r} belongs to process {self._process}, which acquired it: a forked child must acquire its own"
            raise RuntimeError(msg)

    def _check_usable(self) -> None:
        self._check_process()
        self._store.connections.check_loop()
        if self._state is _State.LEFT:
            msg = f"{self!r} was left or released: acquire the key again"
            raise RuntimeError(msg)
        self.raise_if_lost()

    def _forget_context(self) -> None:
        if self._token is not None:
            try:
                entered_leases.reset(self._token)
            except ValueError:
                # Left in another context than it was entered in: that one is over or keeps its own.
                return
            finally:
                self._token = None


entered_leases: ContextVar[tuple[Lease, ...]] = ContextVar("asyncpg_lease.entered", default=())
"""The leases whose blocks this context is in, innermost first; those that were left elsewhere included."""
