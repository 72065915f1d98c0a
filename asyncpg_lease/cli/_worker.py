"""One worker process of the demo: competes for the lease, and works for as long as it has it.

It is told what to do by JSON on the first line of stdin, and says what happens by JSON lines on stdout.
A further line of stdin asks it to finish its job; it ends when stdin does, so that no worker outlives
the demo.
"""

import asyncio
import json
import logging
import math
import os
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime

import asyncpg

from asyncpg_lease import Event, Lease, LeaseLostError, LeaseTable, lease
from asyncpg_lease.cli._ledger import Ledger
from asyncpg_lease.events import Renewed

KEY = "nightly-report"
_STEP = 0.1
_POLL = 0.2
# Longer than any poll: the worker that handed over is not the one that takes the lease again.
_REST = 1.0
_END_TIMEOUT = 3.0
_EOF_TIMEOUT = 0.5
_DATABASE_ERRORS = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@dataclass(frozen=True, slots=True)
class Order:
    """What the demo tells a worker."""

    name: str
    dsn: str
    schema: str
    ttl: float
    fenced: bool

    def to_line(self) -> bytes:
        """Write it as one line for the worker's stdin."""
        return json.dumps(asdict(self)).encode() + b"\n"


class _Worker:
    """Competes for the key until it is cancelled."""

    def __init__(self, order: Order, table: LeaseTable, ledger: Ledger, finish: asyncio.Event) -> None:
        self._order = order
        self._table = table
        self._ledger = ledger
        self._finish = finish
        self._renewed = False

    async def compete(self) -> None:
        while True:
            try:
                await self._hold_once()
            except LeaseLostError as error:
                _say("lost", fence=error.fence, text=error.reason)

    async def _hold_once(self) -> None:
        order = self._order
        async with lease(
            self._table, KEY, ttl=order.ttl, wait=math.inf, label=order.name, observer=self._observe
        ) as held:
            self._finish.clear()
            expires_in = (held.expires_at - held.acquired_at).total_seconds()
            _say_held("acquired", held, held.acquired_at, held.expires_at, expires_in)
            await self._job(held)
        _say("released", fence=held.fence)
        await asyncio.sleep(_REST)

    def _observe(self, event: Event) -> None:
        if isinstance(event, Renewed):
            self._renewed = True

    async def _job(self, held: Lease) -> None:
        while not self._finish.is_set():
            step = asyncio.create_task(self._step(held), name="step")
            try:
                await asyncio.shield(step)
            finally:
                # What has been started comes to its end, cancelled or not: so do requests to other
                # systems, and so there are late writes, which only the fence can refuse.
                await step
            if self._renewed:
                self._renewed = False
                await self._report_renewal(held)

    async def _report_renewal(self, held: Lease) -> None:
        with suppress(*_DATABASE_ERRORS):
            row = await self._table.get(KEY)
            if row is not None and row.fence == held.fence:
                _say_held("renewed", held, row.acquired_at, row.expires_at, row.expires_in)

    async def _step(self, held: Lease) -> None:
        await asyncio.sleep(_STEP)  # Stands for the work.
        try:
            accepted, at = await self._ledger.write(self._order.name, held.fence)
        except _DATABASE_ERRORS as error:
            _say("failed", fence=held.fence, left=held.remaining, text=type(error).__name__)
        else:
            _say("wrote" if accepted else "refused", fence=held.fence, left=held.remaining, at=at.isoformat())


class _EventHandler(logging.Handler):
    """Passes the library's warnings to the demo."""

    def emit(self, record: logging.LogRecord) -> None:
        # Without the values, most of which the demo prints anyway.
        _say("logged", text=record.getMessage().partition(":")[0])


def _say_held(kind: str, held: Lease, acquired_at: datetime, expires_at: datetime, expires_in: float) -> None:
    _say(
        kind,
        fence=held.fence,
        holder=held.holder,
        left=held.remaining,
        expires_in=expires_in,
        acquired_at=acquired_at.isoformat(),
        expires_at=expires_at.isoformat(),
    )


def _say(kind: str, **fields: object) -> None:
    # Unbuffered, since a line that kill -9 keeps back would be missing in the records. Where nobody
    # listens any more stdin has ended too, and that ends the worker.
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), json.dumps({"kind": kind, **fields}).encode() + b"\n")


async def _listen(requests: asyncio.StreamReader, finish: asyncio.Event) -> None:
    async for _ in requests:
        finish.set()


async def _open_stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _serve(order: Order, finish: asyncio.Event) -> None:
    async with asyncpg.create_pool(order.dsn, min_size=1, max_size=2, statement_cache_size=0) as pool:
        table = LeaseTable(pool, schema=order.schema, poll=_POLL)
        try:
            await _Worker(order, table, Ledger(pool, order.schema, fenced=order.fenced), finish).compete()
        finally:
            await table.aclose()


async def _main() -> None:
    requests = await _open_stdin()
    line = await requests.readline()
    if not line:
        return
    order = Order(**json.loads(line))
    finish = asyncio.Event()
    serving = asyncio.create_task(_serve(order, finish), name="serve")
    listening = asyncio.create_task(_listen(requests, finish), name="listen")
    await asyncio.wait((serving, listening), return_when=asyncio.FIRST_COMPLETED)
    # Where the demo was killed its server goes too: a failure then means nothing, but can be seen first.
    await asyncio.wait((listening,), timeout=_EOF_TIMEOUT if serving.done() else None)
    if not listening.done():
        listening.cancel()
        serving.result()
    # Leaving is bounded by itself; this is for whatever is not.
    asyncio.get_running_loop().call_later(_END_TIMEOUT, os._exit, 1)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


if __name__ == "__main__":
    logging.getLogger("asyncpg_lease").addHandler(_EventHandler(logging.WARNING))
    # The driver's traces of a server that is away add nothing: each write that fails is an event.
    logging.getLogger("asyncpg").addHandler(logging.NullHandler())
    try:
        asyncio.run(_main())
    except Exception as error:
        # A live screen hides the traceback; this goes with what is left of it.
        _say("logged", text=f"{type(error).__name__}: {error}")
        raise
