"""What judges a run finds each thing that must not be, on forged events, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.forged import altered, body, fault, read, sound, stall, version, with_body, without, write
from tests.history.history import Event, History, tenures
from tests.history.judge import FORCED, RULES, SLOW, broken_rules, excused, unseen


def broken(events: list[Event]) -> set[str]:
    """Return which rules are broken."""
    return set(broken_rules(read(events)))


def test_sound_history_breaks_no_rule() -> None:
    """Tenures come one after the other, fences rise, bodies end in time, and each key is free in the end."""
    assert broken(sound()) == set()
    assert broken_rules(History()) == {}


def test_unknown_event_is_an_error() -> None:
    """What is not read cannot be judged."""
    with pytest.raises(ValueError, match="no such event: typo"):
        read([{"what": "typo", "at": 1.0}])


def test_tenures_are_read_from_the_rows_alone() -> None:
    """Each has one holder, and is over when it was released, or ran out after its last renewal."""
    assert [(each.first, each.began, each.until) for each in tenures(read(sound()).versions)] == [
        (1, 10.0, 11.0),
        (2, 12.0, 13.0),
        (3, 13.2, 14.0),
        (4, 15.0, 15.5),
    ]


@pytest.mark.parametrize("until", [13.21, 99.0])
def test_tenure_that_begins_before_the_last_one_is_over_is_found(until: float) -> None:
    """By the server's own clock, and by however little."""
    assert "tenures overlap" in broken(altered(sound(), "version", number_=4, expires_at=until))


def test_tenure_that_begins_while_a_deleted_one_is_live_is_found() -> None:
    """Whoever deletes a live row lets two in."""
    live = altered(sound(), "version", number_=6, released=False, expires_at=15.1)
    assert "tenures overlap" in broken(altered(live, "version", number_=7, expires_at=15.1))


@pytest.mark.parametrize(("number", "fence"), [(4, 1), (4, 0), (8, 3), (8, 1), (2, 0)])
def test_fence_that_does_not_rise_is_found(number: int, fence: int) -> None:
    """The same one again, a lower one, after a prune too, and within a tenure."""
    assert "fences out of order" in broken(altered(sound(), "version", number_=number, fence=fence))


def test_fence_that_an_operator_advances_within_a_tenure_is_in_order() -> None:
    """It rises, and the holder stays."""
    assert broken(altered(sound(), "version", number_=9, fence=9)) == set()


@pytest.mark.parametrize(
    "again", [version(3.5, 11.1, 1, 1, 12.0, began=10.0), version(7.5, 14.6, 3, 3, 15.0, began=13.2)]
)
def test_tenure_that_lives_again_is_found(again: Event) -> None:
    """After its release, or after its row was deleted."""
    assert "tenures revived" in broken([*sound(), again])


@pytest.mark.parametrize("changes", [{"fence": 9}, {"holder": "process-1/y"}, {"key": "b"}])
def test_body_without_a_tenure_is_found(changes: dict[str, object]) -> None:
    """The server knows nothing of that fence, that holder, or that key."""
    assert "bodies without a tenure" in broken(altered(sound(), "began", process_=1, **changes))


@pytest.mark.parametrize("ended", [13.3, float("inf")])
def test_bodies_at_once_are_found(ended: float) -> None:
    """One begins before the other one has ended, though the other was told in time."""
    assert broken(with_body(sound(), 2, 12.01, ended, "lost: unreachable", told=12.9)) == {"bodies at once"}


def test_body_that_outlasts_two_successors_overlaps_with_both() -> None:
    """Also with the one that is not the next."""
    late = with_body(sound(), 2, 12.01, 15.2, told=12.9)
    assert len(broken_rules(read(late))["bodies at once"]) == 2


def late(*more: Event) -> list[Event]:
    """Return events in which the second body is told half a second too late, and runs beside the third."""
    return [*with_body(sound(), 2, 12.01, 13.51, "lost: unreachable", told=13.5), *more]


def test_body_is_excused_for_as_long_as_its_process_stood_still() -> None:
    """For as long as that, and the grace that it had: a moment less explains nothing."""
    assert broken(late()) == {"bodies at once", "bodies told too late"}
    assert broken(late(stall(2, 13.5, 0.62))) == set()
    assert excused(read(late(stall(2, 13.5, 0.62)))) == (1, 1)
    assert broken(late(stall(2, 13.5, 0.55))) == {"bodies told too late"}
    assert broken(late(stall(2, 13.5, 0.3))) == {"bodies at once", "bodies told too late"}


def test_standing_still_excuses_no_body_whose_tenure_was_live_when_the_other_one_began() -> None:
    """The server has let two in, whatever the process did meanwhile."""
    events = altered(late(stall(2, 13.5, 0.62)), "version", number_=4, expires_at=13.4)
    assert broken(events) == {"tenures overlap", "bodies at once"}


