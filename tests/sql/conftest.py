"""Fixtures for the statements' tests: the table is there, and a session to run them on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from asyncpg_lease import LeaseTable
from tests.support.typing import Connection


@pytest.fixture
async def session(table: LeaseTable, dsn: str) -> AsyncIterator[Connection]:  # noqa: ARG001
    """A connection to a database in which the table is there and empty."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()
