"""Fixtures of the tests of fenced writes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from asyncpg_lease import LeaseTable
from tests.support.observe import Observer
from tests.support.typing import Connection


@pytest.fixture(autouse=True)
async def journal(table: LeaseTable, observe: Observer) -> None:  # noqa: ARG001 - both tables are there
    """The lease table and the table that the job writes."""
    await observe.connection.execute("CREATE TABLE journal (who text NOT NULL)")


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator[Connection]:
    """A connection of its own, of no pool."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()
