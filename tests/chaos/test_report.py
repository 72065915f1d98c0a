"""What a run prints: counts that are honest, and the story of what was broken."""

from __future__ import annotations

from tests.chaos.forged import sound, version, with_body, with_stall
from tests.chaos.history import Notice
from tests.chaos.report import LINES, stories, summary, told_in_time

FROZEN = "frozen network"


def test_bodies_that_are_told_in_time_are_counted() -> None:
    """Of those that could not reach the server, without those whose process stood still."""
    assert told_in_time(sound()) == (1, 1)
    late = with_body(sound(), 2, told=13.1, ended=13.2)
    assert told_in_time(late) == (0, 1)
    assert told_in_time(with_stall(late, 2, 13.05, 0.5)) == (0, 0)


def test_story_tells_what_was_before() -> None:
    """Of that key alone, the last lines, up to the moment, and what was done to whoever had it."""
    history = with_body(sound(), 2, ended=13.6)
    history.versions += [version(100 + number, 9.5, 0, 0, 9.6, began=9.5)._replace(key="b") for number in range(50)]
    told = "\n".join(stories(history))
    assert "bodies at once, 4.210 s after the beginning" in told
    assert "fault: frozen network, process 2, for 1.400 s" in told
    assert "process 2: RenewFailed no answer to the renewal" in told
    assert "taken" not in told
    assert "process-4/x" not in told
    assert "key='b'" not in told
    assert len(told.splitlines()) <= LINES + 2


def test_story_of_much_that_is_broken_is_short() -> None:
    """The first ones, and how many more there were."""
    history = sound()
    history.wrong = [Notice(10.0 + number, 1, "wrong", "a") for number in range(5)]
    assert "... and 2 more of these" in list(stories(history))


def test_summary_says_what_was_broken() -> None:
    """Each rule with its count."""
    lines = list(summary(with_body(sound(), 2, ended=13.6)))
    assert any(line.startswith("broken rules") and "bodies at once 1" in line for line in lines)
    assert any(line.split() == [*FROZEN.split(), "1", "1", "1"] for line in lines)
