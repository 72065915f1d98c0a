"""The statements exactly as the library sends them, on whatever connection a test likes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import asyncpg

from tests.support.inside import ClaimRow, RenewRow, Statements, ask, claim_row, renew_rows
from tests.support.typing import Connection, PooledConnection

Session: TypeAlias = Connection | PooledConnection

STATEMENTS = Statements.bound_to('"lease"')


@dataclass(frozen=True, slots=True)
class Asked:
    """One tenure to be renewed."""

    key: str
    holder: str = "me"
    fence: int = 1
    ttl: float = 60.0
    shared: bool = False


async def claim(session: Session, key: str, holder: str = "me", ttl: float = 60.0) -> ClaimRow | None:
    """Run claim.sql; None where it answers no row."""
    rows = await ask(session, STATEMENTS.claim, key, holder, ttl)
    return claim_row(rows[0]) if rows else None


async def claim_granted(session: Session, key: str, holder: str = "me", ttl: float = 60.0) -> ClaimRow:
    """Run claim.sql and see that it was granted."""
    row = await claim(session, key, holder, ttl)
    assert row is not None, "no row"
    assert row.how is not None, f"{row.holder} has it"
    return row


async def claim_refused(session: Session, key: str, holder: str = "me", ttl: float = 60.0) -> ClaimRow:
    """Run claim.sql and see that it was refused, and by whom."""
    row = await claim(session, key, holder, ttl)
    assert row is not None, "no row"
    assert row.how is None, f"granted: {row.how}"
    return row


async def renew(session: Session, *asked: Asked) -> list[RenewRow]:
    """Run renew.sql for all these tenures at once."""
    rows = await ask(
        session,
        STATEMENTS.renew,
        [one.key for one in asked],
        [one.holder for one in asked],
        [str(one.fence) for one in asked],
        [repr(one.ttl) for one in asked],
        [str(one.shared) for one in asked],
    )
    return renew_rows(rows)


async def outcome(session: Session, asked: Asked) -> str:
    """Renew one tenure, within some seconds, and return renewed, busy or lost."""
    async with asyncio.timeout(5):
        (row,) = await renew(session, asked)
    return row.outcome


async def release(
    session: Session, key: str, holder: str = "me", fence: int | None = 1, min_hold: float = 0.0
) -> int | None:
    """Run release.sql; the fence that was released, or None."""
    rows = await ask(session, STATEMENTS.release, key, holder, None if fence is None else str(fence), min_hold)
    return int(rows[0][0]) if rows else None


async def until_blocked(watcher: Connection, session: Session) -> None:
    """Wait until a session waits for a lock."""
    pid = session.get_server_pid()
    async with asyncio.timeout(5):
        while not await watcher.fetchval("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1", pid):
            await asyncio.sleep(0.005)


@asynccontextmanager
async def sessions(dsn: str, count: int, **settings: str) -> AsyncIterator[list[Connection]]:
    """Open so many connections, with these server settings."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            connection = await asyncpg.connect(dsn, server_settings=settings)
            stack.push_async_callback(connection.close)
            opened.append(connection)
        yield opened
