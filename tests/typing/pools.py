"""Pools of every kind that people write; checked, never run. Without asyncpg's stubs a pool is no generic class."""

from __future__ import annotations

from typing import Any, TypeVar, assert_type

import asyncpg

from asyncpg_lease import Lease, LeaseContext, LeaseTable, acquire, lease, try_acquire

RowT = TypeVar("RowT", bound=asyncpg.Record)


class Row(asyncpg.Record):
    """A record class of an application's own."""


async def annotated(
    bare: asyncpg.Pool, plain: asyncpg.Pool[asyncpg.Record], own: asyncpg.Pool[Row], some: asyncpg.Pool[Any]
) -> None:
    """Take a pool whatever the class of its rows is."""
    for context in (lease(bare, "key"), lease(plain, "key"), lease(own, "key"), lease(some, "key")):
        assert_type(context, LeaseContext)
    assert_type(await acquire(own, "key"), Lease)
    assert_type(await try_acquire(own, "key"), Lease | None)
    for table in (LeaseTable(bare), LeaseTable(plain), LeaseTable(own), LeaseTable(some)):
        assert_type(table, LeaseTable)


async def awaited() -> None:
    """Take what `await create_pool()` returns."""
    pool = await asyncpg.create_pool(min_size=1)
    own = await asyncpg.create_pool("postgresql://localhost", record_class=Row)
    assert_type(pool, asyncpg.Pool[asyncpg.Record])
    assert_type(own, asyncpg.Pool[Row])
    lease(pool, "key")
    lease(own, "key")
    LeaseTable(pool)
    LeaseTable(own)


async def entered() -> int:
    """Take what `async with create_pool()` yields."""
    async with asyncpg.create_pool() as pool, asyncpg.create_pool(record_class=Row) as own:
        await LeaseTable(pool).create()
        await LeaseTable(own).create()
        async with lease(pool, "key") as held, lease(own, "other") as other:
            assert_type((held, other), tuple[Lease, Lease])
            return held.fence + other.fence


async def whichever(target: asyncpg.Pool[Row] | LeaseTable) -> Lease:
    """Hand a target on that may be either."""
    return await acquire(target, "key")


async def of_any_rows(pool: asyncpg.Pool[RowT]) -> Lease:
    """Hand a pool on whose row class is a variable."""
    return await acquire(pool, "key")
