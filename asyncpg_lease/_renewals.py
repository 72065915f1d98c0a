"""The one place that renewals pass, so that many leases share few statements and connections."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from asyncpg_lease._clock import local_time
from asyncpg_lease._driver import ask_again
from asyncpg_lease._jobs import Job, deliver, stint_for
from asyncpg_lease._rows import RenewRow, renew_rows
from asyncpg_lease._tasks import start_timer

if TYPE_CHECKING:
    from asyncpg_lease._driver import Connection
    from asyncpg_lease._pool import Connections
    from asyncpg_lease._statements import TableName
    from asyncpg_lease._tenure import Tenure

__all__ = ["Renewal", "Renewals"]

MAX_BATCH = 1000

PATIENCE = 1.0
"""Seconds for which the connection of a renewal is kept at least, however little time its lease has."""


class Renewal(NamedTuple):
    """What the server said of one tenure, and when it was asked (`local_time`)."""

    row: RenewRow
    sent_at: float


class _Request(NamedTuple):
    tenure: Tenure
    ttl: float
    shared: bool
    limit: float
    answer: asyncio.Future[Renewal]


class Renewals:
    """Collects renewals while they wait for a connection, and sends what has come by then in one statement.

    A statement that is under way holds nobody up: what comes after it goes out on another connection. So
    there is no interval to choose, and a batch grows exactly where connections are short.
    """

    def __init__(self, connections: Connections, name: TableName) -> None:
        self._connections = connections
        self._name = name
        self._waiting: deque[_Request] = deque()
        self._collecting = False

    def __repr__(self) -> str:
        return f"<Renewals on {self._name}, {len(self._waiting)} waiting>"

    async def renew(self, tenure: Tenure, *, ttl: float, shared: bool, limit: float) -> Renewal:
        """Renew one tenure; a cancelled call is not sent any more if it has not been yet.

        Raises:
            TimeoutError: no answer within `limit` seconds.
            Exception: what the driver raised; no evidence of a loss.
        """
        loop = self._connections.check_loop()
        answer: asyncio.Future[Renewal] = loop.create_future()
        request = _Request(tenure, ttl, shared, limit, answer)
        self._waiting.append(request)
        self._collect()
        timer = start_timer(limit, self._time_out, request)
        try:
            return await answer
        finally:
            timer.cancel()

    def _time_out(self, request: _Request) -> None:
        if any(waiting is request for waiting in self._waiting):
            msg = f"no connection for a renewal within {request.limit:.3f} s: {self._connections.state}"
        else:
            msg = f"no answer to the renewal within {request.limit:.3f} s"
        self._connections.fail(request.answer, TimeoutError(msg))

    def _collect(self) -> None:
        if self._waiting and not self._collecting:
            self._collecting = True
            batch: list[_Request] = []

            async def send(connection: Connection) -> None:
                batch.extend(self._take())
                if batch:
                    # Each request has a timer of its own: this bound is for a dead link, not for a slow server.
                    longest = max(PATIENCE, *(request.limit for request in batch))
                    job.settle()
                    job.bound(min(longest, stint_for(max(request.ttl for request in batch))))
                    await self._send(batch, connection)

            # Who gives up waiting asks again, and must not lose this place in the pool's queue by that.
            limit = 2 * max(request.limit for request in self._waiting)
            job = Job("a renewal", send, partial(self._fail, batch), limit, stint=limit)
            # Before claims that wait: a late renewal costs a job, a late claim a moment.
            self._connections.submit(job, urgent=True)

    async def _send(self, batch: list[_Request], connection: Connection) -> None:
        sent_at = local_time()
        rows = await ask_again(
            connection,
            self._name.statements.renew,
            [request.tenure.key for request in batch],
            [request.tenure.holder for request in batch],
            [str(request.tenure.fence) for request in batch],
            [repr(request.ttl) for request in batch],
            [str(request.shared) for request in batch],
        )
        for request, row in zip(batch, renew_rows(rows), strict=True):
            deliver(request.answer, Renewal(row, sent_at))

    def _fail(self, batch: list[_Request], error: BaseException) -> None:
        if not batch and isinstance(error, TimeoutError):
            # There was no connection within the time of those who asked first; others may have more.
            self._collecting = False
            self._waiting = deque(request for request in self._waiting if not request.answer.done())
            self._collect()
            return
        # Where no connection could be made those fail who waited for it.
        for request in batch or self._take():
            self._connections.fail(request.answer, error)

    def _take(self) -> list[_Request]:
        """Take who still waits, and let the next one to come start a statement of its own."""
        self._collecting = False
        batch: list[_Request] = []
        while self._waiting and len(batch) < MAX_BATCH:
            request = self._waiting.popleft()
            if not request.answer.done():
                batch.append(request)
        self._collect()
        return batch
