"""Every public name, used as people do, and what a type checker must infer; checked, never run.

It is checked by mypy, pyright and ty, with asyncpg's stubs and without them: so it takes pools as they are
annotated everywhere, and `pools.py` has the others.
"""

from __future__ import annotations

import asyncio
import math
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, assert_type

import asyncpg

from asyncpg_lease import (
    Duration,
    Event,
    IdleTimeout,
    Isolation,
    Lease,
    LeaseContext,
    LeaseError,
    LeaseInfo,
    LeaseLostError,
    LeaseOptions,
    LeaseSnapshotError,
    LeaseState,
    LeaseTable,
    LeaseTableError,
    LeaseTimeoutError,
    LeaseUnavailableError,
    LossReason,
    Observer,
    OnLost,
    Pruned,
    Revocation,
    RevocationOutcome,
    acquire,
    current_lease,
    lease,
    try_acquire,
)
from asyncpg_lease.events import (
    Acquired,
    How,
    Late,
    Lost,
    Observers,
    Released,
    ReleaseFailed,
    Renewed,
    RenewFailed,
    Revoked,
    Unavailable,
    Waiting,
    WaitingFailed,
)
from asyncpg_lease.testing import EmbeddedServer, EmbeddedServerError, find_programs


async def block(pool: asyncpg.Pool) -> int:
    """Return from inside: nothing has to follow, since a block lets exceptions out."""
    async with lease(pool, "key") as held:
        assert_type(held, Lease)
        return held.fence


async def after_a_block(pool: asyncpg.Pool) -> int:
    """Go on after a block, with what was bound in it."""
    async with lease(pool, "key") as held:
        fence = held.fence
    assert_type(held, Lease)
    assert_type(fence, int)
    return fence


async def block_of_a_lease(pool: asyncpg.Pool) -> int:
    """Enter what was acquired before: the block yields that very lease, and lets exceptions out as well."""
    held = await acquire(pool, "key")
    assert_type(held, Lease)
    async with held as same:
        assert_type(same, Lease)
        return same.fence


async def maybe(pool: asyncpg.Pool) -> int | None:
    """Narrow what `try_acquire` returns."""
    held = await try_acquire(pool, "key")
    assert_type(held, Lease | None)
    if held is None:
        return None
    assert_type(held, Lease)
    async with held:
        return current_lease().fence


async def handle(held: Lease) -> None:
    """Use all that a handle offers."""
    assert_type(held.key, str)
    assert_type(held.holder, str)
    assert_type(held.fence, int)
    assert_type(held.acquired_at, datetime)
    assert_type(held.expires_at, datetime)
    assert_type(held.remaining, float)
    assert_type(held.joined, bool)
    assert_type(held.is_held, bool)
    assert_type(held.lost, LeaseLostError | None)
    assert_type(held.stop_reason, LossReason | None)
    assert_type(await held.wait_stopping(), LossReason | None)
    assert_type(await held.wait_lost(), LeaseLostError | None)
    held.raise_if_stopping()
    await held.confirm()
    await held.renew()
    await held.release()


async def fenced(
    held: Lease,
    plain: asyncpg.Connection,
    pooled: asyncpg.pool.PoolConnectionProxy,
    isolation: Isolation,
    idle: IdleTimeout,
) -> None:
    """Guard transactions on connections of a pool and of none."""
    async with held.transaction(plain, "serializable", idle_timeout=timedelta(seconds=10)) as nothing:
        assert_type(nothing, None)
    async with held.transaction(pooled, isolation="repeatable_read", idle_timeout=None):
        await held.guard(pooled)
    async with held.transaction(pooled, idle_timeout="ttl"):
        await held.guard(plain)
    async with held.transaction(plain, isolation, idle):
        pass


async def table(pool: asyncpg.Pool) -> None:
    """Use all that a table offers; it is a target as a pool is."""
    jobs = LeaseTable(pool, "lease", schema="jobs", poll=timedelta(seconds=1), observer=on_event)
    await jobs.create()
    await jobs.verify()
    assert_type(jobs.name, str)
    assert_type(await jobs.get("key"), LeaseInfo | None)
    state: LeaseState = "held"
    assert_type(await jobs.leases("prefix", state=state, limit=10), list[LeaseInfo])
    pruned = await jobs.prune(older_than=timedelta(days=30))
    assert_type(pruned, Pruned)
    assert_type((pruned.deleted, pruned.kept, pruned.floor), tuple[int, int, int])
    assert_type(await jobs.advance_fences(by=1000), int)
    revocation = await jobs.revoke("key", fence=7, force=True)
    assert_type(revocation, Revocation)
    assert_type(revocation.info, LeaseInfo | None)
    assert_type(revocation.key, str)
    outcome: RevocationOutcome = revocation.outcome
    assert_type(outcome, Literal["requested", "ended", "already_revoked", "other_tenure", "resting", "free", "unknown"])
    assert_type(lease(jobs, "key"), LeaseContext)
    assert_type(await acquire(jobs, "key"), Lease)
    async with acquire(jobs, "key", wait=5) as entered:
        assert_type(entered, Lease)
    assert_type(await asyncio.create_task(acquire(jobs, "key")), Lease)
    options: LeaseOptions = {"ttl": 30, "wait": 5}
    assert_type(await try_acquire(jobs, "key", **options), Lease | None)
    assert_type(await try_acquire(jobs, "key"), Lease | None)
    await jobs.aclose()


