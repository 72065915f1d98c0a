"""Somebody who is told of events, whatever he does: an observer, or the log.

Of an observer nothing but its call runs where an event is told. Its repr may raise, or wait for a lock that its call
holds; so what the log calls it is made once, beforehand, and without it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from asyncpg_lease._words import said

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

__all__ = ["Callee", "Listener", "Told", "identity_of", "label_of", "why_unfit"]

logger: logging.Logger = logging.getLogger("asyncpg_lease")

ENDS = (KeyboardInterrupt, SystemExit)
"""What is meant for the program."""


class Told(Protocol):
    """What a listener is told: an event."""

    @property
    def key(self) -> str:
        """The key that it is about."""


Callee: TypeAlias = Callable[[Any], object]


class Listener:
    """Somebody who is told; what he raises is logged and harms nobody, and neither does a log that raises."""

    __slots__ = ("_callee", "_has_ended", "label")

    def __init__(self, callee: Callee, label: str) -> None:
        self._callee = callee
        self.label = label
        self._has_ended = False

    def __repr__(self) -> str:
        return f"<Listener {self.label}>"

    def tell(self, event: Told, loop: asyncio.AbstractEventLoop | None) -> None:
        """Tell of an event.

        The first KeyboardInterrupt or SystemExit comes out of the loop's next turn, where it has one.
        """
        try:
            self._callee(event)
        except ENDS as error:
            if not self._end(error, loop):
                self.complain(event, error, loop)
        # A CancelledError too: it would pass for a cancellation of whoever tells.
        except BaseException as error:  # noqa: BLE001 - as said
            self.complain(event, error, loop)

    def complain(self, event: Told, error: BaseException, loop: asyncio.AbstractEventLoop | None) -> None:
        """Log that he was not told of an event, or not in full."""
        self.say(logging.ERROR, "lease observer failed", {"key": event.key}, loop, error)

    def say(
        self,
        level: int,
        message: str,
        fields: Mapping[str, object],
        loop: asyncio.AbstractEventLoop | None,
        error: BaseException | None = None,
    ) -> None:
        """Log something about him."""
        values = {"observer": self.label, **fields}
        try:
            extra = {f"lease_{name}": value for name, value in values.items()}
            logger.log(level, f"{message}: %s", said(values), extra=extra, exc_info=error)  # noqa: G004 - one for each message
        except ENDS as end:
            self._end(end, loop)
        except BaseException:  # noqa: BLE001, S110 - it is the log that failed, so there is nobody left to tell
            pass

    def _end(self, error: BaseException, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Raise it in the loop, once: a second one would cut off the clean-up that the first one began."""

        def throw() -> None:
            raise error

        if loop is not None and not self._has_ended:
            # It may be closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(throw)
                self._has_ended = True
                return True
        return False


def label_of(observer: object) -> str:
    """Return what the log calls an observer; runs none of its code."""
    kind = type(observer)
    if kind is MethodType:
        return label_of(observer.__func__)  # type: ignore[attr-defined]
    if kind is FunctionType or kind is BuiltinMethodType:
        module: object = observer.__module__
        name: str = observer.__qualname__  # type: ignore[attr-defined]
        return f"{module}.{name}" if type(module) is str else name
    return object.__repr__(observer)


def identity_of(observer: Callee) -> tuple[int, object]:
    """Return what two looks at one method have in common: each makes another object."""
    if isinstance(observer, MethodType):
        return id(observer.__self__), id(observer.__func__)
    if isinstance(observer, BuiltinMethodType):
        return id(observer.__self__), observer.__name__
    return id(observer), None


def why_unfit(observer: object) -> str | None:
    """Tell why something can be no observer, as the end of a sentence; None where it can."""
    if not callable(observer):
        return f"not {type(observer).__name__}"
    if isinstance(observer, type):
        return f"and {observer.__name__} is a class: pass an instance of it"
    while isinstance(observer, partial):
        observer = observer.func
    calls = observer, type(observer).__call__
    if any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in calls):
        return (
            "in a thread, where nothing can be awaited: pass a function that is not async, from which"
            " loop.call_soon_threadsafe() leads to the event loop"
        )
    return None
