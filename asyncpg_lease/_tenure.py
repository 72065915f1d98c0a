"""The arithmetic of trust, pure: every function takes the time it is asked about."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Tenure", "Trust"]


class Tenure(NamedTuple):
    """One holding of a key, from claim to release or loss: what every statement on it is scoped by."""

    key: str
    holder: str
    fence: int


class Trust(NamedTuple):
    """How long one tenure may be believed in without hearing from the server again.

    The server reckons the ttl from when it runs a statement, the client from before it sent it; so the
    client's reckoning ends first, whatever the network did in between. All times are `local_time` seconds.

    Attributes:
        sent_at: just before the first byte of the last confirmed claim or renewal was sent.
        ttl: seconds the server was asked for.
        heartbeat: seconds from one sending to when the next renewal is due.
        grace: seconds before `trusted_until` at which the holder is told to stop.
    """

    sent_at: float
    ttl: float
    heartbeat: float
    grace: float

    @property
    def trusted_until(self) -> float:
        """The server lets nobody else in before this."""
        return self.sent_at + self.ttl

    @property
    def deadline(self) -> float:
        """When the lease is given up unless a renewal was confirmed."""
        return self.sent_at + self.ttl - self.grace

    @property
    def beat_at(self) -> float:
        """When the next renewal is due."""
        return self.sent_at + self.heartbeat

    @property
    def stall_limit(self) -> float:
        """Lateness of the loop, in seconds, from which on a missed deadline is the loop's doing.

        Half of the time in which a renewal could have been made.
        """
        return (self.ttl - self.grace - self.heartbeat) / 2

    @property
    def late_limit(self) -> float:
        """Lateness of the loop, in seconds, that is worth a warning: a tenth of the ttl."""
        return self.ttl / 10

    def is_over(self, now: float) -> bool:
        """Tell whether the lease must be given up."""
        return now >= self.deadline

    def remaining(self, now: float) -> float:
        """Return the seconds of trust left, 0.0 at the least."""
        return max(self.trusted_until - now, 0.0)

    def patience(self, now: float) -> float:
        """Return for how many seconds one renewal may go unanswered: half of the time that is left.

        Halving leaves time for another try, on another connection, however late the first one hangs.
        """
        return max((self.deadline - now) / 2, 0.0)

    def renewed(self, sent_at: float) -> Trust:
        """Return the trust after a renewal; an answer that overtook a newer one changes nothing."""
        return self if sent_at <= self.sent_at else self._replace(sent_at=sent_at)
