"""What a run prints: counts that are honest, and the story of what was broken."""

from __future__ import annotations

from tests.history.forged import read, sound, stall, version, with_body
from tests.history.history import Event
from tests.history.judge import RULES
from tests.history.report import LINES, figures, stories, told_in_time


def test_bodies_that_are_told_in_time_are_counted() -> None:
    """Of those that could not reach the server, without those whose process stood still."""
    assert told_in_time(read(sound())) == (1, 1)
    late = with_body(sound(), 2, 12.01, 13.2, "lost: unreachable", told=13.1)
    assert told_in_time(read(late)) == (0, 1)
    assert told_in_time(read([*late, stall(2, 13.05, 0.5)])) == (0, 0)


def test_story_tells_what_was_before() -> None:
    """Of that key alone, the last lines, up to the moment, and what was done to whoever had it."""
    events = with_body(sound(), 2, 12.01, 13.6, "lost: unreachable", told=12.9)
    others = [{**version(100 + number, 12.5, 9, 1, 13.5, began=12.5), "key": "b"} for number in range(50)]
    told = "\n".join(stories(read([*events, *others])))
    assert "bodies at once, 4.210 s after the beginning" in told
    assert "fault: frozen network, process 2, for 1.400 s" in told
    assert "process 2: RenewFailed no answer to the renewal" in told
    assert "process-4/x" not in told
    assert "process-9/x" not in told
    assert len(told.splitlines()) <= LINES + 2


def test_story_of_much_that_is_broken_is_short() -> None:
    """The first ones, and how many more there were."""
    wrong: list[Event] = [{"what": "wrong", "at": 10.0 + number, "process": 1, "name": "w"} for number in range(5)]
    assert "... and 2 more of these" in list(stories(read([*sound(), *wrong])))


def test_figures_say_what_was_broken() -> None:
    """Each rule that was broken, with its count."""
    *_, last = figures(read(with_body(sound(), 2, 12.01, 13.6, told=12.9)))
    assert last.split() == ["broken", "rules", "bodies", "at", "once", "1", "of", f"{len(RULES)}"]
    *_, last = figures(read(sound()))
    assert last.split() == ["broken", "rules", "none", "of", f"{len(RULES)}"]
