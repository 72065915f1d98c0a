"""Fixtures for failovers: two clusters of a primary and a standby, one of them with clocks that can be turned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from asyncpg_lease import LeaseTable
from tests.conftest import MakePool
from tests.support.cluster import Cluster, Pair, find_faketime
from tests.support.typing import Pool


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A primary, and a standby where a test asks for one."""
    with Cluster(request.config.getoption("--programs")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def clocked_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The same, with clocks that can be turned."""
    library = find_faketime()
    with Cluster(request.config.getoption("--programs"), library) as cluster:
        yield cluster


@pytest.fixture
async def pair(cluster: Cluster) -> AsyncIterator[Pair]:
    """A new database on a primary and its standby, which follows asynchronously."""
    async with cluster.database() as pair:
        yield pair


@pytest.fixture
async def clocked(clocked_cluster: Cluster) -> AsyncIterator[Pair]:
    """A new database on a primary whose clock can be turned; whether it has a standby is not asked."""
    async with clocked_cluster.database(standby=False) as pair:
        yield pair


@pytest.fixture
async def clocked_pair(clocked_cluster: Cluster) -> AsyncIterator[Pair]:
    """A new database on a primary and its standby, which follows asynchronously; both clocks can be turned."""
    async with clocked_cluster.database() as pair:
        yield pair


async def with_table(pair: Pair, make_pool: MakePool) -> Pool:
    """Return a pool of the pair's nodes with a lease table that both have."""
    pool = await make_pool(pair.dsn)
    await LeaseTable(pool).create()
    await pair.cluster.catch_up()
    return pool
