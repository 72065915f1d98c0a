"""The demo's worker processes, as the demo sees them: what it does to them and what they say."""

import asyncio
import json
import signal
import sys
import time
from dataclasses import dataclass, replace
from datetime import datetime
from types import TracebackType
from typing import Self, cast

from asyncpg_lease.cli._worker import Order

_END_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a worker said, or that was done to it.

    `moment` is when it was heard, on the local monotonic clock; fence 0 means that it is about none.
    `left` is the holder's own trust in seconds, `expires_in` the server's time until the expiry,
    `at` when a write was made, in the server's time.
    """

    moment: float
    worker: str
    kind: str
    fence: int = 0
    holder: str = ""
    left: float | None = None
    expires_in: float = 0
    acquired_at: datetime | None = None
    expires_at: datetime | None = None
    at: datetime | None = None
    text: str = ""


class Crew:
    """Worker processes by name; leaving the block ends every one of them.

    Args:
        order: what each worker is told; its name is filled in.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._listeners: list[asyncio.Task[None]] = []
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def __repr__(self) -> str:
        return f"<Crew {' '.join(self._processes)}>"

    async def hire(self, name: str) -> None:
        """Start a worker of this name."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "asyncpg_lease.cli._worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # A group of its own in our session: Ctrl-C of the terminal goes to us alone; and where we are
            # killed while a worker is stopped, the system ends that group (it is orphaned and stopped).
            process_group=0,
        )
        self._processes[name] = process
        _stdin(process).write(replace(self._order, name=name).to_line())
        self._listeners.append(asyncio.create_task(self._listen(name, process), name=f"listen:{name}"))
        self.report(name, kind="hired")

    def kill(self, name: str) -> None:
        """End a worker as kill -9 does."""
        self._processes.pop(name).kill()
        self.report(name, kind="killed")

    def pause(self, name: str) -> None:
        """Stop a worker where it stands."""
        self._processes[name].send_signal(signal.SIGSTOP)
        self.report(name, kind="paused")

    def resume(self, name: str) -> None:
        """Let a paused worker go on."""
        self._processes[name].send_signal(signal.SIGCONT)
        self.report(name, kind="resumed")

    def ask_to_finish(self, name: str) -> None:
        """Ask a worker to come to the end of its job."""
        _stdin(self._processes[name]).write(b"finish\n")

    def report(self, worker: str = "", *, kind: str, text: str = "") -> None:
        """Add an event of the demo's own to what the workers say."""
        self._events.put_nowait(Event(time.monotonic(), worker, kind, text=text))

    async def next_event(self) -> Event:
        """Wait for what is said next."""
        return await self._events.get()

    async def dismiss(self) -> list[Event]:
        """Let every worker end in order, and return what was said until then."""
        for process in self._processes.values():
            _stdin(process).close()
        async with asyncio.timeout(_END_TIMEOUT):
            await asyncio.gather(*self._listeners)
        return [self._events.get_nowait() for _ in range(self._events.qsize())]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        # Each ends when its worker has: see _listen.
        await asyncio.gather(*self._listeners, return_exceptions=True)

    async def _listen(self, name: str, process: asyncio.subprocess.Process) -> None:
        async for line in cast("asyncio.StreamReader", process.stdout):
            self._events.put_nowait(_parse(name, line))
        status = await process.wait()
        self.report(name, kind="ended", text=f"status {status}")


def _stdin(process: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    return cast("asyncio.StreamWriter", process.stdin)


def _parse(name: str, line: bytes) -> Event:
    said = json.loads(line)
    for field in ("acquired_at", "expires_at", "at"):
        if field in said:
            said[field] = datetime.fromisoformat(said[field])
    return Event(time.monotonic(), name, **said)