@pytest.mark.parametrize("who_and_when", [(3, 13.5), (2, 12.4), (2, 20.0)])
def test_standing_still_of_others_or_at_another_time_excuses_nothing(who_and_when: tuple[int, float]) -> None:
    """It was another process, or long before, or after the body had ended."""
    assert broken(late(stall(*who_and_when, 1.0))) == {"bodies at once", "bodies told too late"}


def test_body_that_is_told_when_its_tenure_is_over_is_found() -> None:
    """Even if it has no successor yet; what was told in the last moment is in time."""
    assert broken(with_body(sound(), 2, 12.01, 13.1, "lost: unreachable", told=13.05)) == {"bodies told too late"}
    assert broken(with_body(sound(), 2, 12.01, 13.1, "lost: unreachable", told=12.99)) == set()


def test_body_that_ends_by_itself_when_its_tenure_is_over_is_found() -> None:
    """Nothing told it."""
    assert "bodies told too late" in broken(with_body(sound(), 2, 12.01, 13.1))


def test_body_of_a_killed_process_is_judged_by_its_last_moment() -> None:
    """What it had not been told by then it was not told, unless it stood still until then."""
    killed: list[Event] = [
        *with_body(sound(), 2, 12.01, float("inf")),
        {"what": "gone", "at": 13.4, "process": 2},
    ]
    assert "bodies at once" in broken(killed)
    assert broken([*killed, stall(2, 13.4, 0.6)]) == set()


def test_body_whose_tenure_was_ended_by_force_is_excused() -> None:
    """The row says that it was cut short, and an operator that he did so; one of the two is not enough."""
    cut = [
        *with_body(sound(), 2, 12.01, 13.3, "lost: revoked", told=12.9),
        version(4.5, 12.45, 2, 2, 12.45, began=12.0),
    ]
    assert broken(cut) == {"bodies at once", "bodies told too late"}
    assert broken([*cut, fault(FORCED, 12.4, 12.5, key="a")]) == set()
    assert "bodies at once" in broken([*cut, fault(FORCED, 12.4, 12.5, key="b")])
    assert "bodies at once" in broken([*cut, fault(FORCED, 15.0, 15.1, key="a")])


def test_write_of_a_lower_fence_after_a_higher_one_is_found() -> None:
    """In the order of acceptance, whatever the order in which they were read."""
    assert broken([write(5, 13.31, 2, guarded=False), *sound()]) == {"writes out of order"}


@pytest.mark.parametrize(("place", "rules"), [(1, set()), (2, {"writes out of order"}), (3, {"writes out of order"})])
def test_place_of_a_write_decides_if_its_number_says_nothing(place: int, rules: set[str]) -> None:
    """A lower fence in the same place as a higher one may have come after it."""
    events = without(sound(), "write", number=3)
    events = altered(altered(events, "write", number_=4, place=2), "write", number_=2, place=1)
    events = altered(events, "write", number_=1, place=0)
    assert broken([*events, write(5, 13.31, 2, guarded=False, place=place)]) == rules


def test_guarded_write_after_a_later_tenure_has_begun_is_found() -> None:
    """Even if that one has written nothing yet; a late write without a guard may be accepted then."""
    events = altered(sound(), "write", number_=3, at=13.25, guarded=True)
    assert broken(events) == {"guarded writes too late"}
    assert broken(altered(events, "write", number_=3, guarded=False)) == set()


def test_write_that_was_confirmed_and_is_not_there_is_found() -> None:
    """A failover has lost it, or it was never committed."""
    assert broken(without(sound(), "write", number=1)) == {"writes lost"}


@pytest.mark.parametrize(
    ("changes", "is_wrong"),
    [
        ({"fence": 2, "parts": 2}, False),
        ({"fence": 3, "parts": 2, "outcome": "broken off"}, True),
        ({"fence": 3, "outcome": "refused"}, True),
        ({"fence": 3, "outcome": "broken off"}, False),
        ({"fence": 4, "outcome": "committed"}, True),
        ({"fence": 4, "outcome": "refused"}, False),
        ({"fence": 4, "outcome": "broken off"}, False),
    ],
)
def test_answer_to_a_transaction_that_is_not_so_is_found(changes: dict[str, object], is_wrong: bool) -> None:
    """It is there in part, or though it was refused, or not there though it was committed."""
    assert broken(altered(sound(), "answer", **changes)) == ({"answers that are false"} if is_wrong else set())


def left() -> list[Event]:
    """Return events in which the third tenure runs out in place of its release."""
    events = altered(sound(), "version", number_=6, released=False, expires_at=14.9)
    return with_body(events, 3, 13.21, 13.6)


def test_tenure_that_is_left_claimed_is_found() -> None:
    """Its body had ended, nothing stood in the way, and it ran out all the same."""
    assert broken(left()) == {"tenures left claimed"}


def test_claim_that_nobody_had_and_that_is_not_given_back_is_found() -> None:
    """Its caller was cancelled before the answer came; what is beyond the end of the run is not judged."""
    events = [each for each in without(sound(), "version", number=9) if each.get("process") != 4]
    events = altered(events, "version", number_=8, expires_at=16.4)
    assert broken(altered(events, "closed", at=16.5)) == {"tenures left claimed"}
    assert broken(altered(events, "closed", at=16.3)) == set()


