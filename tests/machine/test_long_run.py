"""Many acquisitions with crashes, revokes, prunes and advances in between: the short form of `nox -s machine`."""

from __future__ import annotations

import sys

import pytest

from tests.machine.long_run import run_long
from tests.machine.long_run_history import complaints, summary

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by a signal, and waited for")


async def test_long_run_has_no_fence_out_of_order_and_no_two_bodies_at_once(dsn: str) -> None:
    """Processes are killed, tenures revoked, rows pruned and fences advanced, and each key is one body's at a time."""
    history = await run_long(dsn, acquisitions=500, seed=1)
    assert complaints(history, least=500) == [], "\n".join(summary(history))
