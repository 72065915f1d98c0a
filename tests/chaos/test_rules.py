"""What judges a run finds each thing that must not be, on forged histories, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.forged import OFFSET, body, sound, version, with_body, with_stall, with_version
from tests.chaos.history import Fault, History, Notice, Write, tenures
from tests.chaos.rules import RULES, broken_rules, excused

FORCED = Fault("revoked by force", 12.4, 12.5, key="a")


def test_sound_history_breaks_no_rule() -> None:
    """Tenures one after the other, fences that rise, bodies that end in time, and each key to be had in the end."""
    assert broken_rules(sound()) == {}
    assert broken_rules(History()) == {}


def test_tenures_are_read_from_the_rows_alone() -> None:
    """Each has one holder, and is over when it was released, or ran out after its last renewal."""
    assert [(each.first, each.began, each.until) for each in tenures(sound().versions)] == [
        (1, 10.0 + OFFSET, 11.0 + OFFSET),
        (2, 12.0 + OFFSET, 13.0 + OFFSET),
        (3, 13.2 + OFFSET, 14.0 + OFFSET),
        (4, 15.0 + OFFSET, 15.5 + OFFSET),
    ]


@pytest.mark.parametrize("until", [13.21, 99.0])
def test_tenure_that_begins_before_the_last_one_is_over_is_found(until: float) -> None:
    """By the server's own clock, and by however little."""
    history = with_version(sound(), 4, expires_at=until + OFFSET)
    assert "tenures overlap" in broken_rules(history)


def test_tenure_that_begins_while_a_deleted_one_is_live_is_found() -> None:
    """Whoever deletes a live row lets two in."""
    history = with_version(
        with_version(sound(), 6, released=False, expires_at=15.1 + OFFSET), 7, expires_at=15.1 + OFFSET
    )
    assert "tenures overlap" in broken_rules(history)


@pytest.mark.parametrize(("number", "fence"), [(4, 1), (4, 0), (8, 3), (8, 1), (2, 0)])
def test_fence_that_does_not_rise_is_found(number: int, fence: int) -> None:
    """The same one again, a lower one, after a prune too, and within a tenure."""
    assert "fences out of order" in broken_rules(with_version(sound(), number, fence=fence))


def test_fence_that_an_operator_advances_within_a_tenure_is_in_order() -> None:
    """It rises, and the holder stays."""
    history = sound()
    history.versions.insert(4, version(4, 12.5, 2, 2, 13.0, began=12.0)._replace(number=4, fence=2))
    history.versions[4] = history.versions[4]._replace(at=12.5 + OFFSET)
    assert "fences out of order" not in broken_rules(history)


@pytest.mark.parametrize(
    "again",
    [
        version(3, 11.1, 1, 1, 12.0, began=10.0),
        version(7, 14.6, 3, 3, 15.0, began=13.2),
    ],
)
def test_tenure_that_lives_again_is_found(again: object) -> None:
    """After its release, or after its row was deleted."""
    history = sound()
    assert isinstance(again, type(history.versions[0]))
    history.versions = sorted([*history.versions, again], key=lambda each: (each.number, each.at))
    history.versions = [each._replace(number=number) for number, each in enumerate(history.versions)]
    assert "tenures revived" in broken_rules(history)


@pytest.mark.parametrize("changes", [{"fence": 9}, {"holder": "process-1/y"}, {"key": "b"}])
def test_body_without_a_tenure_is_found(changes: dict[str, object]) -> None:
    """The server knows nothing of that fence, that holder, or that key."""
    assert "bodies without a tenure" in broken_rules(with_body(sound(), 1, **changes))


@pytest.mark.parametrize("ended", [13.3, float("inf")])
def test_bodies_at_once_are_found(ended: float) -> None:
    """One that began before the other one had ended, though the other had been told in time."""
    assert set(broken_rules(with_body(sound(), 2, ended=ended))) == {"bodies at once"}


