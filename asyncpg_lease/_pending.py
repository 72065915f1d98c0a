"""What is still to be settled or released, and of whom."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from asyncpg_lease._clock import local_time

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

__all__ = ["Pending"]


class Pending:
    """Claims and releases under way, for whoever has to wait until nothing is left of them."""

    def __init__(self) -> None:
        self._whose: dict[asyncio.Future[Any], tuple[str, str]] = {}

    def __repr__(self) -> str:
        return f"<Pending {sorted(self._whose.values())}>"

    def note(self, future: asyncio.Future[T], key: str, holder: str) -> asyncio.Future[T]:
        """Keep a future until it is done; its error is retrieved, or asyncio would complain about it."""
        self._whose[future] = (key, holder)
        future.add_done_callback(self._forget)
        return future

    async def wait_for_all(self) -> None:
        """Wait for what is under way now."""
        if self._whose:
            await asyncio.wait(set(self._whose))

    async def wait_for_turn(self, key: str, holder: str, until: float, check: Callable[[], None]) -> None:
        """Wait until nothing of this holder's is under way on the key.

        Args:
            key: the key.
            holder: the holder.
            until: when to give up, in `local_time` seconds.
            check: called after each wait; raises where there is no use in going on.

        Raises:
            TimeoutError: something still is under way then.
        """
        while earlier := [future for future, whose in self._whose.items() if whose == (key, holder)]:
            left = until - local_time()
            if left <= 0:
                msg = f"the last claim or release of {key!r} by {holder!r} has not come to its end yet"
                raise TimeoutError(msg)
            await asyncio.wait(earlier, timeout=left)
            check()

    def _forget(self, future: asyncio.Future[Any]) -> None:
        del self._whose[future]
        if not future.cancelled():
            future.exception()
