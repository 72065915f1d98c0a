"""What the demo's story takes for a late write, on events that no process has sent."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from tests.support.inside import Event, Fault, FaultKind, tell_story

_RESUMED = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "fence", "seconds", "late"),
    [
        ("wrote", 3, -1, False),  # it was stopped before it could say so
        ("wrote", 3, 0.1, True),
        ("wrote", 4, 0.1, False),  # the server was restarted in that tenure, nobody was paused
        ("refused", 3, 0.1, True),
    ],
)
def test_story_takes_for_late_what_was_written_after_the_pause(
    kind: str, fence: int, seconds: float, late: bool
) -> None:
    """When a worker says that it wrote is not when it wrote: the database's time of the write counts."""
    heard: list[bool] = []
    narrator = SimpleNamespace(hear=lambda _event, *, late, writes: heard.append(late))  # noqa: ARG005
    faults = [
        Fault(FaultKind.PAUSE, 3, _RESUMED - timedelta(seconds=2), _RESUMED),
        Fault(FaultKind.RESTART, 4, _RESUMED - timedelta(seconds=1), _RESUMED),
    ]
    tell_story(narrator, faults, Event(0, "worker-1", kind, fence, at=_RESUMED + timedelta(seconds=seconds)))
    assert heard == [late]
