"""What these tests share: links that die, and a claim that cannot be answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import asyncpg
import pytest

from tests.conftest import MakePool
from tests.faulty.links import MortalLinks


class Inserting(Protocol):
    """Holds a first insert of a key open."""

    def __call__(self, key: str, /) -> AbstractAsyncContextManager[None]:
        """Insert the key's row in a transaction that ends, undone, with the block: its claims wait so long."""


@pytest.fixture
async def links(dsn: str, make_pool: MakePool) -> AsyncIterator[MortalLinks]:  # noqa: ARG001 - torn down first
    """A forwarder to the test's database: `await make_pool(links.dsn)`."""
    async with MortalLinks(dsn) as links:
        yield links


@pytest.fixture
def inserting(dsn: str) -> Inserting:
    """Hold a first insert of a key open: a claim of the key waits on the server for it to end."""

    @asynccontextmanager
    async def insert(key: str) -> AsyncIterator[None]:
        connection = await asyncpg.connect(dsn)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "INSERT INTO lease (key, holder, fence, acquired_at, expires_at)"
            " VALUES ($1, 'other', 1, now(), now() + interval '1 second')",
            key,
        )
        try:
            yield
        finally:
            await transaction.rollback()
            await connection.close()

    return insert
