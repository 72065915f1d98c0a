"""Claims and releases: jobs that end by themselves and leave nothing claimed behind."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from asyncpg_lease._clock import local_time
from asyncpg_lease._driver import RETRIED, ask_again, may_have_been_done, terminate
from asyncpg_lease._jobs import MIN_STINT, SHUTDOWN_LIMIT, Job, deliver, stint_for
from asyncpg_lease._pending import Pending
from asyncpg_lease._rows import ClaimRow, ReleaseRow, claim_row, release_row
from asyncpg_lease._tasks import let_out, load_backend, start_timer, wait_shielded
from asyncpg_lease._tenure import Tenure, Trust
from asyncpg_lease.schema import settle

if TYPE_CHECKING:
    from asyncpg_lease._driver import Connection, Statement
    from asyncpg_lease._pool import Connections
    from asyncpg_lease._statements import TableName

T = TypeVar("T")

__all__ = ["Claim", "ClaimRequest", "Claims"]

GIVE_BACK_LIMIT = 1.0
"""Seconds for which a cancelled acquire, half for which a failed one, waits for its claim to be given back."""

CONTESTED_TRIES = 3
FIRST_PAUSE = 0.05
MAX_PAUSE = 1.0
MIN_LIMIT = 0.1


class ClaimRequest(NamedTuple):
    """What is asked for; `explicit` where the holder is the user's own name for it."""

    key: str
    holder: str
    explicit: bool
    ttl: float
    heartbeat: float
    grace: float


