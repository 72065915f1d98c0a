"""The end of whatever a cancellation has left under way."""

from __future__ import annotations

from tests.support.leftovers import library_tasks
from tests.support.proxy import Proxy
from tests.support.travel import Travel
from tests.support.typing import Pool


async def come_to_an_end(pool: Pool, proxy: Proxy, travel: Travel) -> None:
    """Make the network quick again, and fail unless the library's tasks end and all connections are given back."""
    proxy.delay_requests = proxy.delay_replies = 0

    def is_over() -> bool:
        return not library_tasks() and pool.get_idle_size() == pool.get_size()

    await travel.until(is_over, within=10)
