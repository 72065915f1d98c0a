"""Holders that are stopped by SIGSTOP in the middle of their writes: the short form of `nox -s fencing`."""

from __future__ import annotations

import sys

import pytest

from tests.fencing.paused import GUARDED_A_ROUND, run_plan
from tests.fencing.paused_history import complaints, table
from tests.fencing.paused_tenures import AT_ONCE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="whether a child has stopped is asked in Linux's way")


async def test_paused_holders_commit_nothing_stale_where_they_are_guarded_and_else_do(dsn: str) -> None:
    """Each path, isolation and point once: no stale commit with a guard or a fence, and some of the control's."""
    histories = await run_plan(dsn, rounds=1, seed=1, processes=1)
    # Those of the batch whose leases run out by themselves may have done so before their points.
    found = list(complaints(histories, least_guarded=GUARDED_A_ROUND - AT_ONCE, least_stale=5))
    assert found == [], "\n".join(table(histories))
