"""A cancellation at many points of every wait for the server, in every way that there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from asyncpg_lease import LeaseTable, acquire
from tests.cancellation.sweep import WAYS, sweep_delays
from tests.cancellation.uses import (
    Stage,
    Use,
    acquire_and_release,
    enter_and_leave,
    enter_by_name,
    leave,
    wait_for_it,
    work,
)
from tests.conftest import MakePool
from tests.support.observe import Observer
from tests.support.proxy import Proxy

REQUESTS = 0.01
REPLIES = 0.02
ROUND_TRIP = REQUESTS + REPLIES

POINTS = 25
"""How many uses are cancelled, each at another point."""

FEW = 5
"""How many of a short sweep are."""

many = pytest.mark.slow("25 pools, and 25 real delays in each of eight ways; a short form is quick")


class Stages:
    """As many stages as there are points, each on a pool of its own through the proxy."""

    def __init__(self, make_pool: MakePool, proxy: Proxy, others: LeaseTable) -> None:
        self.all: list[Stage] = []
        self._make_pool = make_pool
        self._proxy = proxy
        self._others = others

    async def open(self, points: int = POINTS, *, connections: int = 1) -> None:
        """Make them, with so many connections each."""

        async def make(number: int) -> Stage:
            pool = await self._make_pool(self._proxy.dsn, min_size=connections, max_size=2)
            return Stage(pool, f"swept {number}", self._others)

        self.all = await asyncio.gather(*(make(number) for number in range(points)))

    async def warm(self) -> None:
        """Run claims and releases, so that the next ones are one round trip each."""
        for _ in range(2):
            for held in await asyncio.gather(*(acquire(stage.table, stage.key) for stage in self.all)):
                await held.release()

    def delay(self) -> None:
        """Make every round trip long, from now on."""
        self._proxy.delay_requests, self._proxy.delay_replies = REQUESTS, REPLIES


@pytest.fixture
async def stages(make_pool: MakePool, proxy: Proxy, table: LeaseTable) -> AsyncIterator[Stages]:
    """Stages that are to be opened."""
    yield Stages(make_pool, proxy, table)
    proxy.delay_requests = proxy.delay_replies = 0


# How many round trips a use takes at least.
ROUND_TRIPS: dict[Use, int] = {enter_and_leave: 2, acquire_and_release: 2, leave: 1, work: 6, wait_for_it: 3}


@pytest.mark.slow("takes half a second or so")
@pytest.mark.parametrize("way", ["cancel", "scope"])
@pytest.mark.parametrize("use", ROUND_TRIPS)
async def test_lease_cancelled_at_some_points_of_a_wait_leaves_nothing_claimed(
    stages: Stages, observe: Observer, use: Use, way: str
) -> None:
    """Whatever of a round trip is over, a cancellation comes out as itself, and before long nothing is left."""
    await stages.open(FEW)
    await stages.warm()
    stages.delay()
    assert await sweep_delays(way, use, stages.all, ROUND_TRIPS[use] * ROUND_TRIP, observe) > FEW / 2


@many
@pytest.mark.parametrize("use", ROUND_TRIPS)
async def test_lease_cancelled_at_any_point_of_a_wait_leaves_nothing_claimed(
    stages: Stages, observe: Observer, use: Use
) -> None:
    """So it is at any point, and in every way."""
    await stages.open()
    await stages.warm()
    stages.delay()
    length = ROUND_TRIPS[use] * ROUND_TRIP
    hits = {way: await sweep_delays(way, use, stages.all, length, observe) for way in WAYS}
    assert min(hits.values()) > POINTS / 2, hits


@many
async def test_joined_lease_cancelled_at_any_point_of_a_wait_leaves_the_tenure_to_who_began_it(
    stages: Stages, table: LeaseTable, observe: Observer
) -> None:
    """A claim that joins is not given back, heard of or not."""
    await stages.open()
    await stages.warm()
    shared = [await acquire(table, stage.key, ttl=30, holder="app") for stage in stages.all]
    for stage, held in zip(stages.all, shared, strict=True):
        stage.shared = held
    stages.delay()
    hits = {way: await sweep_delays(way, enter_by_name, stages.all, ROUND_TRIP, observe) for way in WAYS}
    assert min(hits.values()) > POINTS / 2, hits
    for held in shared:
        await held.release()


@many
@pytest.mark.parametrize("way", ["cancel", "scope"])
@pytest.mark.parametrize(("connections", "round_trips"), [(0, 8), (1, 4)])
async def test_first_lease_of_a_pool_cancelled_at_any_point_of_a_wait_leaves_nothing_claimed(
    stages: Stages, observe: Observer, way: str, connections: int, round_trips: int
) -> None:
    """So it is while a connection is being made, the schema looked up, and the statements prepared."""
    await stages.open(connections=connections)
    stages.delay()
    assert await sweep_delays(way, enter_and_leave, stages.all, round_trips * ROUND_TRIP, observe) > POINTS / 2
