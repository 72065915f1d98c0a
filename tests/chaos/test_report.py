"""What a run prints: counts that are honest, and the story of what was broken."""

from __future__ import annotations

import pytest

from tests.chaos.forged import sound, version, with_body, with_stall
from tests.chaos.history import Fault, Notice
from tests.chaos.kinds import KINDS
from tests.chaos.report import LINES, stories, summary, tally, told_in_time, unnoticed

FROZEN = "frozen network"


def test_fault_is_counted_with_what_was_told_of_it_and_the_losses_after_it() -> None:
    """A kind that was not made, or of which nothing was told, is named."""
    counts = tally(sound())
    assert (counts[FROZEN].injected, counts[FROZEN].noticed, counts[FROZEN].lost) == (1, 1, 1)
    assert (counts["pruned"].injected, counts["pruned"].noticed, counts["pruned"].lost) == (1, 1, 0)
    assert unnoticed(sound()) == [name for name in KINDS if name not in {FROZEN, "pruned"}]


@pytest.mark.parametrize(
    ("fault", "notice"),
    [
        (Fault(FROZEN, 12.1, 13.5, 2), Notice(12.6, 3, "RenewFailed", "a")),
        (Fault(FROZEN, 12.1, 13.5, 2), Notice(12.0, 2, "RenewFailed", "a")),
        (Fault(FROZEN, 12.1, 13.5, 2), Notice(14.6, 2, "RenewFailed", "a")),
        (Fault(FROZEN, 12.1, 13.5, 2), Notice(12.6, 2, "Late", "a")),
        (Fault("row locked", 12.1, 13.5, key="a"), Notice(12.6, 2, "RenewFailed", "b")),
        (Fault("process killed", 12.1, 12.1, 2), Notice(12.6, 3, "Taken over", "a")),
    ],
)
def test_fault_is_not_noticed_by_what_does_not_concern_it(fault: Fault, notice: Notice) -> None:
    """What another process told, or told at another time, or of another key, or that is of another kind."""
    history = sound()
    history.faults, history.notices = [fault], [notice]
    count = tally(history)[fault.kind]
    assert (count.injected, count.noticed) == (1, 0)


@pytest.mark.parametrize(
    ("fault", "notice"),
    [
        (Fault("row locked", 12.1, 13.5, key="a"), Notice(12.6, 2, "RenewFailed", "a")),
        (Fault("process killed", 12.1, 12.1, 2), Notice(13.6, 2, "Taken over", "a")),
        (Fault("server restarted", 12.1, 12.6), Notice(13.5, 3, "WaitingFailed", "b")),
        (Fault("cancelled: exit", 12.1, 12.1, 2), Notice(12.2, 2, "Cancelled exit")),
        (Fault("lost reply: release", 11.01, 11.01, 1), Notice(11.08, 1, "Released", "a", holder="process-1/x")),
    ],
)
def test_fault_is_noticed_by_what_concerns_it(fault: Fault, notice: Notice) -> None:
    """By key, by process, or by anybody; a lost release by being told after it was made."""
    history = sound()
    history.faults, history.notices = [fault], [notice]
    assert tally(history)[fault.kind].noticed == 1


def test_release_that_is_told_before_its_reply_was_lost_does_not_count() -> None:
    """It was another one's."""
    history = sound()
    history.faults = [Fault("lost reply: release", 11.01, 11.01, 1)]
    history.notices = [Notice(11.005, 1, "Released", "a", holder="process-1/x")]
    assert tally(history)["lost reply: release"].noticed == 0


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
    assert "process 2: RenewFailed no answer" in told
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
