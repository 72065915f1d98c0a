"""Keeping leases: renewals in time, and giving up in time where they are not confirmed."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from typing import TYPE_CHECKING, Literal, Protocol
from weakref import WeakKeyDictionary

from asyncpg_lease._clock import local_time
from asyncpg_lease._tasks import TaskOwner, start_timer
from asyncpg_lease._words import describe
from asyncpg_lease.events import Late, Notifier, Renewed, RenewFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncpg_lease._claims import Claim
    from asyncpg_lease._renewals import Renewal
    from asyncpg_lease._store import Store
    from asyncpg_lease._tenure import Tenure, Trust
    from asyncpg_lease.errors import LossReason

__all__ = ["Heartbeat", "loss_of"]

logger = logging.getLogger("asyncpg_lease")

MAX_TICK = 1.0
"""Seconds after which the clock is read at the latest: the loop's timers do not count a suspended machine."""

TICKS_PER_TTL = 20
MIN_PATIENCE = 0.02
FIRST_PAUSE = 0.02
MAX_PAUSE = 1.0


class OnLoss(Protocol):
    """What a heartbeat calls, once, when its lease is lost."""

    def __call__(self, reason: LossReason, taken_by: str | None, cause: BaseException | None, /) -> None:
        """Take note of the loss; awaits nothing."""


