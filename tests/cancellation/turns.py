"""The turns of the running event loop, counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self


class Turns:
    """Counts the loop's turns and calls back after each, outside of every task and callback.

    asyncio's own loops are followed from outside: they sleep where there is nothing to do, so a use takes some dozens
    of turns, and each can be tried. Any other loop is kept turning by a callback of ours; a wait for the server is as
    many turns as the loop can make meanwhile.

    Attributes:
        count: turns so far.
        few: whether the loop turns only where there is something to do.
        callback: what to call after each turn.
    """

    def __init__(self) -> None:
        self.count = 0
        self.callback: Callable[[], object] | None = None
        # Private, and the same in all Pythons that asyncio's run_forever() has had.
        self._loop: Any = asyncio.get_running_loop()
        self.few: bool = isinstance(self._loop, asyncio.BaseEventLoop)
        self._over = False

    def __enter__(self) -> Self:
        if self.few:
            run_once = self._loop._run_once  # noqa: SLF001

            def followed() -> None:
                run_once()
                self._note()

            self._loop._run_once = followed  # noqa: SLF001
        else:
            self._loop.call_soon(self._keep_turning)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        if self.few:
            del self._loop._run_once  # noqa: SLF001

    def _keep_turning(self) -> None:
        if not self._over:
            self._note()
            self._loop.call_soon(self._keep_turning)

    def _note(self) -> None:
        self.count += 1
        if self.callback is not None:
            self.callback()
