"""Many acquisitions with crashes, revokes, prunes and advances in between: the short form of `nox -s machine`."""

from __future__ import annotations

import sys

import pytest

from tests.history.forged import fault, notice, read, sound, with_body
from tests.history.judge import FORCED, broken_rules
from tests.history.report import stories
from tests.machine.long_run import OUTCOMES, TAKEN_OVER, complaints, least, run_long, seen, summary


@pytest.mark.slow("processes are killed and started again, and clocks of real time run out")
@pytest.mark.skipif(sys.platform == "win32", reason="processes are killed by a signal, and waited for")
async def test_long_run_has_no_fence_out_of_order_and_no_two_bodies_at_once(dsn: str) -> None:
    """Processes are killed, tenures revoked, rows pruned and fences advanced, and each key is one body's at a time."""
    history = await run_long(dsn, acquisitions=500, seed=1)
    assert broken_rules(history) == {}, "\n".join([*summary(history), *stories(history)])
    assert complaints(history, 500) == []


def test_what_a_long_run_has_to_see_is_counted_from_its_history() -> None:
    """Each count comes from the rows, the bodies, or what was done; a run that has seen nothing has all complaints."""
    events = [
        *with_body(with_body(sound(), 2, 12.01, float("inf")), 3, 13.21, 13.9, "lost: revoked"),
        *(fault("revoked", 12.0, 12.1, key="a", detail=outcome, cuts=False) for outcome in OUTCOMES),
        fault(FORCED, 12.0, 12.1, key="a", detail="ended", cuts=False),
        fault("pruned", 12.0, 12.1, detail="3", cuts=False),
        fault("advanced", 12.0, 12.1, cuts=False),
        notice(12.0, 1, "Lost revoked"),
    ]
    events = [
        event
        for event in events
        if not (event["what"] == "fault" and event["kind"] == "pruned" and "detail" not in event)
    ]
    assert seen(read(events)) == {**least(4), "revokes: ended": 2, "rows pruned": 3}
    assert complaints(read(events), 4) == []
    assert complaints(read([]), 1) == [f"{name}: 0, fewer than 1" for name in least(1)]
    assert TAKEN_OVER in least(1)
