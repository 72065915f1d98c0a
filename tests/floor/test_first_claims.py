"""First claims that began before the floor was laid or raised: none of them makes a pruned key start anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, Pruned, _floor, acquire
from asyncpg_lease._driver import ask
from tests.conftest import MakePool
from tests.floor.calls import ISOLATIONS, asleep, paused, use
from tests.sql.calls import STATEMENTS, claim, sessions, until_blocked
from tests.support.databases import Server
from tests.support.observe import Observer
from tests.support.typing import Connection, Pool

KEY = "k"


class Old:
    """A claim that has a snapshot of the empty table, and stands still before it locks the table.

    Under REPEATABLE READ every claim is in that state for an instant.
    """

    def __init__(self, session: Connection, claiming: asyncio.Task[str]) -> None:
        self.pid = session.get_server_pid()
        self._session = session
        self._claiming = claiming

    @classmethod
    async def begin(cls, session: Connection, observe: Observer) -> Old:
        """Take the snapshot and stand still."""
        await session.execute(f"PREPARE claim AS {STATEMENTS.claim.sql}")
        await observe.connection.execute("SELECT pg_advisory_lock(4712)")
        claim_it = f"EXECUTE claim('{KEY}', 'old', 60, '{STATEMENTS.claim.stamp}')"
        claiming = asyncio.create_task(session.execute(f"SELECT pg_advisory_xact_lock_shared(4712); {claim_it}"))
        await until_blocked(observe.connection, session)
        return cls(session, claiming)

    async def end(self, observe: Observer) -> BaseException | str:
        """Let it go on, and return how it ended."""
        await observe.connection.execute("SELECT pg_advisory_unlock(4712)")
        (ended,) = await asyncio.gather(self._claiming, return_exceptions=True)
        return ended


@pytest.fixture
async def old(table: LeaseTable, dsn: str, observe: Observer) -> AsyncIterator[Old]:  # noqa: ARG001
    """Such a claim."""
    async with sessions(dsn, 1, default_transaction_isolation="repeatable read") as (session,):
        old = await Old.begin(session, observe)
        yield old
        await old.end(observe)


async def _slow_claim(session: Connection) -> tuple[str | None, int] | None:
    """Claim as the holder that stops before its insert; None where an isolation above READ COMMITTED refuses."""
    try:
        row = await claim(session, KEY, "slow")
    except asyncpg.SerializationError:
        return None
    return None if row is None else (row.how, row.fence)


async def _settled(observe: Observer) -> bool:
    row = await observe.row("")
    return row is not None and row["released_at"] is not None


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("laid", [False, True])
async def test_prune_waits_for_a_first_claim_that_began_before_it(
    table: LeaseTable, observe: Observer, dsn: str, isolation: str, laid: bool
) -> None:
    """A claim that saw no row of its key, nor the floor's present fence, would start the key anew: it is let end first.

    The key is made, used three times and pruned while the claim stands still before its insert.
    """
    if laid:
        await use(table, "other")
        await table.prune(0)
    async with sessions(dsn, 1, default_transaction_isolation=isolation) as (slow,):
        async with paused(observe):
            claiming = asyncio.create_task(_slow_claim(slow))
            await until_blocked(observe.connection, slow)
            last = await use(table, KEY, 3)
            pruning = asyncio.create_task(table.prune(0))
            await asyncio.wait([pruning], timeout=0.5)
        assert await claiming is None
        assert await pruning == Pruned(deleted=1, kept=0, floor=last)
    assert await use(table, KEY) == last + 1


async def test_prune_waits_for_a_snapshot_that_has_locked_nothing_yet(
    table: LeaseTable, observe: Observer, old: Old
) -> None:
    """Under REPEATABLE READ a claim has its snapshot before it locks the table: such transactions are let end too."""
    await use(table, KEY, 3)
    pruning = asyncio.create_task(table.prune(0))
    await asyncio.wait([pruning], timeout=0.5)
    assert not await _settled(observe)
    assert isinstance(await old.end(observe), asyncpg.SerializationError)
    assert await pruning == Pruned(deleted=1, kept=0, floor=3)


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_claim_under_a_snapshot_older_than_the_floor_is_refused(
    table: LeaseTable, observe: Observer, dsn: str, isolation: str
) -> None:
    """A claim that sees the floor as it was before a prune fails with 40001, which is tried again in a new snapshot."""
    await use(table, "other")
    await table.prune(0)
    async with sessions(dsn, 1) as (session,):
        transaction = session.transaction(isolation=isolation)  # type: ignore[arg-type] # one of the literals
        await transaction.start()
        assert await session.fetchval("SELECT fence FROM lease WHERE key = ''") == 1
        assert await use(table, KEY, 3) == 4
        assert await table.prune(0) == Pruned(deleted=1, kept=0, floor=4)
        with pytest.raises(asyncpg.SerializationError):
            await claim(session, KEY)
        await transaction.rollback()
    assert await observe.fence(KEY) is None
    assert await use(table, KEY) == 5


async def test_prune_that_waited_in_vain_names_the_sessions_and_may_be_run_again(
    table: LeaseTable, observe: Observer, old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time it says which server processes are in the way, and has deleted nothing; the next waits anew."""
    await use(table, KEY, 3)
    monkeypatch.setattr(_floor, "SETTLE_LIMIT", 0.3)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=rf"server processes {old.pid}; nothing was changed: run it"):
            async with asyncio.timeout(10):
                await table.prune(0)
        assert await observe.fence(KEY) == 3
        assert await observe.fence("") == 0
    await old.end(observe)
    assert (await table.prune(0)).deleted == 1


