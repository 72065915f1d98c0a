"""Services under load while their primary is lost and a synchronous standby is promoted."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from tests.failover.load import KEYS, TTL, serve, until_bodies
from tests.history.gather import Post, gathering
from tests.history.judge import broken_rules
from tests.history.records import Fault
from tests.history.report import figures, stories
from tests.support.cluster import Pair
from tests.support.processes import Child, Spawn

PROCESSES = 3
FAILOVERS = 2
"""To the standby, and back to the node that was lost first."""


@pytest.mark.night("services work through two failovers, and a server is copied before each")
async def test_synchronous_failover_under_load_loses_nothing_and_lets_no_two_in(pair: Pair, spawn: Spawn) -> None:
    """Fences rise through it, bodies never overlap, what was confirmed is there, and every call comes through."""
    dsn, numbers = pair.dsn, itertools.count(1)

    async def start(number: int) -> Child:
        return await spawn(serve, dsn, number, 1)

    async with gathering(dsn, KEYS, TTL) as (history, _), asyncio.TaskGroup() as group:
        posts = [Post(history, start, numbers) for _ in range(PROCESSES)]
        for post in posts:
            group.create_task(post.keep())
        for _ in range(FAILOVERS):
            await pair.cluster.restore()
            await pair.cluster.set_synchronous(True)
            await until_bodies(history, KEYS)
            began = time.monotonic()
            await pair.cluster.fail_over()
            history.faults.append(Fault("failover", began, time.monotonic()))
        await until_bodies(history, KEYS)
        history.add("closed", time.monotonic())
        for post in posts:
            await post.stop()
    assert broken_rules(history) == {}, "\n".join([*figures(history), *stories(history)])
    assert history.confirmed
