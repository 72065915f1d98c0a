"""First claims that began before the floor was laid or raised: none of them makes a pruned key start anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, Pruned
from tests.conftest import MakePool
from tests.floor.calls import ISOLATIONS, asleep, is_settled, paused, slow_write, use
from tests.sql.calls import STATEMENTS, claim, sessions, until_blocked
from tests.support.inside import ask, floor
from tests.support.observe import Observer
from tests.support.typing import Connection

pytestmark = pytest.mark.slow("a prune looks again after real time for claims that are under way")

KEY = "k"


class Old:
    """A claim that has a snapshot of the empty table, and stands still before it locks the table.

    Under REPEATABLE READ every claim is in that state for an instant. Later it stands still before its insert.
    """

    def __init__(self, observe: Observer, session: Connection, claiming: asyncio.Task[str]) -> None:
        self.session = session
        self._observe = observe
        self._claiming = claiming

    @classmethod
    async def begin(cls, session: Connection, observe: Observer) -> Old:
        """Take the snapshot and stand still."""
        await session.execute(f"PREPARE claim AS {STATEMENTS.claim.sql}")
        await observe.connection.execute("SELECT pg_advisory_lock(4712)")
        claim_it = f"EXECUTE claim('{KEY}', 'slow', 60, '{STATEMENTS.claim.stamp}')"
        claiming = asyncio.create_task(session.execute(f"SELECT pg_advisory_xact_lock_shared(4712); {claim_it}"))
        await until_blocked(observe.connection, session)
        return cls(observe, session, claiming)

    async def go_on(self) -> None:
        """Let it go on to its insert, before which it stands still."""
        await self._observe.connection.execute("SELECT pg_advisory_unlock(4712)")
        async with asyncio.timeout(10):
            while not await self._observe.connection.fetchval(
                "SELECT true FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND objid = 4711"
            ):
                await asyncio.sleep(0.005)

    async def end(self) -> BaseException | str:
        """Let it end, and return how."""
        await self._observe.connection.execute("SELECT pg_advisory_unlock_all()")
        (ended,) = await asyncio.gather(self._claiming, return_exceptions=True)
        return ended


@pytest.fixture
async def old(table: LeaseTable, dsn: str, observe: Observer) -> AsyncIterator[Old]:  # noqa: ARG001
    """Such a claim."""
    async with sessions(dsn, 1, default_transaction_isolation="repeatable read") as (session,), paused(observe):
        old = await Old.begin(session, observe)
        yield old
        await old.end()


@pytest.fixture
async def standing(old: Old) -> Old:
    """Return one that stands still before its insert."""
    await old.go_on()
    return old


async def _slow_claim(session: Connection) -> tuple[str | None, int] | None:
    """Claim as the holder that stops before its insert; None where an isolation above READ COMMITTED refuses."""
    try:
        row = await claim(session, KEY, "slow")
    except asyncpg.SerializationError:
        return None
    return None if row is None else (row.how, row.fence)


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
    table: LeaseTable, observe: Observer, old: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under REPEATABLE READ a claim has its snapshot before it locks the table: it is looked at once more."""
    monkeypatch.setattr(floor, "SECOND_LOOK", 1.0)
    await use(table, KEY, 3)
    pruning = asyncio.create_task(table.prune(0))
    # The first look comes right after the floor was laid.
    await asyncio.wait([pruning], timeout=0.5)
    await old.go_on()
    await asyncio.wait([pruning], timeout=1.5)
    assert not await is_settled(observe)
    assert isinstance(await old.end(), asyncpg.SerializationError)
    assert await pruning == Pruned(deleted=1, kept=0, floor=3)


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_prune_waits_for_a_first_claim_behind_an_uncommitted_one(
    table: LeaseTable, observe: Observer, dsn: str, isolation: str
) -> None:
    """A claim that waits for another one's insert goes on when that is rolled back, whatever was pruned meanwhile."""
    await use(table, "other", 3)
    async with sessions(dsn, 2, default_transaction_isolation=isolation) as (first, second):
        await first.execute("BEGIN")
        await claim(first, KEY)
        claiming = asyncio.create_task(claim(second, KEY, "second"))
        await until_blocked(observe.connection, second)
        pruning = asyncio.create_task(table.prune(0))
        await asyncio.wait([pruning], timeout=0.8)
        assert not await is_settled(observe)
        await first.execute("ROLLBACK")
        row = await claiming
        assert row is not None
        assert (row.how, row.fence) == ("free", 1)
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
    table: LeaseTable, observe: Observer, standing: Old, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time it says which server processes are in the way, and has deleted nothing; the next waits anew."""
    await use(table, KEY, 3)
    monkeypatch.setattr(floor, "SETTLE_LIMIT", 0.3)
    pid = standing.session.get_server_pid()
    for _ in range(2):
        with pytest.raises(TimeoutError, match=rf"server processes {pid}; nothing was changed: run it"):
            async with asyncio.timeout(10):
                await table.prune(0)
        assert await observe.fence(KEY) == 3
        assert await observe.fence("") == 0
    await standing.end()
    assert (await table.prune(0)).deleted == 1


async def test_prune_that_was_cancelled_while_it_waited_leaves_the_floor_unsettled(
    table: LeaseTable, observe: Observer, standing: Old
) -> None:
    """A floor that was laid and not waited for is no floor yet: the next prune waits again."""
    await use(table, KEY, 3)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await table.prune(0)
    assert await observe.fence("") == 0
    pruning = asyncio.create_task(table.prune(0))
    await asyncio.wait([pruning], timeout=0.7)
    assert not pruning.done()
    assert await observe.fence(KEY) == 3
    await standing.end()
    assert (await pruning).deleted == 1


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


async def test_floor_wait_tells_those_told_before_alone(observe: Observer, standing: Old, dsn: str) -> None:
    """Whoever comes later can see the floor, so it is not waited for, whatever it does."""
    pid = str(standing.session.get_server_pid())
    await ask(observe.connection, STATEMENTS.floor_lay)
    found = await ask(observe.connection, STATEMENTS.floor_wait, "lease", None)
    assert [pid for _, pid in found] == [pid]
    async with sessions(dsn, 1) as (late,), asleep(observe, late, slow_write()):
        again = await ask(observe.connection, STATEMENTS.floor_wait, "lease", [one for one, _ in found])
        assert again == found
        assert len(await ask(observe.connection, STATEMENTS.floor_wait, "lease", None)) == 2


async def test_floor_wait_tells_a_claim_that_waits_for_the_table_itself(observe: Observer, old: Old, dsn: str) -> None:
    """Behind DDL a claim waits for a weaker lock first, with its snapshot in hand."""
    await ask(observe.connection, STATEMENTS.floor_lay)
    found = await ask(observe.connection, STATEMENTS.floor_wait, "lease", None)
    async with sessions(dsn, 1) as (owner,):
        async with owner.transaction():
            await owner.execute("LOCK TABLE lease")
            await observe.connection.execute("SELECT pg_advisory_unlock(4712)")
            async with asyncio.timeout(10):
                while (
                    await observe.connection.fetchval(
                        "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessShareLock'"
                    )
                    != 1
                ):
                    await asyncio.sleep(0.01)
            assert await ask(observe.connection, STATEMENTS.floor_wait, "lease", [one for one, _ in found]) == found
        assert isinstance(await old.end(), str)