class Claim(NamedTuple):
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
        self.closing: bool = False
        self._pending = Pending()

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
        self._check_open()
        loop = self._connections.check_loop()
        # Only now: where no loop runs, anyio has an error of its own for it.
        load_backend()
        if request.explicit:
            # It would join a tenure that is about to end, and have nothing when its release, or give-back, arrives.
            until = local_time() + limit
            await self._pending.wait_for_turn(request.key, request.holder, until, self._check_open)
            limit = max(until - local_time(), MIN_LIMIT)
        answer: asyncio.Future[Claim | ClaimRow | None] = loop.create_future()
        attempt = _Attempt(request, answer, self._pending.note(loop.create_future(), request.key, request.holder))
        # A claim that was sent may go on for a while after whoever waited has gone: cut off, it could still be
        # granted, and nobody would know its fence.
        job = Job(
            f"the claim of {request.key!r} by {request.holder!r}",
            partial(self._run, attempt),
            partial(self._fail, attempt),
            limit,
            stint=stint_for(request.ttl),
            on_limit=partial(self._time_out, attempt, limit),
        )
        self._connections.submit(job)
        try:
            return await answer
        except asyncio.CancelledError:
            until = local_time() + GIVE_BACK_LIMIT
            await wait_shielded(self._abandon(job, attempt), GIVE_BACK_LIMIT)
            # Its loop may be closing, and a worker that hands a connection back would be cut off.
            await wait_shielded(self._connections.finishing(), until - local_time())
            raise
        except GeneratorExit:
            # The caller's frame is being closed and may not await, and its loop may be closed already.
            with suppress(RuntimeError):
                self._abandon(job, attempt)
            raise
        except Exception as error:
            # The driver knows of a link that was cut, and not that it was cut for its silence.
            overdue = job.overdue
            error.add_note(f"in {job.what}")
            if cancelled := await wait_shielded([attempt.settled], GIVE_BACK_LIMIT / 2):
                raise cancelled from None
            if overdue is not None:
                raise overdue from error
            raise

    def _check_open(self) -> None:
        if self.closing:
            msg = f"lease table {self._name} is closed: nothing can be acquired after aclose()"
            raise RuntimeError(msg)

    def _abandon(self, job: Job, attempt: _Attempt) -> list[asyncio.Future[Any]]:
        """Take back a claim that nobody waits for any more; return what to wait for until nothing is left of it."""
        answer = attempt.answer
        if not answer.cancel() and not answer.cancelled() and answer.exception() is None:
            claim = answer.result()
            # It was granted in the very turn in which the caller was cancelled.
            return [self.release(claim.tenure, claim.trust.ttl)] if isinstance(claim, Claim) and claim.began else []
        if self._connections.withdraw(job):
            attempt.settle()
        else:
            job.bound(min(job.stint, MIN_STINT))
        return [attempt.settled]

    def release(self, tenure: Tenure, limit: float, min_hold: float = 0.0) -> asyncio.Future[ReleaseRow | None]:
        """Start a release, tried again for at most `limit` seconds where the server is not reached.

        Returns:
            What the server said, None where the tenure was over already; or the last error. Nobody needs to
            wait for it: it goes on by itself.
        """
        return self._expire(_Expiry(tenure.key, tenure.holder, tenure.fence, min_hold, local_time() + limit))

    async def aclose(self) -> None:
        """Begin nothing any more, and wait for what is still to be settled or released."""
        self.closing = True
        await self._pending.wait_for_all()

    def _time_out(self, attempt: _Attempt, limit: float) -> None:
        request = attempt.request
        msg = f"the server did not answer within {limit:.3f} s to the claim of {request.key!r} by {request.holder!r}"
        self._connections.fail(attempt.answer, TimeoutError(msg))

    def _fail(self, attempt: _Attempt, error: BaseException) -> None:
        attempt.settle()
        self._connections.fail(attempt.answer, error)

    async def _run(self, attempt: _Attempt, connection: Connection) -> None:
        """Claim, hand the claim over, and give back what nobody took or heard of."""
        await settle(connection, self._name)
        owed = await self._claim_on(connection, attempt)
        if owed is not None:
            try:
                # On its own connection a give-back cannot overtake the claim; and another one may not be had.
                await _expire_on(connection, self._name.statements.release, owed)
            except Exception:  # noqa: BLE001 - tried again, elsewhere
                self._expire(owed).add_done_callback(attempt.settle)
                return
        attempt.settle()

    async def _claim_on(self, connection: Connection, attempt: _Attempt) -> _Expiry | None:
        """Claim on this connection; return what has to be given back."""
        request = attempt.request
        contested = 0
        while not attempt.answer.done():
            sent_at = local_time()
            statement = self._name.statements.claim
            try:
                rows = await ask_again(connection, statement, request.key, request.holder, request.ttl)
                answer = claim_row(rows[0]) if rows else None
            except RETRIED:
                deliver(attempt.answer, None)
                return None
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                let_out(error)
                return self._unheard(attempt, error, sent_at)
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
        self._connections.fail(attempt.answer, error)
        if request.explicit or not may_have_been_done(error):
            return None
        return _Expiry(request.key, request.holder, None, 0.0, sent_at + request.ttl)

    def _granted(self, row: ClaimRow, sent_at: float, attempt: _Attempt) -> _Expiry | None:
        """Hand the claim over, or return its give-back where it is of no use any more."""
        request = attempt.request
        tenure = Tenure(request.key, row.holder, row.fence)
        trust = Trust(sent_at=sent_at, ttl=request.ttl, heartbeat=request.heartbeat, grace=request.grace)
        claim = Claim(row, tenure, trust)
        owed = _Expiry(tenure.key, tenure.holder, tenure.fence, 0.0, trust.trusted_until) if claim.began else None
        if trust.is_over(local_time()):
            msg = f"the claim of {request.key!r} by {request.holder!r} was answered after its own deadline"
            self._connections.fail(attempt.answer, TimeoutError(msg))
        elif deliver(attempt.answer, claim):
            return None
        return owed

    def _expire(self, expiry: _Expiry) -> asyncio.Future[ReleaseRow | None]:
        """Release on whatever connection is to be had, again until the server has answered or the time is over."""
        answer: asyncio.Future[ReleaseRow | None] = self._pending.note(
            asyncio.get_running_loop().create_future(), expiry.key, expiry.holder
        )
        self._try_expire(expiry, answer, FIRST_PAUSE)
        return answer

    def _try_expire(self, expiry: _Expiry, answer: asyncio.Future[ReleaseRow | None], pause: float) -> None:
        async def work(connection: Connection) -> None:
            released = await _expire_on(connection, self._name.statements.release, expiry)
            # Of an earlier try only the answer was lost.
            deliver(answer, ReleaseRow(None) if released is None and expiry.unheard else released)
            if expiry.fence is None and released is None:
                # The claim whose answer was lost may be under way still.
                start_timer(pause, self._sweep, expiry, 2 * pause)

        def failed(error: BaseException) -> None:
            expiry.unheard = expiry.unheard or may_have_been_done(error)
            closing = self._connections.pool.is_closing()
            if closing and expiry.failure is not None:
                # That the pool is closing does not say why it was not released before.
                error = expiry.failure
            expiry.failure = error
            hopeless = self.closing or expiry.hurried or job.hurried or closing
            if hopeless or local_time() + pause >= expiry.until:
                self._connections.fail(answer, error)
            else:
                retry = self._retry_expire(expiry, answer, pause)
                self._connections.tasks.start(retry, f"release:{expiry.key}")

        limit = max(expiry.until - local_time(), MIN_LIMIT)
        job = Job(f"the release of {expiry.key!r} by {expiry.holder!r}", work, failed, limit, stint=MIN_STINT)
        self._connections.submit(job)

    def _sweep(self, expiry: _Expiry, pause: float) -> None:
        if not self.closing and not self._connections.pool.is_closing() and local_time() < expiry.until:
            answer = self._pending.note(asyncio.get_running_loop().create_future(), expiry.key, expiry.holder)
            self._try_expire(expiry, answer, pause)

    async def _retry_expire(self, expiry: _Expiry, answer: asyncio.Future[ReleaseRow | None], pause: float) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        self._try_expire(expiry, answer, min(2 * pause, MAX_PAUSE))


