"""The local clock: it decides trust, and nothing else."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["local_time"]


def _suspend_aware_clock() -> Callable[[], float]:
    """Choose a clock that goes on while the machine is suspended, as the server's does meanwhile.

    Linux stops CLOCK_MONOTONIC in suspend and has CLOCK_BOOTTIME; on macOS it is the other way round
    with Python's time.monotonic and CLOCK_MONOTONIC. Elsewhere time.monotonic is what there is.
    """
    if sys.platform == "linux":
        names = ("CLOCK_BOOTTIME",)
    elif sys.platform == "darwin":
        names = ("CLOCK_MONOTONIC",)
    else:
        names = ()
    for name in names:
        clock_id = getattr(time, name, None)
        if clock_id is None:
            continue
        try:
            time.clock_gettime(clock_id)
        except OSError:
            continue

        def read(clock_id: int = clock_id) -> float:
            return time.clock_gettime(clock_id)

        return read
    return time.monotonic


local_time = _suspend_aware_clock()
"""Seconds of the local clock; only differences mean anything."""
