"""The loss of a tenure, or its revocation, as it is raised and told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncpg_lease._clock import local_time
from asyncpg_lease._words import describe
from asyncpg_lease.errors import LeaseLostError, LossReason
from asyncpg_lease.events import Lost, Notifier, Revoked

if TYPE_CHECKING:
    from asyncpg_lease._claims import Claim
    from asyncpg_lease._tenure import Tenure

__all__ = ["loss", "tell_lost", "tell_revoked"]


def loss(tenure: Tenure, reason: LossReason, taken_by: str | None) -> LeaseLostError:
    """Return the error of a tenure that is lost."""
    return LeaseLostError(tenure.key, tenure.holder, tenure.fence, reason, taken_by=taken_by)


def tell_lost(claim: Claim, error: LeaseLostError, notifier: Notifier) -> None:
    """Tell of a loss; the error's cause is the last error of the database, if any."""
    if notifier.wants(Lost):
        cause = error.__cause__
        notifier.tell(
            Lost(
                key=error.key,
                holder=error.holder,
                fence=error.fence,
                reason=error.reason,
                held_for=local_time() - claim.trust.sent_at,
                taken_by=error.taken_by,
                error=None if cause is None else describe(cause),
            )
        )


def tell_revoked(tenure: Tenure, drain: float, notifier: Notifier) -> None:
    """Tell of a revocation whose body has `drain` seconds to end."""
    if notifier.wants(Revoked):
        notifier.tell(Revoked(key=tenure.key, holder=tenure.holder, fence=tenure.fence, drain=drain))
