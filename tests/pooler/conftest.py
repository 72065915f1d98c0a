"""Fixtures for leases through PgBouncer: one of the test's own, a pool through it, a table on that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from asyncpg_lease import LeaseTable
from tests.conftest import MakePool
from tests.support.pgbouncer import PgBouncer
from tests.support.runs import NOTES
from tests.support.typing import Pool


@pytest.fixture
def pgbouncer(request: pytest.FixtureRequest, dsn: str) -> Iterator[PgBouncer]:
    """A PgBouncer in front of the test's database, which the test may stop, pause and change."""
    with PgBouncer(dsn) as pgbouncer:
        request.config.stash[NOTES].poolers.add(pgbouncer.label)
        yield pgbouncer


@pytest.fixture
async def pool(pgbouncer: PgBouncer, make_pool: MakePool) -> Pool:
    """A pool of 1 to 4 connections through it, with the setting that it needs."""
    return await make_pool(pgbouncer.dsn, statement_cache_size=0)


@pytest.fixture
async def table(pool: Pool) -> AsyncIterator[LeaseTable]:
    """The lease table on that pool, created through it."""
    table = LeaseTable(pool)
    await table.create()
    yield table
    await table.aclose()