def test_body_is_excused_for_as_long_as_its_process_stood_still() -> None:
    """For as long as that, and the grace that it had: a moment less explains nothing."""
    late = with_body(sound(), 2, told=13.5, ended=13.51)
    assert set(broken_rules(late)) == {"bodies at once", "bodies told too late"}
    assert broken_rules(with_stall(late, 2, 13.5, 0.62)) == {}
    assert excused(late) == (1, 1)
    assert set(broken_rules(with_stall(late, 2, 13.5, 0.55))) == {"bodies told too late"}
    assert set(broken_rules(with_stall(late, 2, 13.5, 0.3))) == {"bodies at once", "bodies told too late"}


@pytest.mark.parametrize("who_and_when", [(3, 13.5), (2, 12.4), (2, 20.0)])
def test_standing_still_of_others_or_at_another_time_excuses_nothing(who_and_when: tuple[int, float]) -> None:
    """It was another process, or long before, or after the body had ended."""
    late = with_body(sound(), 2, told=13.5, ended=13.51)
    assert set(broken_rules(with_stall(late, *who_and_when, 1.0))) == {"bodies at once", "bodies told too late"}


def test_body_that_is_told_when_its_tenure_is_over_is_found() -> None:
    """Even where it has no successor yet; what was told in the last moment is in time."""
    assert set(broken_rules(with_body(sound(), 2, told=13.05, ended=13.1))) == {"bodies told too late"}
    assert broken_rules(with_body(sound(), 2, told=12.99, ended=13.1)) == {}


def test_body_that_ends_by_itself_when_its_tenure_is_over_is_found() -> None:
    """Nobody told it."""
    late = with_body(sound(), 2, told=float("inf"), ended=13.1, outcome="done")
    assert "bodies told too late" in broken_rules(late)


def test_body_whose_tenure_was_ended_by_force_is_excused() -> None:
    """The row says that it was cut short, and an operator that he did so; one of the two is not enough."""
    history = with_body(sound(), 2, told=12.9, ended=13.3)
    history.versions.insert(4, version(4, 12.45, 2, 2, 12.45, began=12.0))
    history.versions = [each._replace(number=number) for number, each in enumerate(history.versions)]
    assert set(broken_rules(history)) == {"bodies at once", "bodies told too late"}
    history.faults.append(FORCED)
    assert broken_rules(history) == {}
    history.faults[-1] = FORCED._replace(key="b")
    assert "bodies at once" in broken_rules(history)
    history.faults[-1] = FORCED._replace(began=15.0, ended=15.1)
    assert "bodies at once" in broken_rules(history)


def test_write_of_a_lower_fence_after_a_higher_one_is_found() -> None:
    """In the order of acceptance, whatever the order in which they were read."""
    history = sound()
    history.writes.insert(0, Write(5, 13.31 + OFFSET, "a", 2, guarded=False))
    assert set(broken_rules(history)) == {"writes out of order"}


def test_guarded_write_after_a_later_tenure_has_begun_is_found() -> None:
    """Even where that one has written nothing yet; a late write without a guard may be accepted then."""
    history = sound()
    history.writes[2] = Write(3, 13.25 + OFFSET, "a", 2, guarded=True)
    assert set(broken_rules(history)) == {"guarded writes too late"}
    history.writes[2] = history.writes[2]._replace(guarded=False)
    assert broken_rules(history) == {}


def _left(history: History) -> History:
    """Have the third tenure run out in place of its release."""
    history = with_version(history, 6, released=False, expires_at=14.9 + OFFSET)
    return with_body(history, 3, ended=13.6)


def test_tenure_that_is_left_claimed_is_found() -> None:
    """Its body had ended, nothing stood in the way, and it ran out all the same."""
    assert set(broken_rules(_left(sound()))) == {"tenures left claimed"}


