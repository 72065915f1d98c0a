"""What happens to leases, as frozen values, and who is told.

Each event goes to the log, always, and to an `Observer` where a table or a lease was given one. An observer
is called in the event loop, so it must be quick; one that raises is logged and harms nothing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from asyncpg_lease.errors import LossReason

__all__ = [
    "Acquired",
    "Event",
    "How",
    "Late",
    "Lost",
    "Notifier",
    "Observer",
    "ReleaseFailed",
    "Released",
    "RenewFailed",
    "Renewed",
    "Revoked",
    "Unavailable",
    "Waiting",
    "WaitingFailed",
]

logger: logging.Logger = logging.getLogger("asyncpg_lease")


How: TypeAlias = Literal["fresh", "taken_over", "joined"]
"""How a claim was granted: on a new key, over a tenure that is over, or into a live tenure of the same holder."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Event:
    """Base of all events; durations are seconds.

    Attributes:
        key: the key it is about.
        holder: whose lease, claim or release it is about.
    """

    level: ClassVar[int] = logging.INFO
    message: ClassVar[str] = "lease event"

    key: str
    holder: str

    # Once for all kinds: generated ones would be half of what importing this library costs.
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({said})"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Acquired(Event):
    """A claim was granted. `how`: see `How`; taken over from `before`; `waited` since the call."""

    message: ClassVar[str] = "lease acquired"

    fence: int
    how: How
    waited: float
    before: str | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Unavailable(Event):
    """A claim found an incumbent (None where a race hid it), whose row has `retry_after` seconds left."""

    level: ClassVar[int] = logging.DEBUG
    message: ClassVar[str] = "lease unavailable"

    incumbent: str | None
    incumbent_fence: int | None
    retry_after: float | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Waiting(Event):
    """The call found the key taken and waits for it, for `wait` seconds at most. Once a call."""

    message: ClassVar[str] = "waiting for lease"

    incumbent: str | None
    incumbent_fence: int | None
    wait: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WaitingFailed(Event):
    """A try of a waiting call failed with an error that a later try may not meet; `waited` since the call."""

    level: ClassVar[int] = logging.WARNING
    message: ClassVar[str] = "claim failed, still waiting for lease"

    waited: float
    error: str


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Renewed(Event):
    """The server confirmed a renewal, which took `took`; `remaining` is the trust left now."""

    level: ClassVar[int] = logging.DEBUG
    message: ClassVar[str] = "lease renewed"

    fence: int
    remaining: float
    took: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RenewFailed(Event):
    """A renewal failed and is tried again while there is trust left: no evidence of anything yet."""

    level: ClassVar[int] = logging.WARNING
    message: ClassVar[str] = "lease renewal failed, trying again"

    fence: int
    remaining: float
    error: str


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Late(Event):
    """The event loop stood still for `blocked` seconds; `remaining` is the trust left."""

    level: ClassVar[int] = logging.WARNING
    message: ClassVar[str] = "event loop was blocked while a lease was held"

    fence: int
    blocked: float
    remaining: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Revoked(Event):
    """An operator asks to give the key up: the body is told to end, and has `drain` for it while renewals go on."""

    level: ClassVar[int] = logging.WARNING
    message: ClassVar[str] = "lease revoked, waiting for its body to end"

    fence: int
    drain: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Lost(Event):
    """The lease is lost, `held_for` after its claim was sent: also where a revoked body did not end within `drain`."""

    level: ClassVar[int] = logging.ERROR
    message: ClassVar[str] = "lease lost"

    fence: int
    reason: LossReason
    held_for: float
    taken_by: str | None
    error: str | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Released(Event):
    """The release was confirmed; `held_for` is the time since the claim was sent."""

    message: ClassVar[str] = "lease released"

    fence: int
    held_for: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ReleaseFailed(Event):
    """The release was not confirmed: the row runs out by itself, or the tenure was over already."""

    level: ClassVar[int] = logging.WARNING
    message: ClassVar[str] = "lease not released, its ttl will end it"

    fence: int
    held_for: float
    error: str


class Observer(Protocol):
    """Whoever wants to know: anything that can be called with an event."""

    def __call__(self, event: Event, /) -> None:
        """Take note of the event, quickly: it is called in the event loop."""


class Notifier:
    """Tells the log and the observers; built without observers it costs a level check."""

    __slots__ = ("_observers",)

    def __init__(self, *observers: Observer | None) -> None:
        self._observers = tuple(observer for observer in observers if observer is not None)

    def __repr__(self) -> str:
        """Name the observers."""
        return f"<Notifier {self._observers!r}>"

    def plus(self, observer: Observer | None) -> Notifier:
        """Return a notifier that tells one more observer."""
        return self if observer is None else Notifier(*self._observers, observer)

    def wants(self, kind: type[Event]) -> bool:
        """Tell whether an event of this kind is worth making."""
        return bool(self._observers) or logger.isEnabledFor(kind.level)

    def tell(self, event: Event) -> None:
        """Log the event, then call each observer; whatever either raises harms nothing.

        KeyboardInterrupt and SystemExit come out, of the event loop's next turn.
        """
        for tell in (self._log, *self._observers):
            try:
                tell(event)
            except (KeyboardInterrupt, SystemExit) as error:
                _raise_later(error)
            # A CancelledError too: it would pass for a cancellation of whoever tells.
            except BaseException as error:  # noqa: BLE001 - as said
                _complain(event, tell, error)

    @staticmethod
    def _log(event: Event) -> None:
        if logger.isEnabledFor(event.level):
            values = vars(event)
            said = " ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
            extra = {f"lease_{name}": value for name, value in values.items()}
            # What groups records by their template finds one for each kind of event.
            template = f"{event.message}: %s"
            # The values also in the text: at three in the morning nobody has set up a formatter for `extra`.
            logger.log(event.level, template, said, extra=extra)


def _complain(event: Event, told: Observer, error: BaseException) -> None:
    extra = {"lease_key": event.key, "lease_observer": repr(told)}
    # Logging itself may be what failed.
    with suppress(Exception):
        logger.error("lease observer failed", extra=extra, exc_info=error)


def _raise_later(error: BaseException) -> None:
    def throw() -> None:
        raise error

    asyncio.get_running_loop().call_soon(throw)