@pytest.mark.parametrize(
    "found",
    [
        fault("frozen network", 13.8, 14.1, 3),
        fault("server restarted", 14.0, 14.1),
        fault("process killed", 13.95, 13.95, 3),
        fault("process killed", 13.7, 13.7, 3, cuts=False),
    ],
)
def test_tenure_that_could_not_be_released_is_not_left_claimed(found: Event) -> None:
    """The server was out of reach, or nobody was there any more."""
    assert broken([*left(), found]) == set()
    assert broken([*left(), {**found, "process": 7}]) == {"tenures left claimed"}


def test_tenure_is_left_claimed_beside_a_fault_that_cuts_nothing_off() -> None:
    """Such a fault explains nothing."""
    assert broken([*left(), fault("frozen network", 13.8, 14.1, 3, cuts=False)]) == {"tenures left claimed"}


def test_tenure_is_not_left_claimed_while_some_session_is_stopped() -> None:
    """Of whichever process: it may hold a lock of the server's own."""
    assert broken([*left(), fault("session stopped", 14.0, 14.1, 7)]) == set()


def test_tenure_whose_process_stood_still_is_not_left_claimed() -> None:
    """It had no time to release it."""
    assert broken([*left(), stall(3, 14.6, 0.7)]) == set()


def test_key_that_is_free_and_is_not_had_is_found() -> None:
    """It cannot be acquired when all is over, or only long after nobody was there any more."""
    assert broken(without(sound(), "again")) == {"keys stuck"}
    assert broken(altered(sound(), "again", at=16.1 + SLOW)) == {"keys stuck"}


def test_key_that_runs_out_within_a_ttl_is_waited_for() -> None:
    """Its holder was killed; whoever comes for it has it soon after it has run out."""
    events = altered(sound(), "version", number_=9, released=False, expires_at=16.9)
    assert broken(altered(events, "again", at=16.8 + SLOW)) == set()
    assert broken(altered(events, "again", at=17.0 + SLOW)) == {"keys stuck"}


def test_key_that_is_shut_for_longer_than_a_ttl_is_found() -> None:
    """By the row itself, however soon it was had after that: no allowance for a busy machine."""
    events = altered(sound(), "version", number_=9, released=False, expires_at=17.01)
    assert broken(altered(events, "again", at=17.02)) == {"keys stuck"}


def test_task_that_is_left_behind_is_found() -> None:
    """Its process closed the table and gave it time."""
    assert broken([*sound(), {"what": "behind", "at": 15.9, "process": 4, "name": "t"}]) == {"tasks left behind"}


def test_cancellation_that_nobody_asked_for_is_found() -> None:
    """The library must not invent one."""
    assert broken(altered(sound(), "left", process_=1, outcome="cancelled")) == {"cancellations lost or invented"}


def test_cancellation_that_is_swallowed_is_found() -> None:
    """A turn that ended with an error has not gone on, and one that was killed has said nothing."""
    assert broken(altered(sound(), "left", process_=3, outcome="done")) == {"cancellations lost or invented"}
    assert broken(altered(sound(), "left", process_=3, outcome="failed")) == set()
    assert broken(without(sound(), "left", process=3)) == set()


def test_what_a_process_saw_that_must_not_be_is_found() -> None:
    """Such as a guarded write that its fence refused."""
    wrong: Event = {"what": "wrong", "at": 12.0, "process": 2, "name": "a guarded write was refused", "key": "a"}
    assert broken([*sound(), wrong]) == {"seen by a process"}


def test_two_keys_have_nothing_to_do_with_each_other() -> None:
    """Tenures, bodies, fences and writes of another key change nothing."""
    other = [{**each, "key": "b"} if "key" in each else dict(each) for each in sound()]
    for each in other:
        for name, shift in (("number", 100), ("body", 1), ("turn", 1)):
            if name in each:
                each[name] += shift
    assert broken([*sound(), *(each for each in other if each["what"] not in {"opened", "again"})]) == set()


def test_each_rule_has_events_here_that_break_it() -> None:
    """None of them is never tried."""
    source = Path(__file__).read_text()
    assert [name for name in RULES if f'"{name}"' not in source] == []


def test_what_was_seen_too_rarely_is_named() -> None:
    """A run that leaves something out shows nothing of it."""
    assert unseen({"kill": 2, "prune": 1}, {"kill": 2, "prune": 2, "revoke": 1}) == [
        "prune: 1, fewer than 2",
        "revoke: 0, fewer than 1",
    ]


def test_body_of_a_run_is_known_while_it_runs() -> None:
    """A parent does things to what runs now."""
    history = read([*sound(), *body(9, 15.9, float("inf"))])
    assert [each.fence for each in history.running(9)] == [9]
    assert history.running(4) == []