async def test_prune_that_was_cancelled_while_it_waited_leaves_the_floor_unsettled(
    table: LeaseTable, observe: Observer, old: Old
) -> None:
    """A floor that was laid and not waited for is no floor yet: the next prune waits again."""
    await use(table, KEY, 3)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await table.prune(0)
    assert await observe.fence("") == 0
    pruning = asyncio.create_task(table.prune(0))
    await asyncio.wait([pruning], timeout=0.4)
    assert not pruning.done()
    assert await observe.fence(KEY) == 3
    await old.end(observe)
    assert (await pruning).deleted == 1


async def test_settled_floor_is_waited_for_no_more(table: LeaseTable, observe: Observer, dsn: str, old: Old) -> None:
    """The wait is for the first prune alone: later ones are done at once, beside whatever transaction."""
    await use(table, KEY)
    await old.end(observe)
    await table.prune(0)
    await use(table, KEY)
    async with sessions(dsn, 1) as (session,), asleep(observe, session, "FROM lease"), asyncio.timeout(10):
        assert (await table.prune(0)).deleted == 1
    assert await _settled(observe)


async def test_first_prune_does_not_wait_for_a_guarded_transaction(table: LeaseTable, pool: Pool) -> None:
    """Between its statements a fenced transaction has no snapshot: its next statement would see the floor."""
    await use(table, KEY)
    held = await acquire(table, "guarded")
    async with held, pool.acquire() as connection, held.transaction(connection), asyncio.timeout(10):
        assert (await table.prune(0)).deleted == 1


async def test_first_prune_does_not_wait_for_queries_about_something_else(
    table: LeaseTable, observe: Observer, dsn: str, server: Server
) -> None:
    """A report over other tables, or another database's transaction, cannot be a claim, however long it takes."""
    await use(table, KEY)
    await observe.connection.execute("CREATE TABLE sale AS SELECT 1 AS n")
    async with (
        sessions(dsn, 1, default_transaction_isolation="repeatable read") as (report,),
        sessions(server.dsn, 1) as (other,),
        asleep(observe, report, "FROM sale"),
        asleep(observe, other),
        asyncio.timeout(10),
    ):
        assert (await table.prune(0)).deleted == 1


async def test_first_prune_beside_a_long_write_does_not_wait_for_whoever_comes_later(
    table: LeaseTable, observe: Observer, dsn: str, make_pool: MakePool
) -> None:
    """While a long write keeps all snapshots old, new transactions begin all the time, and none is waited for."""
    await use(table, KEY)
    await observe.connection.execute("CREATE TABLE sale (n int)")
    pool = await make_pool(min_size=4)

    async def read() -> None:
        while True:
            await pool.fetch("SELECT pg_sleep(0.05), count(*) FROM lease")

    async with sessions(dsn, 1) as (writer,), writer.transaction():
        await writer.execute("INSERT INTO sale VALUES (1)")
        readers = [asyncio.create_task(read()) for _ in range(3)]
        async with asyncio.timeout(10):
            assert (await table.prune(0)).deleted == 1
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def test_first_prunes_at_once_lay_one_floor(table: LeaseTable, observe: Observer, make_pool: MakePool) -> None:
    """Any number of them, under the strictest isolation too, share the work and end with one floor."""
    pools = [
        await make_pool(max_size=1, server_settings={"default_transaction_isolation": isolation})
        for isolation in ISOLATIONS * 2
    ]
    last = await use(table, KEY, 3)
    done = await asyncio.gather(*(LeaseTable(pool).prune(0) for pool in pools))
    assert sum(one.deleted for one in done) == 1
    assert {one.floor for one in done if one.deleted} == {last}
    assert [(row["key"], row["fence"]) for row in await observe.rows()] == [("", last)]


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_first_prune_beside_one_that_has_just_laid_the_floor_goes_on(
    table: LeaseTable, observe: Observer, make_pool: MakePool, session: Connection, isolation: str
) -> None:
    """The other's row that is not committed yet is waited for, and is as good as its own."""
    await use(table, KEY)
    pool = await make_pool(max_size=1, server_settings={"default_transaction_isolation": isolation})
    async with session.transaction():
        assert await ask(session, STATEMENTS.floor_lay) == [("laid",)]
        pruning = asyncio.create_task(LeaseTable(pool).prune(0))
        async with asyncio.timeout(10):
            while not await observe.connection.fetchval("SELECT true FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
    assert await pruning == Pruned(deleted=1, kept=0, floor=1)


async def test_floor_wait_tells_those_told_before_alone(observe: Observer, old: Old, dsn: str) -> None:
    """Whoever comes later can see the floor, so it is not waited for."""
    await ask(observe.connection, STATEMENTS.floor_lay)
    found = await ask(observe.connection, STATEMENTS.floor_wait, "lease", None)
    assert [pid for _, pid in found] == [str(old.pid)]
    async with sessions(dsn, 1) as (late,), asleep(observe, late, "FROM lease"):
        again = await ask(observe.connection, STATEMENTS.floor_wait, "lease", [one for one, _ in found])
        assert again == found
        assert len(await ask(observe.connection, STATEMENTS.floor_wait, "lease", None)) == 2
