"""lease(), acquire() and try_acquire(): from arguments to a Lease."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, TypedDict

from asyncpg_lease._claims import ClaimRequest
from asyncpg_lease._holding import Holding
from asyncpg_lease._identity import fresh_holder
from asyncpg_lease._lease import Lease
from asyncpg_lease._options import Duration, OnLost, Options, check_text
from asyncpg_lease._waiting import obtain
from asyncpg_lease.errors import LeaseUnavailableError
from asyncpg_lease.events import Observers, fold_observers
from asyncpg_lease.table import LeaseTable, store_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType
    from typing import Unpack

    import asyncpg

    from asyncpg_lease._driver import RecordT

__all__ = ["LeaseContext", "LeaseOptions", "acquire", "lease", "try_acquire"]


class LeaseOptions(TypedDict, total=False):
    """The options of `acquire` and `try_acquire`, for wrappers of your own: those of `lease`, which documents them."""

    ttl: Duration
    wait: Duration
    min_hold: Duration
    on_lost: OnLost
    label: str | None
    holder: str | None
    heartbeat: Duration | None
    grace: Duration | None
    drain: Duration | None
    observer: Observers | None


class LeaseContext(Coroutine[object, None, Lease]):
    """What `lease` and `acquire` return. For one use.

    ``async with`` acquires, holds, and releases when the block is left. ``await`` acquires and returns the `Lease`,
    which is entered or released later. It is a coroutine, so that ``asyncio.create_task(acquire(..))`` works.
    """

    def __init__(
        self, target: asyncpg.Pool[RecordT] | LeaseTable, key: str, options: Options, observer: Observers | None
    ) -> None:
        self._store = store_of(target)
        self._key = check_text("key", key)
        self._options = options
        self._observers = fold_observers(observer)
        self._used = False
        self._obtaining: Coroutine[object, None, Lease] | None = None
        self._lease: Lease | None = None

    def __repr__(self) -> str:
        """Name the key, or the lease once there is one."""
        return f"<lease({self._key!r})>" if self._lease is None else f"<lease({self._key!r}): {self._lease!r}>"

    def begin(self) -> Coroutine[object, None, Lease]:
        """Return the one coroutine that acquires; Python warns if it is never awaited."""
        if self._obtaining is None:
            self._obtaining = self._obtain()
        return self._obtaining

    def __await__(self) -> Generator[object, None, Lease]:
        """Acquire the lease, which is not entered yet."""
        return self.begin().__await__()

    def send(self, value: None, /) -> object:
        """Go on, as a task has it."""
        return self.begin().send(value)

    def throw(
        self, kind: type[BaseException] | BaseException, error: object = None, trace: TracebackType | None = None, /
    ) -> object:
        """Raise inside, as a task does to cancel."""
        raised = error if isinstance(error, BaseException) else kind
        if trace is not None and isinstance(raised, BaseException):
            raised = raised.with_traceback(trace)
        return self.begin().throw(raised)

    def close(self) -> None:
        """Give the acquisition up, if it has begun."""
        if self._obtaining is not None:
            self._obtaining.close()

    async def _obtain(self) -> Lease:
        options, store = self._options, self._store
        notifier = store.notifier.plus(self._observers)
        claim = await obtain(store, self._request, options.wait, notifier)
        return Lease(Holding(store, claim, options, notifier))

    def _request(self) -> ClaimRequest:
        """Make the request of one try, with a holder of its own unless one was given.

        A try whose answer was lost is given back by its holder, later than the next try may be granted.
        """
        options = self._options
        return ClaimRequest(
            key=self._key,
            holder=fresh_holder(options.label) if options.holder is None else options.holder,
            explicit=options.holder is not None,
            ttl=options.ttl,
            heartbeat=options.heartbeat,
            grace=options.grace,
        )

    async def __aenter__(self) -> Lease:
        """Acquire, then start the heartbeat; raises as `acquire` does."""
        if self._used:
            msg = f"{self!r} can be entered once only: call lease() again for another acquisition"
            raise RuntimeError(msg)
        self._used = True
        self._lease = await self.begin()
        return await self._lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the lease's block."""
        assert self._lease is not None  # noqa: S101 - entered
        await self._lease.__aexit__(kind, error, trace)


