"""What foreign errors and values look like in events and in the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["describe", "said"]


def describe(error: BaseException) -> str:
    """Return an error's repr, or its type alone: a repr that raises must not harm whoever tells of the error."""
    try:
        return repr(error)
    # A repr may ask a future that was cancelled.
    except (Exception, asyncio.CancelledError):  # noqa: BLE001 - as said
        return f"{type(error).__name__}(...)"


def said(fields: Mapping[str, object]) -> str:
    """Return fields as the text of a log line, in which durations have three decimals."""
    return " ".join(f"{name}={_short(value)}" for name, value in fields.items())


def _short(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else repr(value)
