"""The kinds of event loop that the suite runs on; the environment says which one, to every process of a run."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

VARIABLE = "ASYNCPG_LEASE_TEST_LOOP"
EARLY = 0.01
"""How many seconds a timer may fire before its time: uvloop counts whole milliseconds, and begins with one of them."""
_EAGER: Any = getattr(asyncio, "eager_task_factory", None)


def _eager() -> asyncio.AbstractEventLoop:
    """Return asyncio's own loop; a task runs up to its first wait while it is being made."""
    if _EAGER is None:
        message = "eager tasks came with Python 3.12"
        raise RuntimeError(message)
    loop = asyncio.new_event_loop()
    loop.set_task_factory(_EAGER)
    return loop


def _uvloop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    return loop


LOOPS: Mapping[str, LoopFactory] = {"asyncio": asyncio.new_event_loop, "uvloop": _uvloop, "eager": _eager}


def chosen_factory() -> LoopFactory:
    """Return what makes an event loop of the run's kind."""
    return LOOPS[os.environ.get(VARIABLE, "asyncio")]


def run(coroutine: Coroutine[object, object, T]) -> T:
    """Run a coroutine on a loop of its own and leave the thread's current loop alone."""
    with asyncio.Runner(loop_factory=chosen_factory()) as runner:
        return runner.run(coroutine)


def kind_of(loop: asyncio.AbstractEventLoop) -> str:
    """Name the kind that a running loop is of, by what it is and not by what was asked for."""
    if _EAGER is not None and loop.get_task_factory() is _EAGER:
        return "eager"
    return type(loop).__module__.partition(".")[0]