class _Attempt(NamedTuple):
    """One try of a claim: who waits for it, and whether it has left nothing behind."""

    request: ClaimRequest
    answer: asyncio.Future[Claim | ClaimRow | None]
    settled: asyncio.Future[None]

    def settle(self, _: object = None) -> None:
        """Take note that nothing of it is claimed any more, but what was handed over."""
        deliver(self.settled, None)


@dataclass(slots=True)
class _Expiry:
    """A tenure to be expired, of any fence where that is None, and until when to try."""

    key: str
    holder: str
    fence: int | None
    min_hold: float
    until: float
    hurried: bool = False
    unheard: bool = False
    failure: BaseException | None = None


async def _expire_on(connection: Connection, statement: Statement, expiry: _Expiry) -> ReleaseRow | None:
    """Release; return None where the tenure was over already."""
    fence = None if expiry.fence is None else str(expiry.fence)
    args = (expiry.key, expiry.holder, fence, expiry.min_hold)
    try:
        rows = await ask_again(connection, statement, *args)
    except asyncio.CancelledError:
        # A loop that is being closed cancels every task, once: again, within the little time that is left.
        expiry.hurried = expiry.unheard = True
        fuse = start_timer(SHUTDOWN_LIMIT, terminate, connection)
        try:
            rows = await ask_again(connection, statement, *args)
        finally:
            fuse.cancel()
    return release_row(rows[0]) if rows else None


def _is_contested(row: ClaimRow | None, holder: str) -> bool:
    """Tell whether the answer shows a race and no incumbent.

    Nothing: the first claim of a new key is under way. Run out: its successor's claim is. Oneself: the
    row is locked by a renewal of the same holder.
    """
    return row is None or row.expires_in <= 0 or row.holder == holder
