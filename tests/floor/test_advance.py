"""LeaseTable.advance_fences(): every fence and the floor are lifted past what may have been handed out and lost."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncpg_lease import LeaseLostError, LeaseTable, LeaseTableError, acquire, try_acquire
from tests.conftest import MakePool
from tests.floor.calls import DAY, ISOLATIONS, fill, paused, use
from tests.sql.calls import STATEMENTS, claim, sessions, until_blocked
from tests.support.inside import ask, floor
from tests.support.observe import Observer
from tests.support.typing import Connection, Pool

KEY = "k"


async def test_advance_sets_every_fence_and_the_floor_to_one_above_all(table: LeaseTable, observe: Observer) -> None:
    """Held, resting, free and completed rows alike: whatever comes next is above all that was."""
    held = await acquire(table, "held")
    await (await acquire(table, "resting", min_hold=60)).release()
    await use(table, "free", 5)
    await use(table, "completed", 2)
    await observe.connection.execute("UPDATE lease SET completed_tick = clock_timestamp() WHERE key = 'completed'")
    assert await table.advance_fences(1000) == 1005
    assert {row["key"]: row["fence"] for row in await observe.rows()} == dict.fromkeys(
        ["", "completed", "free", "held", "resting"], 1005
    )
    assert await use(table, "free") == 1006
    assert await use(table, "never seen") == 1006
    with pytest.raises(LeaseLostError):
        await held.confirm()
    await held.release()


@pytest.mark.slow("an advance looks again after real time")
async def test_advance_goes_by_the_floor_where_that_is_the_greatest(table: LeaseTable) -> None:
    """A pruned key's fences were handed out too."""
    await use(table, "pruned", 40)
    await table.prune(0)
    await use(table, KEY)
    assert await table.advance_fences(7) == 48
    await table.prune(0)
    assert await table.advance_fences(1) == 49


async def test_advance_of_an_empty_table_raises_where_new_keys_start(table: LeaseTable) -> None:
    """A table that was made anew because the old one is lost knows of no fence at all."""
    assert await table.advance_fences(10**6) == 10**6
    assert await use(table, KEY) == 10**6 + 1


