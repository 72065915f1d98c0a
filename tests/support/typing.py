"""Names for asyncpg's types: generic for the type checker (by its stubs), plain at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import asyncpg

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Record: TypeAlias = asyncpg.Record
    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Pool: TypeAlias = asyncpg.Pool[asyncpg.Record]
    PooledConnection: TypeAlias = PoolConnectionProxy[asyncpg.Record]
else:
    Record = asyncpg.Record
    Connection = asyncpg.Connection
    Pool = asyncpg.Pool
    PooledConnection = asyncpg.pool.PoolConnectionProxy

__all__ = ["Connection", "Pool", "PooledConnection", "Record"]
