"""The one release of a tenure, and what is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncpg_lease._clock import local_time
from asyncpg_lease._words import describe
from asyncpg_lease.events import Notifier, Released, ReleaseFailed

if TYPE_CHECKING:
    import asyncio

    from asyncpg_lease._claims import Claim
    from asyncpg_lease._rows import ReleaseRow
    from asyncpg_lease._store import Store
    from asyncpg_lease._tenure import Trust

__all__ = ["RUNS_OUT", "start_release", "tell_failed"]

MIN_LIMIT = 0.1

RUNS_OUT = "the row runs out by itself"
"""What comes of a release that was not made."""


def start_release(
    store: Store, claim: Claim, trust: Trust, min_hold: float, notifier: Notifier
) -> asyncio.Future[ReleaseRow | None]:
    """Start the release, which is tried until the row has run out by itself, and tell the outcome."""
    limit = max(trust.remaining(local_time()), MIN_LIMIT)
    answer = store.claims.release(claim.tenure, limit, min_hold)
    answer.add_done_callback(lambda done: _conclude(done, store, claim, notifier))
    return answer


def _conclude(answer: asyncio.Future[ReleaseRow | None], store: Store, claim: Claim, notifier: Notifier) -> None:
    tenure = claim.tenure
    if answer.cancelled():
        problem = f"the event loop was closed; {RUNS_OUT}"
    elif (error := answer.exception()) is not None:
        problem = f"{describe(error)}; {RUNS_OUT}"
    elif (row := answer.result()) is not None:
        if row.shut_for is not None:
            store.let_others_first(tenure.key, row.shut_for)
        if notifier.wants(Released):
            held_for = local_time() - claim.trust.sent_at
            notifier.tell(Released(key=tenure.key, holder=tenure.holder, fence=tenure.fence, held_for=held_for))
        return
    else:
        problem = "the tenure was over before its release"
    tell_failed(claim, notifier, problem)


def tell_failed(claim: Claim, notifier: Notifier, problem: str) -> None:
    """Tell that the release was not confirmed, and why."""
    if notifier.wants(ReleaseFailed):
        tenure, held_for = claim.tenure, local_time() - claim.trust.sent_at
        notifier.tell(
            ReleaseFailed(key=tenure.key, holder=tenure.holder, fence=tenure.fence, held_for=held_for, error=problem)
        )