def test_claim_that_nobody_had_and_that_is_not_given_back_is_found() -> None:
    """Its caller was cancelled before the answer came."""
    history = sound()
    history.versions = [each for each in history.versions if each.number != 9]
    history.bodies.pop()
    history.versions[-1] = history.versions[-1]._replace(expires_at=16.4 + OFFSET)
    history.closed = 16.5
    assert set(broken_rules(history)) == {"tenures left claimed"}
    history.closed = 16.3
    assert broken_rules(history) == {}


@pytest.mark.parametrize(
    "fault",
    [
        Fault("frozen network", 13.8, 14.1, 3),
        Fault("server restarted", 14.0, 14.1),
        Fault("process killed", 13.95, 13.95, 3),
        Fault("process killed", 13.7, 13.7, 3),
    ],
)
def test_tenure_that_could_not_be_released_is_not_left_claimed(fault: Fault) -> None:
    """The server was out of reach, or nobody was there any more."""
    history = _left(sound())
    history.faults.append(fault)
    assert broken_rules(history) == {}
    history.faults[-1] = fault._replace(process=7)
    assert broken_rules(history) != {}


def test_tenure_is_not_left_claimed_while_some_session_is_stopped() -> None:
    """Of whichever process: it may hold a lock of the server's own."""
    history = _left(sound())
    history.faults.append(Fault("session stopped", 14.0, 14.1, 7))
    assert broken_rules(history) == {}


def test_tenure_whose_process_stood_still_is_not_left_claimed() -> None:
    """It had no time to release it."""
    assert broken_rules(with_stall(_left(sound()), 3, 14.6, 0.7)) == {}


@pytest.mark.parametrize("again", [{}, {"a": 16.6 + OFFSET}])
def test_key_that_is_free_and_is_not_had_is_found(again: dict[str, float]) -> None:
    """It is not to be had after the faults, or only long after nobody was there any more."""
    history = sound()
    history.acquired_again = again
    assert set(broken_rules(history)) == {"keys stuck"}


def test_key_that_runs_out_within_a_ttl_is_waited_for() -> None:
    """Its holder was killed; whoever comes for it has it as soon as it has run out, and not half a second later."""
    history = with_version(sound(), 9, released=False, expires_at=16.9 + OFFSET)
    history.acquired_again = {"a": 17.3 + OFFSET}
    assert broken_rules(history) == {}
    history.acquired_again = {"a": 17.5 + OFFSET}
    assert set(broken_rules(history)) == {"keys stuck"}


def test_key_that_is_shut_for_longer_than_a_ttl_is_found() -> None:
    """By the row itself, however soon it was had after that: no allowance for a busy machine."""
    history = with_version(sound(), 9, released=False, expires_at=17.01 + OFFSET)
    history.acquired_again = {"a": 17.02 + OFFSET}
    assert set(broken_rules(history)) == {"keys stuck"}


def test_what_a_process_saw_that_must_not_be_is_found() -> None:
    """Such as a cancellation that was swallowed."""
    history = sound()
    history.wrong.append(Notice(12.0, 2, "a cancellation was swallowed", "a"))
    assert set(broken_rules(history)) == {"seen by a process"}


def test_two_keys_have_nothing_to_do_with_each_other() -> None:
    """Tenures, bodies, fences and writes of another key change nothing."""
    history, other = sound(), sound()
    for each in other.bodies:
        each.key = "b"
        history.bodies.append(each)
    history.versions += [each._replace(key="b", number=100 + each.number) for each in other.versions]
    history.writes += [each._replace(key="b", number=100 + each.number) for each in other.writes]
    assert broken_rules(history) == {}


def test_body_of_a_killed_process_is_judged_by_its_last_moment() -> None:
    """What it had not been told by then it was not told, unless it stood still until then."""
    history = sound()
    history.bodies[1] = body(2, 2, 12.01, 13.4, "killed")
    assert "bodies at once" in broken_rules(history)
    assert broken_rules(with_stall(history, 2, 13.4, 0.6)) == {}


def test_each_rule_has_a_history_here_that_breaks_it() -> None:
    """None of them is never tried."""
    source = Path(__file__).read_text()
    assert [name for name in RULES if f'"{name}"' not in source] == []