def info(read: LeaseInfo) -> None:
    """Look at what the table says of a key."""
    assert_type(read.key, str)
    assert_type(read.holder, str)
    assert_type(read.fence, int)
    assert_type(read.acquired_at, datetime)
    assert_type(read.expires_at, datetime)
    assert_type(read.expires_in, float)
    assert_type(read.state, Literal["held", "resting", "free"])
    assert_type(read.released_at, datetime | None)
    assert_type(read.revoked_at, datetime | None)


async def options(pool: asyncpg.Pool, ttl: Duration, on_lost: OnLost) -> None:
    """Give every option, durations as int, float or timedelta."""
    lease(
        pool,
        "key",
        ttl=ttl,
        wait=math.inf,
        min_hold=timedelta(minutes=1),
        on_lost=on_lost,
        label="label",
        holder="holder",
        heartbeat=1,
        grace=0.5,
        drain=timedelta(seconds=5),
        observer=on_event,
    )
    await acquire(pool, "key", ttl=30, wait=timedelta(seconds=1), on_lost="flag")
    await try_acquire(pool, "key", ttl=30.0, on_lost="cancel")


async def errors(pool: asyncpg.Pool) -> None:
    """Catch each error and read its attributes."""
    try:
        await block(pool)
    except LeaseTimeoutError as error:
        timeout: TimeoutError = error
        unavailable: LeaseUnavailableError = error
        raise timeout from unavailable
    except LeaseUnavailableError as error:
        assert_type(error.key, str)
        assert_type(error.retry_after, float | None)
        assert_type(error.resting, bool)
        assert_type(error.holder, str | None)
        assert_type(error.fence, int | None)
        assert_type(error.expires_at, datetime | None)
    except LeaseLostError as error:
        assert_type(error.key, str)
        assert_type(error.holder, str)
        assert_type(error.fence, int)
        assert_type(error.reason, LossReason)
        assert_type(error.taken_by, str | None)
    except LeaseSnapshotError as error:
        assert_type(error.key, str)
        assert_type(error.holder, str)
        assert_type(error.fence, int)
    except LeaseTableError as error:
        assert_type(error.table, str)
        assert_type(error.problem, str)
    except LeaseError as error:
        base: Exception = error
        raise base from None


def advice(reason: LossReason) -> str:
    """Return in every case: the reasons are known to the type checker."""
    match reason:
        case "taken_over" | "expired" | "deleted":
            return "the row says so"
        case "revoked":
            return "an operator said so"
        case "unreachable" | "stalled":
            return "nobody could say"


def on_event(event: Event) -> None:  # noqa: C901 - one case a kind
    """Tell the kinds apart by `match`, and read their fields."""
    assert_type(event.key, str)
    assert_type(event.holder, str)
    assert_type(event.level, int)
    assert_type(event.message, str)
    match event:
        case Acquired(how=how, waited=waited, before=before, fence=fence):
            assert_type(how, How)
            assert_type((waited, before, fence), tuple[float, str | None, int])
        case Unavailable(incumbent=incumbent, incumbent_fence=their_fence, retry_after=retry_after):
            assert_type((incumbent, their_fence, retry_after), tuple[str | None, int | None, float | None])
        case Waiting(incumbent=incumbent, incumbent_fence=their_fence, wait=wait):
            assert_type((incumbent, their_fence, wait), tuple[str | None, int | None, float])
        case WaitingFailed(waited=waited, error=error):
            assert_type((waited, error), tuple[float, str])
        case Renewed(fence=fence, remaining=remaining, took=took):
            assert_type((fence, remaining, took), tuple[int, float, float])
        case RenewFailed(fence=fence, remaining=remaining, error=error):
            assert_type((fence, remaining, error), tuple[int, float, str])
        case Late(fence=fence, blocked=blocked, remaining=remaining):
            assert_type((fence, blocked, remaining), tuple[int, float, float])
        case Revoked(fence=fence, drain=drain):
            assert_type((fence, drain), tuple[int, float])
        case Lost(fence=fence, reason=reason, held_for=held_for, taken_by=taken_by, error=cause):
            assert_type(reason, LossReason)
            assert_type((fence, held_for, taken_by, cause), tuple[int, float, str | None, str | None])
        case Released(fence=fence, held_for=held_for):
            assert_type((fence, held_for), tuple[int, float])
        case ReleaseFailed(fence=fence, held_for=held_for, error=error):
            assert_type((fence, held_for, error), tuple[int, float, str])
        case _:
            assert_type(event, Event)


class Counter:
    """An observer that is an object, and one that is a method of it."""

    def __call__(self, event: Event) -> None:
        """Take note of an event."""

    def note(self, told: Event, /) -> None:
        """Take note of an event by another parameter's name."""


def observers(events: list[Event]) -> tuple[Observer, ...]:
    """Give all that can be called with an event, whatever its parameter is called."""
    return on_event, Counter(), Counter().note, events.append, lambda event: events.remove(event)  # noqa: PLW0108


async def several(pool: asyncpg.Pool, counters: list[Counter], observers: Observers | None) -> None:
    """Give one observer, some, or none, in a list or a tuple, whatever their type."""
    LeaseTable(pool, observer=[on_event, Counter(), print])
    LeaseTable(pool, observer=Counter().note)
    lease(pool, "key", observer=counters)
    lease(pool, "key", observer=(Counter(), on_event))
    lease(pool, "key", observer=lambda event: print(event.key))  # noqa: T201
    await acquire(pool, "key", observer=())
    await try_acquire(pool, "key", observer=observers)


def server_of_ones_own(programs: Path | None) -> str:
    """Run a PostgreSQL for a test."""
    assert_type(find_programs(), Path)
    try:
        with EmbeddedServer({"fsync": "off"}, programs=programs) as server:
            assert_type(server.dsn, str)
            return server.dsn
    except EmbeddedServerError as error:
        return str(error)
