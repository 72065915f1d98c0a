"""Other processes in a test: a coroutine function of a test module, run in an interpreter of its own.

The child reports by `emit(...)`, one JSON object a line; the parent awaits `event()`. What the parent
sends with `send()` the child awaits with `receive()`. A child that is stopped or killed is the point.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from tests.support.loops import run

Event = dict[str, object]

_ROOT = Path(__file__).parents[2]


class Child:
    """A child process as its parent sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    async def event(self, *, within: float = 30) -> Event:
        """Return the next event that the child emitted.

        Raises:
            TimeoutError: If none comes within that many seconds.
            EOFError: If the child has ended.
        """
        assert self._process.stdout is not None
        async with asyncio.timeout(within):
            line = await self._process.stdout.readline()
        if not line:
            message = f"the child {self.pid} has ended"
            raise EOFError(message)
        event: Event = json.loads(line)
        return event

    async def send(self, **fields: object) -> None:
        """Send the child an object, for its `receive()`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(fields).encode() + b"\n")
        await self._process.stdin.drain()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: SIGSTOP, SIGCONT, SIGKILL, SIGTERM, SIGINT."""
        self._process.send_signal(number)

    async def wait(self, *, within: float = 30) -> int:
        """Wait for the end and return the exit code."""
        async with asyncio.timeout(within):
            return await self._process.wait()

    async def end(self) -> None:
        """Kill the child if it still runs, and reap it."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


class Spawn(Protocol):
    """Starts children; see `spawning`."""

    async def __call__(self, function: Callable[..., Awaitable[None]], *arguments: object) -> Child:
        """Run a module-level coroutine function with JSON arguments in a new interpreter."""


@asynccontextmanager
async def spawning() -> AsyncIterator[Spawn]:
    """Yield a function that starts children; whatever still runs at the end is killed."""
    async with AsyncExitStack() as stack:

        async def spawn(function: Callable[..., Awaitable[None]], *arguments: object) -> Child:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                __name__,
                f"{function.__module__}:{function.__qualname__}",
                json.dumps(arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=_ROOT,
            )
            child = Child(process)
            stack.push_async_callback(child.end)
            return child

        yield spawn


# In the child ------------------------------------------------------------------------------------


def emit(**fields: object) -> None:
    """Report an event to the parent; `at` is added: `time.monotonic()`, the same clock for all processes."""
    os.write(sys.stdout.fileno(), json.dumps({"at": time.monotonic(), **fields}).encode() + b"\n")


async def receive() -> Event:
    """Wait for what the parent sends next.

    Raises:
        EOFError: If the parent is gone.
    """
    line = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        message = "the parent is gone"
        raise EOFError(message)
    event: Event = json.loads(line)
    return event


def _main() -> None:
    where, arguments = sys.argv[1:]
    module, _, name = where.partition(":")
    function = getattr(importlib.import_module(module), name)
    run(function(*json.loads(arguments)))


if __name__ == "__main__":
    _main()