class Heartbeat:
    """The trust in one tenure, and the renewals that keep it up while it is `start`-ed.

    A tenure that is asked to give its key up is told of once, and renewed until `stop` all the same.
    """

    def __init__(  # noqa: PLR0913 - each is a part of its own
        self,
        store: Store,
        claim: Claim,
        *,
        shared: bool,
        notifier: Notifier,
        on_loss: OnLoss,
        on_revoked: Callable[[], None],
    ) -> None:
        self.tenure = claim.tenure
        self.trust = claim.trust
        self.expires_at = claim.row.expires_at
        self._store = store
        self._shared = shared
        self._notifier = notifier
        self._on_loss = on_loss
        self._on_revoked = on_revoked
        self._keeper = _keeper_of(store)
        self._task: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self._started = False
        self._over = False
        self._revoked = False
        self._early = 0.0
        self._lag_before = self._keeper.lag_until(local_time())

    def __repr__(self) -> str:
        return f"<Heartbeat of {self.tenure}>"

    def is_due(self, now: float) -> bool:
        """Tell whether a renewal should begin now."""
        busy = self._task is not None and not self._task.done()
        return not busy and now >= self.trust.beat_at - self._early

    def start(self) -> None:
        """Renew from now on, and give up in time, until `stop`."""
        self._started = True
        self._keeper.add(self)

    def stop(self) -> asyncio.Task[None] | None:
        """Renew no more and report no loss any more; return the renewal that is still to be waited for."""
        if self._started and not self._over:
            # A body that never awaits leaves its block before any tick could tell how late the loop is.
            now = local_time()
            self.report_late(self._keeper.overdue(now), now)
        self._over = True
        self._keeper.remove(self)
        if self._task is None or self._task.done():
            return None
        self._task.cancel()
        return self._task

    def begin(self, tasks: TaskOwner) -> None:
        """Begin a renewal that is due."""
        self._task = tasks.start(self._beat(), f"heartbeat:{self.tenure.key}")

    def check_deadline(self, now: float) -> bool:
        """Give the lease up, and report its loss, where its deadline is over."""
        if self._over or not self.trust.is_over(now):
            return False
        if not self._started:
            self._lose("expired", None, self._error)
        elif self._keeper.lag_until(now) - self._lag_before >= self.trust.stall_limit:
            self._lose("stalled", None, self._error)
        else:
            self._lose("unreachable", None, self._error)
        return True

    def report_loss(self, holder: str | None, fence: int | None, *, revoked: bool = False) -> None:
        """Report the loss that the row's holder and fence (None: no row) are evidence of."""
        if not self._over:
            self._lose(*loss_of(self.tenure, holder, fence, revoked=revoked), self._error)

    def report_late(self, blocked: float, now: float) -> None:
        """Report that the loop stood still, where that is much for this lease."""
        if blocked >= self.trust.late_limit and self._notifier.wants(Late):
            tenure = self.tenure
            self._notifier.tell(
                Late(
                    key=tenure.key,
                    holder=tenure.holder,
                    fence=tenure.fence,
                    blocked=blocked,
                    remaining=self.trust.remaining(now),
                )
            )

    async def renew(self, limit: float) -> Literal["renewed", "busy", "lost"]:
        """Renew once, within `limit` seconds, and take note of the answer.

        Raises:
            Exception: what the driver raised; no evidence of a loss.
        """
        renewal = await self._store.renewals.renew(
            self.tenure, ttl=self.trust.ttl, shared=self._shared, limit=max(limit, MIN_PATIENCE)
        )
        self._take_note(renewal)
        return renewal.row.outcome

    async def _beat(self) -> None:
        """Renew, again after any error and while the row is locked, until the deadline takes the lease away."""
        pause = FIRST_PAUSE
        while True:
            problem = "another session has the row locked"
            try:
                if await self.renew(self.trust.patience(local_time())) != "busy":
                    self._early = self.trust.heartbeat * random.uniform(0.0, 0.1)  # noqa: S311 - jitter
                    return
            except Exception as error:  # noqa: BLE001 - no error is evidence of a loss
                self._error = error
                problem = describe(error)
            tenure, remaining = self.tenure, self.trust.remaining(local_time())
            if self._notifier.wants(RenewFailed):
                self._notifier.tell(
                    RenewFailed(
                        key=tenure.key, holder=tenure.holder, fence=tenure.fence, remaining=remaining, error=problem
                    )
                )
            await asyncio.sleep(min(pause, remaining / 4) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
            pause = min(2 * pause, MAX_PAUSE)

    def _take_note(self, renewal: Renewal) -> None:
        row = renewal.row
        if row.outcome == "lost":
            self.report_loss(row.holder, row.fence, revoked=row.revoked)
        # An answer that comes after the deadline is too late: whoever has looked meanwhile was told that it is over.
        if self._over or self.check_deadline(local_time()):
            return
        if row.outcome == "renewed":
            self._extend(renewal)
        if row.revoked and not self._revoked:
            self._revoked = True
            self._on_revoked()

    def _extend(self, renewal: Renewal) -> None:
        now = local_time()
        self.trust = self.trust.renewed(renewal.sent_at)
        self.expires_at = renewal.row.expires_at or self.expires_at
        self._error = None
        self._lag_before = self._keeper.lag_until(now)
        if self._notifier.wants(Renewed):
            tenure, remaining = self.tenure, self.trust.remaining(now)
            took = now - renewal.sent_at
            self._notifier.tell(
                Renewed(key=tenure.key, holder=tenure.holder, fence=tenure.fence, remaining=remaining, took=took)
            )

    def _lose(self, reason: LossReason, taken_by: str | None, cause: BaseException | None) -> None:
        self.stop()
        self._on_loss(reason, taken_by, cause)


def loss_of(
    tenure: Tenure, holder: str | None, fence: int | None, *, revoked: bool = False
) -> tuple[LossReason, str | None]:
    """Read from what the row says (None: no row) why a tenure is over, and who has the key."""
    if holder is None:
        return "deleted", None
    if (holder, fence) == (tenure.holder, tenure.fence):
        return "revoked" if revoked else "expired", None
    return "taken_over", holder


class _Keeper:
    """One timer for all the leases of a table that are being kept; it awaits nothing.

    Each tick begins the renewals that are due, so that those go out together, and gives up what is past
    its deadline. A tick that comes late measures how long the loop stood still.
    """

    def __init__(self) -> None:
        self._lag = 0.0
        self._tasks = TaskOwner()
        self._kept: set[Heartbeat] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._expected = 0.0
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<_Keeper of {len(self._kept)} leases>"

    def lag_until(self, now: float) -> float:
        """Return for how long in all the loop has been late, a tick that is overdue at `now` included."""
        return self._lag + self.overdue(now)

    def overdue(self, now: float) -> float:
        """Return for how long the next tick is overdue at `now`."""
        return max(now - self._expected, 0.0) if self._timer is not None else 0.0

    def add(self, heartbeat: Heartbeat) -> None:
        """Keep a lease from now on."""
        self._kept.add(heartbeat)
        now = local_time()
        # One that was acquired long ago may have no tick left until its deadline.
        at = now if heartbeat.is_due(now) else min(now + _tick_of(heartbeat.trust), heartbeat.trust.deadline)
        if self._timer is None or at < self._expected:
            self._schedule(at, now)

    def remove(self, heartbeat: Heartbeat) -> None:
        """Keep a lease no longer."""
        self._kept.discard(heartbeat)
        if not self._kept and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, at: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._expected = max(at, now)
        self._timer = start_timer(self._expected - now, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._process != os.getpid():
            # A forked child goes on with the loop: what is kept is its parent's.
            return
        now = local_time()
        blocked = max(now - self._expected, 0.0)
        self._lag += blocked
        try:
            for heartbeat in tuple(self._kept):
                self._look_after(heartbeat, blocked, now)
        finally:
            # Whatever happened, or no lease of the table would ever be given up.
            if self._kept:
                tick = min(_tick_of(heartbeat.trust) for heartbeat in self._kept)
                deadline = min(heartbeat.trust.deadline for heartbeat in self._kept)
                self._schedule(min(now + tick, deadline), now)

    def _look_after(self, heartbeat: Heartbeat, blocked: float, now: float) -> None:
        try:
            # What has to be done comes before what is only told.
            if not heartbeat.check_deadline(now) and heartbeat.is_due(now):
                heartbeat.begin(self._tasks)
            heartbeat.report_late(blocked, now)
        except Exception:
            # One lease must not cost the others their deadlines.
            logger.exception("lease heartbeat failed: %r", heartbeat, extra={"lease_key": heartbeat.tenure.key})


def _tick_of(trust: Trust) -> float:
    return min(trust.ttl / TICKS_PER_TTL, trust.heartbeat / 4, MAX_TICK)


_keepers: WeakKeyDictionary[Store, _Keeper] = WeakKeyDictionary()


def _keeper_of(store: Store) -> _Keeper:
    keeper = _keepers.get(store)
    if keeper is None:
        keeper = _keepers[store] = _Keeper()
    return keeper
