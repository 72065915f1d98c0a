"""Settings of a lease: folded and checked once, before any I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias, get_args

__all__ = [
    "Duration",
    "LeaseState",
    "OnLost",
    "Options",
    "check_advance",
    "check_fence",
    "check_flag",
    "check_limit",
    "check_name",
    "check_prefix",
    "check_state",
    "check_text",
    "fold_duration",
]

Duration: TypeAlias = float | timedelta
"""Seconds, or a timedelta."""

OnLost: TypeAlias = Literal["cancel", "flag"]
"""What a loss does to the body: cancel it, or only mark the lease as lost."""

LeaseState: TypeAlias = Literal["held", "resting", "free"]
"""The states of a row: held; released, but locked by its `min_hold`; released or run out."""

STATES: tuple[LeaseState, ...] = get_args(LeaseState)
MAX_ADVANCE = 2**40
MAX_TEXT_BYTES = 1024
MAX_NAME_BYTES = 63
MIN_TTL = 0.1
MAX_TTL = 365 * 86400.0


def check_text(name: str, value: object) -> str:
    """Return the value where it can be a key, holder or label.

    Raises:
        TypeError: it is no str.
        ValueError: it is empty, longer than 1,024 UTF-8 bytes, holds a NUL, or is not encodable.
    """
    text = check_prefix(name, value)
    if not text:
        msg = f"{name} must not be empty"
        raise ValueError(msg)
    return text


def check_prefix(name: str, value: object) -> str:
    """Return the value where it can be the beginning of a key: as a key, or empty."""
    if not isinstance(value, str):
        msg = f"{name} must be a str, not {type(value).__name__}"
        raise TypeError(msg)
    if "\0" in value:
        msg = f"{name} must not hold a NUL character, which PostgreSQL's text cannot: {value[:80]!r}"
        raise ValueError(msg)
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        msg = f"{name} must be encodable as UTF-8: {value[:80]!r} ({error.reason})"
        raise ValueError(msg) from None
    if size > MAX_TEXT_BYTES:
        msg = f"{name} must be at most {MAX_TEXT_BYTES} UTF-8 bytes; this one has {size}: {value[:40]!r}..."
        raise ValueError(msg)
    return value


def check_name(name: str, value: object) -> str:
    """Return the value where PostgreSQL takes it as an identifier without cutting it off."""
    text = check_text(name, value)
    size = len(text.encode())
    if size > MAX_NAME_BYTES:
        msg = f"{name} must be at most {MAX_NAME_BYTES} UTF-8 bytes, or PostgreSQL cuts it off; {text!r} has {size}"
        raise ValueError(msg)
    return text


def check_fence(value: object) -> None:
    """Refuse what can be no fence: it is an int from 1 to 2**63 - 1; None is nothing to refuse."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"fence must be an int or None, not {type(value).__name__}"
        raise TypeError(msg)
    if not 1 <= value < 2**63:
        msg = f"fence must be between 1 and {2**63 - 1}; it is {value}"
        raise ValueError(msg)


def check_flag(name: str, value: object) -> None:
    """Refuse what is no bool: "false" would pass for true."""
    if not isinstance(value, bool):
        msg = f"{name} must be a bool, not {type(value).__name__}"
        raise TypeError(msg)


def check_state(value: object) -> LeaseState | None:
    """Return the state of the keys to list, None for any."""
    if value is not None and not isinstance(value, str):
        msg = f"state must be a str or None, not {type(value).__name__}"
        raise TypeError(msg)
    if value is not None and value not in STATES:
        msg = f"state must be one of {', '.join(STATES)}, or None; it is {value!r}"
        raise ValueError(msg)
    return value


def check_limit(value: object) -> int | None:
    """Return the greatest number of rows to list, None for all."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"limit must be an int or None, not {type(value).__name__}"
        raise TypeError(msg)
    if not 1 <= value < 2**31:
        msg = f"limit must be between 1 and {2**31 - 1}; it is {value}"
        raise ValueError(msg)
    return value


def check_advance(value: object) -> int:
    """Return by how much fences are to be advanced."""
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"by must be an int, not {type(value).__name__}"
        raise TypeError(msg)
    if not 1 <= value <= MAX_ADVANCE:
        msg = f"by must be between 1 and {MAX_ADVANCE} (2**40); it is {value}"
        raise ValueError(msg)
    return value


def fold_duration(name: str, value: object, least: float, most: float) -> float:
    """Return the duration as seconds where it is a number or a timedelta from `least` to `most`."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            seconds = float(value)
        except OverflowError:
            seconds = math.inf if value > 0 else -math.inf
    else:
        msg = f"{name} must be seconds (int or float) or a timedelta, not {type(value).__name__}"
        raise TypeError(msg)
    # A NaN fails this comparison too.
    if not least <= seconds <= most:
        year = " (a year)" if most == MAX_TTL else ""
        msg = f"{name} must be between {least:,.10g} and {most:,.10g}{year} seconds; it is {seconds:,.10g}"
        raise ValueError(msg)
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The validated settings of one acquisition; all durations are float seconds."""

    ttl: float
    wait: float
    min_hold: float
    on_lost: OnLost
    label: str | None
    holder: str | None
    heartbeat: float
    grace: float
    drain: float

    @classmethod
    def fold(  # noqa: PLR0913 - each is an option of its own
        cls,
        *,
        ttl: Duration,
        wait: Duration = 0.0,
        min_hold: Duration,
        on_lost: OnLost,
        label: str | None,
        holder: str | None,
        heartbeat: Duration | None,
        grace: Duration | None,
        drain: Duration | None = None,
    ) -> Options:
        """Fold durations to seconds, fill in the defaults, and check every value and their sum.

        Raises:
            TypeError: a value of the wrong type.
            ValueError: a value out of its range, or 2 x heartbeat + grace not below the ttl.
        """
        seconds = fold_duration("ttl", ttl, MIN_TTL, MAX_TTL)
        folded = cls(
            ttl=seconds,
            wait=fold_duration("wait", wait, 0.0, math.inf),
            min_hold=fold_duration("min_hold", min_hold, 0.0, MAX_TTL),
            on_lost=_check_on_lost(on_lost),
            label=None if label is None else check_text("label", label),
            holder=None if holder is None else check_text("holder", holder),
            heartbeat=seconds / 3 if heartbeat is None else fold_duration("heartbeat", heartbeat, 0.01, MAX_TTL),
            grace=seconds / 10 if grace is None else fold_duration("grace", grace, 0.0, MAX_TTL),
            drain=seconds if drain is None else fold_duration("drain", drain, MIN_TTL, MAX_TTL),
        )
        if folded.label is not None and folded.holder is not None:
            msg = "label and holder exclude each other: an explicit holder is used as it is"
            raise ValueError(msg)
        needed = 2 * folded.heartbeat + folded.grace
        if needed >= folded.ttl:
            msg = (
                f"2 x heartbeat + grace must be below ttl, so that one missed renewal is no loss:"
                f" 2 x {folded.heartbeat:g} + {folded.grace:g} = {needed:g} s, ttl {folded.ttl:g} s;"
                " raise ttl, or lower heartbeat or grace"
            )
            raise ValueError(msg)
        return folded


def _check_on_lost(value: object) -> OnLost:
    if value == "cancel":
        return "cancel"
    if value == "flag":
        return "flag"
    msg = f'on_lost must be "cancel" or "flag", not {value!r}'
    raise ValueError(msg)
