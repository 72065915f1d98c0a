"""Claims and releases: each in a task of its own, which ends by itself and leaves nothing claimed behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from asyncpg_lease._clock import local_time
from asyncpg_lease._pool import RETRIED, deliver, fetch_again, may_have_been_done
from asyncpg_lease._statements import ClaimRow, claim_row
from asyncpg_lease._tasks import load_backend, wait_shielded
from asyncpg_lease._tenure import Tenure, Trust
from asyncpg_lease.errors import LeaseTableError

if TYPE_CHECKING:
    from asyncpg_lease._pool import Connection, Connections
    from asyncpg_lease._statements import TableName

__all__ = ["Claim", "ClaimRequest", "Claims"]

GIVE_BACK_LIMIT = 1.0
"""Seconds for which a cancelled acquire, half for which a failed one, waits for its claim to be given back."""

SHUTDOWN_LIMIT = 2.0
"""Seconds for giving back once the event loop is being closed."""

CONTESTED_TRIES = 3
FIRST_PAUSE = 0.05
MAX_PAUSE = 1.0
MIN_LIMIT = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What is asked for; `explicit` where the holder is the user's own name for it."""

    key: str
    holder: str
    explicit: bool
    ttl: float
    heartbeat: float
    grace: float


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that was granted, and the trust that it begins with."""

    row: ClaimRow
    tenure: Tenure
    trust: Trust

    @property
    def began(self) -> bool:
        """Whether it began its tenure: a joined one is another handle's to release."""
        return self.row.how != "joined"


