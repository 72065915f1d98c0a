"""A Ctrl-C, or an exit, that hits one of the library's own tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from tests.support.leasing import until, warm
from tests.support.loops import chosen_factory, run
from tests.support.rings import quick_few
from tests.support.typing import Pool

KEY = "interrupted"


class Hit:
    """Where a signal's handler raises, once."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._armed = ""

    def arm(self, where: str) -> None:
        """Raise when a connection is given out for the next time ("setup"), or when it is answered ("fetch")."""
        self._armed = where

    def pass_by(self, where: str) -> None:
        """Raise, if armed for here."""
        if self._armed == where:
            self._armed = ""
            raise self._error

    async def setup(self, _: object, /) -> None:
        """Be the pool's hook."""
        self.pass_by("setup")

    @property
    def connection_class(self) -> type[asyncpg.Connection]:
        """Connections that are hit."""

        class Connection(asyncpg.Connection):
            async def fetch(connection, *args: Any, **options: Any) -> Any:  # noqa: N805, ANN401
                rows = await super().fetch(*args, **options)
                self.pass_by("fetch")
                return rows

        return Connection


async def claim(pool: Pool, hit: Hit, where: str) -> None:
    """Be hit while a claim waits for its connection."""
    hit.arm(where)
    await acquire(pool, KEY, ttl=60)


async def leave(pool: Pool, hit: Hit, where: str) -> None:
    """Be hit while a release waits for its connection."""
    async with lease(pool, KEY, ttl=60):
        await until(lambda: pool.get_idle_size() == pool.get_size())
        hit.arm(where)


async def beat(pool: Pool, hit: Hit, where: str) -> None:
    """Be hit while a renewal waits for its connection."""
    async with lease(pool, KEY, ttl=60, heartbeat=0.1):
        await until(lambda: pool.get_idle_size() == pool.get_size())
        hit.arm(where)
        await asyncio.sleep(60)


Work = Callable[[Pool, Hit, str], Awaitable[None]]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["setup", "fetch"])
@pytest.mark.parametrize("work", quick_few([claim, leave, beat], 1))
def test_interrupt_of_a_task_of_the_librarys_ends_the_loop_and_leaves_nothing_claimed(
    dsn: str, work: Work, where: str, error: BaseException
) -> None:
    """It comes out of the loop, as in a task of the user's own; the lease is given back while that is wound up."""
    hit = Hit(error)

    async def main() -> None:
        options: dict[str, Any] = {"setup": hit.setup, "connection_class": hit.connection_class}
        # Two of them, since asyncpg loses one in whose hook such an error is raised.
        async with asyncpg.create_pool(dsn, min_size=2, max_size=2, **options) as pool:
            await LeaseTable(pool).create()
            await warm(pool)
            await work(pool, hit, where)
            # It may come a turn after this task has got its answer.
            await asyncio.sleep(60)

    loop = chosen_factory()()
    try:
        task = loop.create_task(main())
        with pytest.raises(type(error)) as caught:
            loop.run_until_complete(task)
        assert caught.value is error
        # As asyncio.run() does.
        task.cancel()
        loop.run_until_complete(asyncio.wait([task], timeout=10))
    finally:
        loop.close()
    assert run(is_free(dsn))


async def is_free(dsn: str) -> bool:
    """Ask a new connection."""
    connection = await asyncpg.connect(dsn)
    try:
        return True is await connection.fetchval(
            "SELECT NOT EXISTS (SELECT FROM lease WHERE expires_at > clock_timestamp())"
        )
    finally:
        await connection.close()
