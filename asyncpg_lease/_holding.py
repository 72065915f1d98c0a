"""What goes on behind a Lease: entering, losing and leaving a tenure."""

from __future__ import annotations

import asyncio
import enum
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from asyncpg_lease._body import Body
from asyncpg_lease._clock import local_time
from asyncpg_lease._heartbeat import Heartbeat, loss_of
from asyncpg_lease._losing import loss, tell_lost, tell_revoked
from asyncpg_lease._release import RUNS_OUT, start_release, tell_failed
from asyncpg_lease._tasks import start_timer, wait_shielded
from asyncpg_lease._unwinding import come_out_of, go_into

if TYPE_CHECKING:
    from datetime import datetime
    from typing import NoReturn

    from asyncpg_lease._claims import Claim
    from asyncpg_lease._guard import Over
    from asyncpg_lease._options import Options
    from asyncpg_lease._rows import ReleaseRow
    from asyncpg_lease._store import Store
    from asyncpg_lease.errors import LeaseLostError, LossReason
    from asyncpg_lease.events import Notifier

__all__ = ["Holding", "State"]

RELEASE_LIMIT = 5.0
"""Seconds for which leaving a block waits for the release; it goes on by itself until the row runs out."""

HAND_BACK_WAIT = 0.5
MIN_LIMIT = 0.1
MIN_WAIT = 0.001
BUSY_PAUSE = 0.02


class State(enum.Enum):
    """How far a tenure has come in this program."""

    CLAIMED = "claimed, not entered"
    ENTERED = "entered"
    LEFT = "left"


