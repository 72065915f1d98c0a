"""Waiting for a key: try, sleep until something may have changed, try again."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from asyncpg_lease._claims import Claim
from asyncpg_lease._clock import local_time
from asyncpg_lease._driver import is_passing
from asyncpg_lease._words import describe
from asyncpg_lease.errors import LeaseTimeoutError, LeaseUnavailableError
from asyncpg_lease.events import Acquired, Notifier, Unavailable, Waiting, WaitingFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncpg_lease._claims import ClaimRequest
    from asyncpg_lease._rows import ClaimRow
    from asyncpg_lease._store import Store

__all__ = ["obtain"]

LAST_TRY = 0.25
"""Seconds past the wait's end that the last try may take."""


async def obtain(store: Store, make: Callable[[], ClaimRequest], wait: float, notifier: Notifier) -> Claim:
    """Claim a key, waiting for it for at most `wait` seconds; each try has a request of its own.

    Where this replica was asked to give the key up, others go first.

    Raises:
        LeaseUnavailableError: somebody else has it, and `wait` is 0.
        LeaseTimeoutError: somebody else still had it when the wait was over, or the server was not to be
            reached; within `wait` + 1 s.
        Exception: what the driver raised, unless a later try may succeed and there is time for one.
    """
    started = local_time()
    waiting = False
    while True:
        request = make()
        if not waiting and wait > 0 and (aside := store.stands_back_for(request.key)) > 0:
            waiting = True
            _tell_waiting(notifier, request, None, wait)
            await asyncio.sleep(min(aside, wait))
            continue
        left = wait - (local_time() - started)
        limit = request.ttl if wait == 0 else min(request.ttl, max(left, 0.0) + LAST_TRY)
        failure: Exception | None = None
        answer: Claim | ClaimRow | None = None
        try:
            answer = await store.claims.claim(request, limit)
        except Exception as error:
            if wait == 0 or not is_passing(error) or store.connections.pool.is_closing():
                raise
            failure = error
            _tell_failed(notifier, request, error, local_time() - started)
        if isinstance(answer, Claim):
            _tell_acquired(notifier, answer, local_time() - started)
            return answer
        if failure is None:
            _tell_unavailable(notifier, request, answer)
        left = wait - (local_time() - started)
        if left <= 0:
            refusal = _refusal(request.key, answer, waited=wait > 0)
            if failure is not None:
                refusal.add_note(f"the last try failed: {describe(failure)}")
            raise refusal from failure
        if not waiting:
            waiting = True
            _tell_waiting(notifier, request, answer, wait)
        await asyncio.sleep(min(_nap(answer, store.poll), left))


def _nap(incumbent: ClaimRow | None, poll: float) -> float:
    """Return how long to sleep: until the incumbent runs out, at most a jittered poll.

    An incumbent with no time left is guarded, or its successor is hidden by a race: a poll as well, since
    a waiter must never spin.
    """
    jittered = poll * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
    if incumbent is None or incumbent.expires_in <= 0:
        return jittered
    return min(jittered, incumbent.expires_in + 0.001)


def _tell_acquired(notifier: Notifier, claim: Claim, waited: float) -> None:
    if notifier.wants(Acquired):
        tenure, row = claim.tenure, claim.row
        assert row.how is not None  # noqa: S101 - it was granted
        notifier.tell(
            Acquired(
                key=tenure.key, holder=tenure.holder, fence=tenure.fence, how=row.how, waited=waited, before=row.before
            )
        )


def _tell_unavailable(notifier: Notifier, request: ClaimRequest, row: ClaimRow | None) -> None:
    if notifier.wants(Unavailable):
        notifier.tell(
            Unavailable(
                key=request.key,
                holder=request.holder,
                incumbent=None if row is None else row.holder,
                incumbent_fence=None if row is None else row.fence,
                retry_after=None if row is None else row.expires_in,
            )
        )


def _tell_waiting(notifier: Notifier, request: ClaimRequest, row: ClaimRow | None, wait: float) -> None:
    if notifier.wants(Waiting):
        notifier.tell(
            Waiting(
                key=request.key,
                holder=request.holder,
                incumbent=None if row is None else row.holder,
                incumbent_fence=None if row is None else row.fence,
                wait=wait,
            )
        )


def _tell_failed(notifier: Notifier, request: ClaimRequest, error: Exception, waited: float) -> None:
    if notifier.wants(WaitingFailed):
        notifier.tell(WaitingFailed(key=request.key, holder=request.holder, waited=waited, error=describe(error)))


def _refusal(key: str, row: ClaimRow | None, *, waited: bool) -> LeaseUnavailableError:
    kind = LeaseTimeoutError if waited else LeaseUnavailableError
    if row is None:
        return kind(key)
    return kind(key, row.expires_in, holder=row.holder, fence=row.fence, expires_at=row.expires_at, resting=row.resting)
