"""Many claims at once: one winner, no error, whatever the isolation."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from asyncpg_lease import Lease, LeaseTable, lease, try_acquire
from tests.conftest import MakePool
from tests.sql.calls import claim, release, sessions
from tests.support.observe import Observer
from tests.support.typing import Connection, Pool

ISOLATIONS = ["read committed", "repeatable read", "serializable"]
CONTENDERS = 16
# A race shows itself in one round of several; many rounds are for what shows itself seldom.
few_or_many = pytest.mark.parametrize(
    "rounds", [4, pytest.param(25, marks=pytest.mark.slow("many rounds of sixteen contenders"))]
)


async def race(pools: list[Pool], key: str, contenders: int = CONTENDERS) -> Lease:
    """Let many try to acquire at once, and return the one lease that came of it."""
    tries = [try_acquire(pools[number % len(pools)], key) for number in range(contenders)]
    won = [held for held in await asyncio.gather(*tries) if held is not None]
    for held in won[1:]:
        await held.release()
    assert len(won) == 1
    return won[0]


async def make_pools(make_pool: MakePool, isolation: str, count: int = 4) -> list[Pool]:
    """Make pools of four connections, all open, under a default isolation."""
    settings = {"default_transaction_isolation": isolation}
    return [await make_pool(min_size=4, max_size=4, server_settings=settings) for _ in range(count)]


@pytest.mark.usefixtures("table")
@few_or_many
@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_claim_of_a_new_key_by_many_at_once_has_one_winner(
    make_pool: MakePool, observe: Observer, isolation: str, rounds: int
) -> None:
    """Of 16 first claims on 16 connections exactly one is granted, with fence 1, and none fails."""
    pools = await make_pools(make_pool, isolation)
    for number in range(rounds):
        held = await race(pools, f"new-{number}")
        assert held.fence == 1
        await held.release()
    assert len(await observe.rows()) == rounds


@pytest.mark.usefixtures("table")
@few_or_many
@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_claim_of_a_free_row_by_many_at_once_raises_the_fence_by_one(
    make_pool: MakePool, observe: Observer, isolation: str, rounds: int
) -> None:
    """Each change of hands, by release or by running out, has one winner and the next fence."""
    pools = await make_pools(make_pool, isolation)
    fences = []
    for number in range(rounds):
        held = await race(pools, "k")
        fences.append(held.fence)
        if number % 2:
            await observe.expire("k")
        await held.release()
    assert fences == list(range(1, rounds + 1))


@few_or_many
async def test_claim_statement_on_a_new_key_answers_one_grant_and_no_error(
    session: Connection, dsn: str, rounds: int
) -> None:
    """The bare statement, once a connection and without any retry: one grant, and nobody else is told a grant."""
    async with sessions(dsn, CONTENDERS) as contenders:
        await asyncio.gather(*(claim(one, "warm", "x") for one in contenders))
        for number in range(rounds):
            key = f"new-{number}"
            rows = await asyncio.gather(*(claim(one, key, f"h{at}") for at, one in enumerate(contenders)))
            won = [row for row in rows if row is not None and row.how is not None]
            assert [(row.how, row.fence) for row in won] == [("free", 1)]
            assert {row.holder for row in rows if row is not None} == {won[0].holder}
            assert await session.fetchval("SELECT holder FROM lease WHERE key = $1", key) == won[0].holder


@few_or_many
async def test_claim_statement_on_a_free_row_has_strictly_rising_fences(
    session: Connection, dsn: str, rounds: int
) -> None:
    """Contenders that claim and release as fast as they can never get one fence twice, nor a lower one."""
    fences: list[int] = []

    async def contend(one: Connection, holder: str) -> None:
        for _ in range(3 * rounds):
            row = await claim(one, "k", holder)
            if row is not None and row.how is not None:
                fences.append(row.fence)
                assert await release(one, "k", holder, row.fence) == row.fence

    async with sessions(dsn, CONTENDERS) as contenders:
        await asyncio.gather(*(contend(one, f"h{at}") for at, one in enumerate(contenders)))
    assert len(fences) >= rounds
    assert all(one < other for one, other in pairwise(fences))
    assert await session.fetchval("SELECT fence FROM lease") == fences[-1]


@few_or_many
@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_claim_of_a_key_of_ones_own_is_never_refused_for_others_sake(
    table: LeaseTable, make_pool: MakePool, isolation: str, rounds: int
) -> None:
    """16 contenders, each for its own key, all have it each time: no conflict with other rows is an incumbent."""
    pools = await make_pools(make_pool, isolation)
    for _ in range(rounds):
        held = await asyncio.gather(*(try_acquire(pools[number % 4], f"own-{number}") for number in range(CONTENDERS)))
        await asyncio.gather(*(one.release() for one in held if one is not None))
        assert None not in held
    assert {info.fence for info in await table.leases()} == {rounds}


@pytest.mark.parametrize(
    ("isolations", "rounds"),
    [
        (("repeatable read",) * 2, 3),
        (("serializable",) * 2, 3),
        pytest.param(
            ("serializable", "read committed"), 40, marks=pytest.mark.slow("many rounds of twenty contenders")
        ),
        pytest.param(
            ("repeatable read", "serializable"), 40, marks=pytest.mark.slow("many rounds of twenty contenders")
        ),
    ],
    ids=lambda value: " and ".join(value) if isinstance(value, tuple) else str(value),
)
async def test_default_isolation_of_the_database_costs_nobody_a_job(
    table: LeaseTable, make_pool: MakePool, observe: Observer, isolations: tuple[str, str], rounds: int
) -> None:
    """Rounds of 20 contenders have one winner each, and renewals beside them are never lost; mixed ones too."""
    database = await observe.connection.fetchval("SELECT current_database()")
    pools = []
    for isolation in isolations:
        await observe.connection.execute(
            f"ALTER DATABASE {database} SET default_transaction_isolation TO '{isolation}'"
        )
        # Sessions keep what they began with: all of a pool's are opened under its own.
        pools.append(await make_pool(min_size=4, max_size=4))
        assert await pools[-1].fetchval("SHOW transaction_isolation") == isolation
    async with (
        lease(pools[0], "job-0", ttl=60, heartbeat=0.2) as one,
        lease(pools[1], "job-1", ttl=60, heartbeat=0.3) as another,
        lease(table, "job-2", ttl=60, heartbeat=0.2) as third,
    ):
        for number in range(rounds):
            won, _, _, _ = await asyncio.gather(
                race(pools, f"round-{number % 7}", 20), one.renew(), another.renew(), third.renew()
            )
            async with won:
                await won.renew()
    keys = 3 + min(rounds, 7)
    assert [row["released_at"] is None for row in await observe.rows()] == [False] * keys