class Holding:
    """One tenure in this program: its trust, its body, its loss, its release.

    Attributes:
        stop: why the body should end: a revocation, under which the tenure is still held, or the loss.
        gone: whether the tenure is over, or no longer certain: nothing of it is to be released.
        stopping: set when the body should end, or has ended.
        over: set when it is gone, or was left.
    """

    def __init__(self, store: Store, claim: Claim, options: Options, notifier: Notifier) -> None:
        self.claim = claim
        self.process: int = os.getpid()
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.state: State = State.CLAIMED
        self.stop: LeaseLostError | None = None
        self.gone: bool = False
        self.stopping: asyncio.Event = asyncio.Event()
        self.over: asyncio.Event = asyncio.Event()
        self.store: Store = store
        self.options: Options = options
        self._notifier = notifier
        self._heartbeat = Heartbeat(
            store,
            claim,
            shared=options.holder is not None,
            notifier=notifier,
            on_loss=self._lose,
            on_revoked=self._revoke,
        )
        self._draining: asyncio.TimerHandle | None = None
        self._body: Body | None = None
        self._releasing: asyncio.Future[ReleaseRow | None] | None = None

    def __repr__(self) -> str:
        tenure = self.claim.tenure
        state = self.state.value if self.stop is None else f"{'lost' if self.gone else 'stopping'}: {self.stop.reason}"
        return f"{tenure.key!r} of {tenure.holder!r}, fence {tenure.fence}, {state}"

    @property
    def lost(self) -> LeaseLostError | None:
        """The loss, once the tenure is gone."""
        return self.stop if self.gone else None

    @property
    def remaining(self) -> float:
        """Seconds of trust left."""
        if self.gone or self.state is State.LEFT:
            return 0.0
        return self._heartbeat.trust.remaining(local_time())

    @property
    def expires_at(self) -> datetime:
        """When the row runs out, as the server last said."""
        return self._heartbeat.expires_at

    @property
    def is_held(self) -> bool:
        """Whether the tenure may be relied on now."""
        return (
            not self.gone
            and self.state is not State.LEFT
            and self.process == os.getpid()
            and not self._heartbeat.trust.is_over(local_time())
        )

    @property
    def is_inside(self) -> bool:
        """Whether the block was entered and not left yet."""
        return self.state is State.ENTERED

    @property
    def unwind_by(self) -> float | None:
        """When the server may let others in, where the body has to be over by then."""
        own = self.gone and self.is_inside and self.process == os.getpid()
        return self._heartbeat.trust.trusted_until if own else None

    def raise_if_stopping(self) -> None:
        """Raise why the body should end, also where no timer could report it yet."""
        self._check_process()
        if threading.get_ident() == self._thread:
            self._check_deadline()
        else:
            self._raise_in_thread()
        if self.stop is not None:
            # Without the frames of earlier raises, which would pile up on the one error.
            raise self.stop.with_traceback(None)

    def _raise_in_thread(self) -> None:
        """Raise in a thread that the job runs in: what a loss does has to be done in the loop's own."""
        if self.stop is None and not self.is_held and self.state is not State.LEFT:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._check_deadline)
            reason: LossReason = "stalled"
            raise loss(self.claim.tenure, reason, None)

    async def wait_for(self, event: asyncio.Event) -> None:
        """Wait until it is `stopping` or `over`; before it is entered nobody else keeps its deadline."""
        while self.state is State.CLAIMED and not event.is_set():
            with suppress(TimeoutError):
                # uvloop's timers are up to a millisecond early.
                async with asyncio.timeout(max(self._heartbeat.trust.deadline - local_time(), MIN_WAIT)):
                    await event.wait()
            self._check_deadline()
        await event.wait()

    def abandon(self) -> None:
        """Renew no more a tenure whose block nobody can leave any more; it runs out."""
        self._heartbeat.stop()

    async def confirm(self) -> None:
        """Ask the server whether the tenure is live."""
        self.check_usable()
        tenure = self.claim.tenure
        info = await self.store.get(tenure.key, max(self.remaining, MIN_LIMIT))
        if info is None:
            raise loss(tenure, *loss_of(tenure, None, None))
        if (info.holder, info.fence, info.state) != (tenure.holder, tenure.fence, "held"):
            revoked = info.revoked_at is not None
            raise loss(tenure, *loss_of(tenure, info.holder, info.fence, revoked=revoked))

    async def renew(self) -> None:
        """Renew now, waiting for a row that another session has locked."""
        self.check_usable()
        while await self._heartbeat.renew(self.remaining) == "busy":
            await asyncio.sleep(BUSY_PAUSE)
            self.check_usable()
        self._raise_if_gone()

    def raise_over(self, over: Over) -> NoReturn:
        """Take note of the loss that a guard has found, and raise it."""
        self._heartbeat.report_loss(over.holder, over.fence, revoked=over.revoked)
        self._raise_if_gone()
        # It was left meanwhile, and lost nothing.
        raise loss(self.claim.tenure, *loss_of(self.claim.tenure, over.holder, over.fence, revoked=over.revoked))

    def enter(self) -> None:
        """Start the heartbeat; the current task is the body's."""
        self._check_process()
        self.store.connections.check_loop()
        if self.state is not State.CLAIMED:
            msg = f"lease {self!r}: it can be entered once only, and not after its release; acquire the key again"
            raise RuntimeError(msg)
        body = Body()
        self._check_deadline()
        if self.stop is not None and not self.gone:
            # Nobody leaves a block that was not entered.
            self._stop()
        self.raise_if_stopping()
        self._body = body
        self.state = State.ENTERED
        go_into(self)
        self._heartbeat.start()

    async def leave(self, error: BaseException | None) -> None:
        """Leave the block, whose body ended with `error`: stop the heartbeat, release, and say what came of it."""
        come_out_of(self)
        if self.process != os.getpid():
            return
        body = self._body
        assert body is not None  # noqa: S101 - entered
        body.end()
        self._check_deadline()
        if isinstance(error, GeneratorExit):
            # The frame is being closed and may not await: the release goes on without it.
            body.abandon()
            self._stop()
            return
        cancelled = await self.release()
        failed = error is not None and not isinstance(error, asyncio.CancelledError)
        others, pending = await body.settle(shielded=failed)
        cancelled = cancelled or pending
        if isinstance(error, asyncio.CancelledError):
            if others:
                # The loop may be closing, and a worker that hands a connection back would be cut off.
                await wait_shielded(self.store.connections.finishing(), HAND_BACK_WAIT)
                if pending is not None and not body.has_asked(pending):
                    # The body may have met this library's request alone; anyio's scopes know their own by its words.
                    raise pending
                return
        elif cancelled is not None and others:
            raise cancelled
        elif error is not None:
            if self.stop is not None and error is not self.stop:
                error.add_note(str(self.stop))
            return
        if self.stop is not None and self.options.on_lost == "cancel":
            raise self.stop.with_traceback(None) from self.stop.__cause__

    def check_own_loop(self) -> None:
        """Raise on another event loop than the lease's; in a forked child there is nothing to be done on any."""
        if self.process == os.getpid():
            self.store.connections.check_loop()

    async def release(self) -> asyncio.CancelledError | None:
        """Stop the heartbeat, then release; return a cancellation that came meanwhile."""
        if self.process != os.getpid():
            return None
        renewal = self._stop()
        waits: list[asyncio.Future[ReleaseRow | None] | asyncio.Task[None]] = [] if renewal is None else [renewal]
        if self._releasing is not None:
            waits.append(self._releasing)
        return await wait_shielded(waits, RELEASE_LIMIT)

    def _stop(self) -> asyncio.Task[None] | None:
        """End the tenure on this side, and start its release where there is something to release."""
        renewal = self._heartbeat.stop()
        if self.state is State.LEFT:
            return renewal
        self.state = State.LEFT
        self.stopping.set()
        self.over.set()
        if self._draining is not None:
            self._draining.cancel()
        if not self.gone and self.claim.began and self._has_loop():
            self._releasing = start_release(
                self.store, self.claim, self._heartbeat.trust, self.options.min_hold, self._notifier
            )
        return renewal

    def _has_loop(self) -> bool:
        """Tell whether a release can be started: not from a frame that is closed after its event loop."""
        try:
            self.store.connections.check_loop()
        except RuntimeError:
            tell_failed(self.claim, self._notifier, f"left without its event loop; {RUNS_OUT}")
            return False
        return True

    def _lose(self, reason: LossReason, taken_by: str | None, cause: BaseException | None) -> None:
        """Take note of a loss, and tell the body; awaits nothing."""
        self.gone = True
        if self._draining is not None:
            self._draining.cancel()
        self.stop = loss(self.claim.tenure, reason, taken_by)
        self.stop.__cause__ = cause
        self.over.set()
        self._tell_body(str(self.stop))
        if reason == "revoked":
            self.store.let_others_first(self.claim.tenure.key)
        tell_lost(self.claim, self.stop, self._notifier)

    def _revoke(self) -> None:
        """Tell the body to end, and go on renewing until it has; awaits nothing."""
        self.stop = loss(self.claim.tenure, "revoked", None)
        self._tell_body(str(self.stop))
        if self._body is not None:
            self._draining = start_timer(self.options.drain, self._end_drain)
        tell_revoked(self.claim.tenure, self.options.drain, self._notifier)

    def _end_drain(self) -> None:
        """Give up a revoked tenure whose body has not ended in time: its row runs out."""
        self._heartbeat.stop()
        problem = f"the body had not ended within its drain of {self.options.drain:g} s after the revocation"
        remaining = self.remaining
        self._lose("revoked", None, TimeoutError(problem))
        self.store.let_others_first(self.claim.tenure.key, remaining)

    def _tell_body(self, why: str) -> None:
        """Wake whoever waits for a loss, and cancel the body; before anybody is told who may take his time."""
        self.stopping.set()
        if self._body is not None and self.options.on_lost == "cancel":
            self._body.cancel(why)

    def _check_deadline(self) -> None:
        """Give up a lease that is past its deadline, where the timer could not do so yet."""
        if self.state is not State.LEFT:
            self._heartbeat.check_deadline(local_time())

    def _check_process(self) -> None:
        if self.process != os.getpid():
            msg = f"lease {self!r}: it belongs to process {self.process}; a forked child must acquire its own"
            raise RuntimeError(msg)

    def check_usable(self) -> None:
        """Raise where nothing can be done with the tenure any more, or not here; one that is revoked still is held."""
        self._check_process()
        self.store.connections.check_loop()
        if self.state is State.LEFT:
            msg = f"lease {self!r}: it was left or released; acquire the key again"
            raise RuntimeError(msg)
        self._check_deadline()
        self._raise_if_gone()

    def _raise_if_gone(self) -> None:
        if self.gone and self.stop is not None:
            raise self.stop.with_traceback(None)