def lease(  # noqa: PLR0913 - each is an option of its own
    target: asyncpg.Pool[RecordT] | LeaseTable,
    key: str,
    *,
    ttl: Duration = 60,
    wait: Duration = 0,
    min_hold: Duration = 0,
    on_lost: OnLost = "cancel",
    label: str | None = None,
    holder: str | None = None,
    heartbeat: Duration | None = None,
    grace: Duration | None = None,
    drain: Duration | None = None,
    observer: Observers | None = None,
) -> LeaseContext:
    """Hold a lease round a block of code.

    Guaranteed: at most one live tenure of a key at any time on the server's clock; a fence greater than every
    earlier one; the body is told `grace` before the server may let anybody else in, whatever the network does;
    the release comes after the body has ended. Not guaranteed: that a paused process notices in time. What the
    job writes must be idempotent, or carry `Lease.fence`. Assumed: clocks of equal rate, and a server clock that
    never steps forward by more than `grace`.

    Args:
        target: an asyncpg pool, for its default table ``lease``; or a `LeaseTable`.
        key: what is leased; 1 to 1,024 UTF-8 bytes without NUL. It is not reentrant: a block inside a block of the
            same key waits for itself, or finds the key taken.
        ttl: seconds after the last renewal until others may take over; 0.1 to 31,536,000 (a year).
        wait: seconds to wait for the key; 0: one try; `math.inf`: for ever. Where a revocation has just taken the key
            from this pool, the first try comes two polls later, so that others can have it.
        min_hold: seconds from acquiring for which the key stays shut, however early it is released; 0 to a year. For
            a job with a period: longer than the replicas' clocks differ, and clearly shorter than the period.
        on_lost: ``"cancel"`` cancels the body, once, and `LeaseLostError` comes out of the block; ``"flag"``
            marks the lease, logs an error, and wakes `Lease.wait_stopping`.
        label: the readable half of the holder; None: ``host:pid``.
        holder: an explicit holder, in place of a fresh one: a claim of its own live lease joins that tenure. It is
            your word that all who use the name may work at once.
        heartbeat: seconds from one renewal to the next; None: ttl / 3.
        grace: seconds before the end of trust at which the lease is given up; None: ttl / 10.
        drain: seconds that the body has to end in after the lease was revoked, 0.1 to a year; None: ttl. It is renewed
            until then, and given up after that, which is an error.
        observer: called with every event of this lease, beside the table's own, or a list or tuple of such; in a
            thread, see `asyncpg_lease.events.Observer`.

    Returns:
        An async context manager for one use, which yields the `Lease`. Awaited, it is what `acquire` returns.

    Raises:
        TypeError: an argument of the wrong type, such as a connection in place of the pool.
        ValueError: an argument out of its range, or 2 x heartbeat + grace not below ttl.
        LeaseUnavailableError: on entering: somebody else has the key.
        LeaseTimeoutError: on entering: somebody else still had it when the wait was over.
        LeaseTableError: on entering: the message says what to run.
        LeaseLostError: out of the block, where the lease was lost and `on_lost` is "cancel".
        RuntimeError: on entering: entered before, no asyncio loop, or the pool is another loop's.

    Example:
        ```python
        async with lease(pool, "nightly-report", ttl=30) as held:
            await write_report(fence=held.fence)
        ```

    .. versionadded:: 0.1
    """
    options = Options.fold(
        ttl=ttl,
        wait=wait,
        min_hold=min_hold,
        on_lost=on_lost,
        label=label,
        holder=holder,
        heartbeat=heartbeat,
        grace=grace,
        drain=drain,
    )
    return LeaseContext(target, key, options, observer)


def acquire(target: asyncpg.Pool[RecordT] | LeaseTable, key: str, **options: Unpack[LeaseOptions]) -> LeaseContext:
    """Acquire a lease now, in one round trip, to be entered or released later.

    ``held = await acquire(pool, key)`` does not renew the lease before ``async with held:``, so that must come well
    within the ttl. ``async with acquire(pool, key) as held:`` is `lease`.
    A cancelled or failed call leaves nothing claimed, as far as the server is reached within a second.

    Args:
        target: as for `lease`.
        key: as for `lease`.
        options: see `LeaseOptions`.

    Raises:
        TypeError, ValueError: before any I/O, as for `lease`.
        LeaseUnavailableError: when awaited: somebody else has the key.
        LeaseTimeoutError: when awaited: somebody else still had it when the wait was over; within `wait` + 1 s.
        LeaseTableError: when awaited: the message says what to run.
        TimeoutError: no connection or no answer within the ttl; or the connection gave no answer for a tenth of the
            ttl, 3 s at least and 15 s at most, and was closed for that.
        Exception: what the driver raised.

    Example:
        ```python
        held = await acquire(pool, "nightly-report", wait=10)
        async with held:
            await write_report(fence=held.fence)
        ```

    .. versionadded:: 0.1
    """
    context = lease(target, key, **options)
    # At once, so that Python warns of a call without `await`.
    _ = context.begin()
    return context


async def try_acquire(
    target: asyncpg.Pool[RecordT] | LeaseTable, key: str, **options: Unpack[LeaseOptions]
) -> Lease | None:
    """Acquire a lease now, or return None if somebody else has the key, or still has it when `wait` is over.

    Args:
        target: as for `lease`.
        key: as for `lease`.
        options: see `LeaseOptions`.

    Raises:
        Exception: as `acquire`, but for LeaseUnavailableError.

    Example:
        ```python
        held = await try_acquire(pool, "nightly-report")
        if held is not None:
            async with held:
                await write_report(fence=held.fence)
        ```

    .. versionadded:: 0.1
    """
    try:
        return await lease(target, key, **options)
    except LeaseUnavailableError:
        return None