class Claims:
    """Claims and releases on one table."""

    def __init__(self, connections: Connections, name: TableName) -> None:
        self._connections = connections
        self._name = name
        self.closing = False

    def __repr__(self) -> str:
        return f"<Claims on {self._name}>"

    async def claim(self, request: ClaimRequest, limit: float) -> Claim | ClaimRow | None:
        """Try once, for at most `limit` seconds, the wait for a connection included.

        Whatever ends it early, a claim that the server may have granted is given back: before this
        returns, as far as a second allows, and after that by the task that ran it.

        Returns:
            The claim, or else the row of who has the key, or None where a race hid that.

        Raises:
            TimeoutError: no connection or no answer in time.
            RuntimeError: the table is closed, or this is not its pool's event loop.
            LeaseTableError: as its message says.
            Exception: what the driver raised.
        """
        if self.closing:
            msg = f"lease table {self._name} is closed: nothing can be acquired after aclose()"
            raise RuntimeError(msg)
        load_backend()
        loop = self._connections.check_loop()
        answer: asyncio.Future[Claim | ClaimRow | None] = loop.create_future()
        attempt = _Attempt(request, answer)
        task = self._connections.tasks.start(self._run(attempt, limit), f"claim:{request.key}")
        timer = loop.call_later(limit, self._time_out, attempt, limit)
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None and isinstance(claim := answer.result(), Claim):
                # It was granted in the very turn in which this task was cancelled.
                if claim.began:
                    await wait_shielded([self.release(claim.tenure, request.ttl)], GIVE_BACK_LIMIT)
            else:
                if not attempt.sent:
                    task.cancel()
                await wait_shielded([task], GIVE_BACK_LIMIT)
            raise
        except Exception:
            if attempt.owed and (cancelled := await wait_shielded([task], GIVE_BACK_LIMIT / 2)):
                raise cancelled from None
            raise
        finally:
            timer.cancel()

    def release(self, tenure: Tenure, limit: float, min_hold: float = 0.0) -> asyncio.Future[bool]:
        """Start a release, tried again for at most `limit` seconds where the server is not reached.

        Returns:
            Whether the tenure was live and is released now; or the last error. Nobody needs to
            wait for it: it goes on by itself.
        """
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_take_note)
        expiry = _Expiry(tenure.key, tenure.holder, tenure.fence, min_hold, local_time() + limit)
        self._connections.tasks.start(self._expire(expiry, answer), f"release:{tenure.key}")
        return answer

    def _time_out(self, attempt: _Attempt, limit: float) -> None:
        request = attempt.request
        what = "the server did not answer" if attempt.sent else "no connection was to be had"
        msg = f"{what} within {limit:.3f} s to the claim of {request.key!r} by {request.holder!r}"
        self._connections.fail(attempt.answer, TimeoutError(msg))

    async def _run(self, attempt: _Attempt, limit: float) -> None:
        """Claim, hand the claim over, and give back what nobody took or heard of."""
        request = attempt.request
        owed: _Expiry | None = None
        try:
            # Past its ttl after it was sent a claim is worth nothing; until then the statement may go on,
            # so that what it claimed can be given back.
            async with self._connections.borrow(limit, request.ttl) as connection:
                owed = await self._claim_on(connection, attempt)
                if owed is not None:
                    # On its own connection a give-back cannot overtake the claim; and another one
                    # may not be had.
                    attempt.owed = True
                    await _expire_on(connection, self._name.statements.release, owed)
                    owed = None
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self._connections.fail(attempt.answer, error)
            if owed is not None and isinstance(error, asyncio.CancelledError):
                owed = owed.until_shutdown()
        if owed is not None:
            answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(_take_note)
            await self._expire(owed, answer)

    async def _claim_on(self, connection: Connection, attempt: _Attempt) -> _Expiry | None:
        """Claim on this connection; return what has to be given back."""
        request = attempt.request
        contested = 0
        while not attempt.answer.done():
            attempt.sent = True
            sent_at = local_time()
            sql = self._name.statements.claim
            try:
                rows = await fetch_again(connection, sql, request.key, request.holder, request.ttl)
            except RETRIED:
                deliver(attempt.answer, None)
                return None
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                return self._unheard(attempt, error, sent_at)
            answer = claim_row(tuple(rows[0])) if rows else None
            if answer is not None and answer.how is not None:
                return self._granted(answer, sent_at, attempt)
            contested += 1
            if contested > CONTESTED_TRIES or not _is_contested(answer, request.holder):
                deliver(attempt.answer, answer)
                return None
        return None

    def _unheard(self, attempt: _Attempt, error: BaseException, sent_at: float) -> _Expiry | None:
        """Return the give-back of a claim whose answer was lost: of whichever fence it got.

        Not for an explicit holder: the tenure may be another handle's, and its body at work. Such a
        row is for the same holder to join, or runs out.
        """
        request = attempt.request
        owed = None
        if may_have_been_done(error) and not request.explicit:
            attempt.owed = True
            owed = _Expiry(request.key, request.holder, None, 0.0, sent_at + request.ttl)
            if isinstance(error, asyncio.CancelledError):
                owed = owed.until_shutdown()
        self._connections.fail(attempt.answer, error)
        return owed

    def _granted(self, row: ClaimRow, sent_at: float, attempt: _Attempt) -> _Expiry | None:
        """Hand the claim over, or return its give-back where it is of no use any more."""
        request = attempt.request
        tenure = Tenure(request.key, row.holder, row.fence)
        trust = Trust(sent_at=sent_at, ttl=request.ttl, heartbeat=request.heartbeat, grace=request.grace)
        claim = Claim(row, tenure, trust)
        owed = _Expiry(tenure.key, tenure.holder, tenure.fence, 0.0, trust.trusted_until) if claim.began else None
        attempt.owed = owed is not None
        if self._name.schema not in (None, row.schema):
            problem = (
                f"the search_path of one connection leads to schema {self._name.schema!r}, that of another"
                f" to {row.schema!r}: two replicas could hold {request.key!r}; pass schema= to LeaseTable"
            )
            self._connections.fail(attempt.answer, LeaseTableError(str(self._name), problem))
        elif trust.is_over(local_time()):
            msg = f"the claim of {request.key!r} by {request.holder!r} was answered after its own deadline"
            self._connections.fail(attempt.answer, TimeoutError(msg))
        elif deliver(attempt.answer, claim):
            self._name.resolve(row.schema)
            attempt.owed = False
            return None
        return owed

    async def _expire(self, expiry: _Expiry, answer: asyncio.Future[bool]) -> None:
        """Release on whatever connection is to be had, until the server has answered or the time is over."""
        pause = 0.0
        last: BaseException
        while True:
            try:
                await asyncio.sleep(pause)
                async with self._connections.borrow(max(expiry.until - local_time(), MIN_LIMIT)) as connection:
                    deliver(answer, await _expire_on(connection, self._name.statements.release, expiry))
                return
            except asyncio.CancelledError as error:
                # The loop is being closed, which cancels every task once: little time is left.
                expiry, last = expiry.until_shutdown(), error
            except Exception as error:  # noqa: BLE001 - the last one is handed on
                last = error
            pause = min(2 * pause, MAX_PAUSE) or FIRST_PAUSE
            if self.closing or self._connections.pool.is_closing() or local_time() + pause >= expiry.until:
                self._connections.fail(answer, last)
                return


@dataclass(slots=True)
class _Attempt:
    """One try of a claim: who waits for it, and how far it got."""

    request: ClaimRequest
    answer: asyncio.Future[Claim | ClaimRow | None]
    sent: bool = False
    owed: bool = False


@dataclass(frozen=True, slots=True)
class _Expiry:
    """A tenure to be expired, of any fence where that is None, and until when to try."""

    key: str
    holder: str
    fence: int | None
    min_hold: float
    until: float

    def until_shutdown(self) -> _Expiry:
        return replace(self, until=min(self.until, local_time() + SHUTDOWN_LIMIT))


async def _expire_on(connection: Connection, sql: str, expiry: _Expiry) -> bool:
    rows = await fetch_again(connection, sql, expiry.key, expiry.holder, expiry.fence, expiry.min_hold)
    return bool(rows)


def _is_contested(row: ClaimRow | None, holder: str) -> bool:
    """Tell whether the answer shows a race and no incumbent.

    Nothing: the first claim of a new key is under way. Run out: its successor's claim is. Oneself: the
    row is locked by a renewal of the same holder.
    """
    return row is None or row.expires_in <= 0 or row.holder == holder


def _take_note(answer: asyncio.Future[bool]) -> None:
    """Retrieve the error of a release that nobody waits for, or asyncio complains about it."""
    if not answer.cancelled():
        answer.exception()
