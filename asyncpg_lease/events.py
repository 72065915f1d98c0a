"""What happens to leases, as frozen values, and who is told.

Each event goes to the log, always, and to each `Observer` that a table or a lease was given. Observers are called
in threads of this library's own, never in the event loop: one that raises or blocks is logged and harms nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias, cast
from weakref import WeakSet

from asyncpg_lease._delivery import delivery_to, running_loop, settle
from asyncpg_lease._listener import Listener, why_unfit
from asyncpg_lease._words import said

if TYPE_CHECKING:
    from asyncpg_lease._delivery import Delivery
    from asyncpg_lease.errors import LossReason

__all__ = [
    "Acquired",
    "Event",
    "How",
    "Late",
    "Lost",
    "Notifier",
    "Observer",
    "Observers",
    "ReleaseFailed",
    "Released",
    "RenewFailed",
    "Renewed",
    "Revoked",
    "Unavailable",
    "Waiting",
    "WaitingFailed",
    "fold_observers",
]

logger: logging.Logger = logging.getLogger("asyncpg_lease")


How: TypeAlias = Literal["free", "taken_over", "joined"]
"""How a claim was granted.

``free``: on a new key, or on one that was released in order. ``taken_over``: over a tenure that ran out or was ended
by force. ``joined``: into a live tenure of the same holder.
"""


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
    """The call waits for the key, at most `wait` seconds; once a call. No incumbent where it lets others go first."""

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
    """The release was not confirmed; `error` says why, and where so that the row runs out by itself."""

    level: ClassVar[int] = logging.WARNING
    message: ClassVar[str] = "lease not released"

    fence: int
    held_for: float
    error: str


class Observer(Protocol):
    """Whoever wants to know: anything that can be called with an event.

    Guaranteed: whatever tables and leases an observer was given to, it is told of one event at a time, each once, in
    the order in which they happened to its event loop. What it raises is logged and harms neither the next event nor
    another observer; its first KeyboardInterrupt or SystemExit comes out of the event loop. Not guaranteed: when. It is
    called in a thread of this library's while the loop goes on, so the lease may be over when its event is told. A slow
    observer is logged; where 10,000 events wait for it the next ones are dropped, and their number is logged.
    `LeaseTable.aclose` and the interpreter's exit wait for what is not told yet, for a second at most.

    To reach the event loop from an observer, use `loop.call_soon_threadsafe`.
    """

    def __call__(self, event: Event, /) -> None:
        """Take note of the event."""


Observers: TypeAlias = Observer | Sequence[Observer]
"""What `observer=` takes: one observer, or a list or tuple of them. One that is given twice is told once."""


def fold_observers(value: object) -> tuple[Observer, ...]:
    """Return the observers, none for None.

    Raises:
        TypeError: one of them could only fail when the first event comes.
    """
    if value is None:
        return ()
    if isinstance(value, (list, tuple)):
        return tuple(_check(f"observer[{index}]", each) for index, each in enumerate(value))
    return (_check("observer", value),)


def _check(name: str, value: object) -> Observer:
    if (why := why_unfit(value)) is not None:
        many = " (or a list or tuple of such, or None)" if name == "observer" else ""
        msg = f"{name} must be callable with an event{many}, {why}"
        raise TypeError(msg)
    return cast("Observer", value)


class Notifier:
    """Tells the log, then the observers; built without observers it costs a level check."""

    __slots__ = ("_all", "_deliveries", "_log")

    def __init__(self, *observers: Observer) -> None:
        self._deliveries: tuple[Delivery, ...] = ()
        self._all: WeakSet[Delivery] = WeakSet()
        self._log = Listener(_log, "the log")
        self._add(observers)

    def __repr__(self) -> str:
        """Name the observers."""
        return f"<Notifier {[delivery.label for delivery in self._deliveries]}>"

    def plus(self, observers: Sequence[Observer]) -> Notifier:
        """Return a notifier that tells these observers too."""
        if not observers:
            return self
        more = Notifier()
        more._deliveries, more._all, more._log = self._deliveries, self._all, self._log
        more._add(observers)
        return more

    def _add(self, observers: Sequence[Observer]) -> None:
        self._deliveries = tuple(dict.fromkeys((*self._deliveries, *map(delivery_to, observers))))
        self._all.update(self._deliveries)

    def wants(self, kind: type[Event]) -> bool:
        """Tell whether an event of this kind is worth making."""
        return bool(self._deliveries) or logger.isEnabledFor(kind.level)

    def tell(self, event: Event) -> None:
        """Log the event, then hand it over to each observer; whatever either raises harms nothing.

        KeyboardInterrupt and SystemExit come out, of the event loop's next turn, the first of each teller.
        """
        self._log.tell(event, running_loop())
        for delivery in self._deliveries:
            delivery.hand_over(event)

    async def settle(self, limit: float) -> None:
        """Wait until the observers, those of `plus` too, have been told, at most `limit` seconds."""
        await settle(self._all, limit)


def _log(event: Event) -> None:
    if logger.isEnabledFor(event.level):
        values = vars(event)
        told = {name: value for name, value in values.items() if value is not None}
        extra = {f"lease_{name}": value for name, value in values.items()}
        # What groups records by their template finds one for each kind of event.
        template = f"{event.message}: %s"
        # The values also in the text: at three in the morning nobody has set up a formatter for `extra`.
        logger.log(event.level, template, said(told), extra=extra)