@pytest.mark.slow("an advance looks again after real time")
async def test_advance_waits_for_a_guarded_transaction_and_holds_up_nobody_else(
    table: LeaseTable,
    pool: Pool,
    observe: Observer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was guarded is committed under its own fence, other rows are lifted before, and the wait is told."""
    monkeypatch.setattr(floor, "PATIENCE", 0.3)
    await use(table, "a")
    await use(table, "z")
    held = await acquire(table, KEY)
    async with held, pool.acquire() as connection:
        async with held.transaction(connection):
            advancing = asyncio.create_task(table.advance_fences(100))
            with caplog.at_level(logging.WARNING, "asyncpg_lease"):
                async with asyncio.timeout(10):
                    while not caplog.records:
                        await asyncio.sleep(0.05)
            assert "fence=101 keys='k'" in caplog.records[0].getMessage()
            async with asyncio.timeout(10):
                assert (await use(table, "a"), await use(table, "z"), await use(table, "new")) == (102, 102, 102)
            assert await observe.fence(KEY) == 1
            assert not advancing.done()
        assert await advancing == 101
        assert await observe.fence(KEY) == 101


async def test_lift_that_stands_still_locks_no_more_than_its_batch(table: LeaseTable, session: Connection) -> None:
    """Claims of keys that are being lifted are refused, not held up, and all others go on."""
    for key in ("a", "b", "c"):
        await use(table, key)
    async with session.transaction():
        assert await ask(session, STATEMENTS.lift, "", "100", "2") == [(2, "b")]
        async with asyncio.timeout(10):
            assert await try_acquire(table, "a") is None
            assert await use(table, "c") == 2
            assert await use(table, "new") == 1


async def test_lift_statement_lowers_no_fence(table: LeaseTable, session: Connection, observe: Observer) -> None:
    """A row that was lifted further meanwhile stays where it is."""
    await use(table, "low", 3)
    await use(table, "high", 12)
    assert await ask(session, STATEMENTS.lift, "", "10", "10") == [(1, "low")]
    assert (await observe.fence("low"), await observe.fence("high")) == (10, 12)


@pytest.mark.slow("an advance looks again after real time")
@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_advance_waits_for_a_first_claim_that_began_before_it(
    table: LeaseTable, observe: Observer, dsn: str, isolation: str
) -> None:
    """A row that is being made below the new floor is lifted as well, or its fence would repeat a lost one."""
    await use(table, "other")
    await table.prune(0)
    async with sessions(dsn, 1, default_transaction_isolation=isolation) as (slow,):
        async with paused(observe):
            claiming = asyncio.create_task(claim(slow, KEY, "slow"))
            await until_blocked(observe.connection, slow)
            advancing = asyncio.create_task(table.advance_fences(100))
            await asyncio.wait([advancing], timeout=0.5)
        row = await claiming
        assert row is not None
        assert row.fence == 2
        assert await advancing == 101
    assert await observe.fence(KEY) == 101


@pytest.mark.slow("an advance looks again after real time")
async def test_advance_beside_claims_leaves_no_fence_behind(
    table: LeaseTable, make_pool: MakePool, observe: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that are claimed, released and made while it goes on have a greater fence than it returned, from then on."""
    monkeypatch.setattr(floor, "BATCH", 7)
    await fill(observe.connection, 200)
    pools = [await make_pool(max_size=2) for _ in range(3)]
    ended = asyncio.Event()

    async def contend(number: int) -> None:
        at = 0
        while not ended.is_set():
            at += 1
            held = await try_acquire(pools[number % 3], f"key-{(at * 7 + number) % 230}")
            if held is not None:
                await held.release()

    contenders = [asyncio.create_task(contend(number)) for number in range(6)]
    for _ in range(4):
        fence = await table.advance_fences(50)
        fences = [row["fence"] for row in await observe.rows()]
        assert min(fences) >= fence
        assert await observe.fence("") == fence
    ended.set()
    await asyncio.gather(*contenders)


@pytest.mark.slow("takes half a second or so")
async def test_advances_at_once_all_end_above_what_was(
    table: LeaseTable, make_pool: MakePool, observe: Observer
) -> None:
    """Two operators who do the same at once do no harm: all rows end at the greatest."""
    await fill(observe.connection, 300, fence=5)
    tables = [LeaseTable(await make_pool()) for _ in range(4)]
    done = await asyncio.gather(*(one.advance_fences(10 + number) for number, one in enumerate(tables)))
    assert min(done) >= 15
    assert {row["fence"] for row in await observe.rows()} == {max(done)}
    assert await use(table, "new") == max(done) + 1


@pytest.mark.slow("an advance looks again after real time")
async def test_advance_that_was_cancelled_is_run_again(
    table: LeaseTable, observe: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the rows lifted is no harm: the floor went first, and the next call lifts all."""
    monkeypatch.setattr(floor, "BATCH", 5)
    await fill(observe.connection, 50, fence=3)
    async with observe.locked("key-20", "KEY SHARE"):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await table.advance_fences(10)
        assert await observe.fence("") == 13
        assert await observe.fence("key-20") == 3
        assert await observe.fence("key-9") == 13
        assert await use(table, "new") == 14
    assert await table.advance_fences(10) == 24
    assert {row["fence"] for row in await observe.rows()} == {24}


async def test_advance_whose_floor_is_deleted_meanwhile_says_so(table: LeaseTable, observe: Observer) -> None:
    """Without the reserved row new keys would start at 1: no row is lifted, and the error says to run it again."""
    await use(table, KEY)
    await observe.connection.execute(
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN DELETE FROM lease WHERE key = ''; RETURN NULL; END $$;"
        "CREATE TRIGGER lose AFTER UPDATE ON lease FOR EACH ROW WHEN (NEW.key = '' AND NEW.released_at IS NOT NULL)"
        " EXECUTE FUNCTION lose()"
    )
    with pytest.raises(LeaseTableError, match="the reserved row"):
        await table.advance_fences(10)
    assert await observe.fence(KEY) == 1
    await observe.connection.execute("DROP TRIGGER lose ON lease")
    assert await table.advance_fences(10) == 11


async def test_advance_that_bigint_cannot_hold_is_refused(table: LeaseTable, observe: Observer) -> None:
    """Half of what a bigint holds is left for acquisitions; nothing is changed by the refusal."""
    await use(table, KEY)
    await observe.connection.execute("UPDATE lease SET fence = $1", 2**62 - 10)
    with pytest.raises(ValueError, match=rf"its greatest fence is {2**62 - 10}, and with 10 more it passes 2\*\*62"):
        await table.advance_fences(10)
    assert await table.advance_fences(9) == 2**62 - 1
    assert await use(table, KEY) == 2**62


@pytest.mark.parametrize("by", [0, -1, 2**40 + 1, True, 1.0, "1", None])
async def test_advance_by_what_is_no_number_of_acquisitions_is_refused(
    table: LeaseTable, observe: Observer, by: object
) -> None:
    """1 to 2**40, before anything is sent."""
    await use(table, KEY)
    with pytest.raises((TypeError, ValueError), match="by must be"):
        await table.advance_fences(by)  # type: ignore[arg-type]
    assert [row["fence"] for row in await observe.rows()] == [1]


async def test_advance_is_one_line_in_the_log(table: LeaseTable, caplog: pytest.LogCaptureFixture) -> None:
    """What it did is in the text and in the record's fields."""
    await use(table, KEY, 3)
    with caplog.at_level(logging.INFO, "asyncpg_lease"):
        caplog.clear()
        await table.advance_fences(2**40)
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert record.getMessage() == f'fences advanced: fence={2**40 + 3} by={2**40} lifted=1 table="public"."lease"'
    said = {name: value for name, value in vars(record).items() if name.startswith("lease_")}
    assert said == {
        "lease_fence": 2**40 + 3,
        "lease_by": 2**40,
        "lease_lifted": 1,
        "lease_table": '"public"."lease"',
    }


async def test_prune_after_an_advance_keeps_the_floor(table: LeaseTable, observe: Observer) -> None:
    """Lifted rows are pruned as others are, and the floor stays where the advance set it."""
    await use(table, KEY)
    await table.advance_fences(100)
    await observe.shift(KEY, -DAY)
    assert (await table.prune(3600)).floor == 101
    assert await use(table, KEY) == 102
