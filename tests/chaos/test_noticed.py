"""What counts as noticing a fault: its own sign, and nothing that anything else may have brought about."""

from __future__ import annotations

import pytest

from tests.chaos.kinds import KINDS
from tests.chaos.noticed import summary, tally, unnoticed
from tests.history.forged import altered, read, sound, with_body
from tests.history.history import Event, History
from tests.history.records import Fault, Notice, Turn

FROZEN = "frozen network"
DETAILS = {
    "slow replies": "0.3",
    "slow requests": "0.3",
    "session stopped": "session 41",
    "session ended": "session 41 42",
}
CLOSED = "ConnectionDoesNotExistError('connection was closed in the middle of operation')"
ENDED = CLOSED.removesuffix("')") + ": terminating connection due to administrator command')"
HOLDER = "process-2/x"

# Of each kind: what is told of it.
SIGNS = {
    "frozen network": ("RenewFailed", "TimeoutError('no answer to the renewal within 0.3 s')"),
    "slow replies": ("Slow", "0.301 s"),
    "slow requests": ("Slow write", "0.301 s, session 43"),
    "links reset": ("RenewFailed", CLOSED),
    "links refused": ("ReleaseFailed", """ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 5432)")"""),
    "lost reply: claim": ("error", f"acquire: {CLOSED}"),
    "lost reply: renew": ("RenewFailed", CLOSED),
    "lost reply: release": ("Released again", ""),
    "lost reply: commit": ("Write failed", f"session 43 at its end: {CLOSED}"),
    "session stopped": ("Slow write", "0.301 s, session 41"),
    "session ended": ("WaitingFailed", ENDED),
    "process stopped": ("Late", "blocked for 0.301 s"),
    "process killed": ("Dead one taken over", HOLDER),
    "loop blocked": ("Lost stalled", "taken by None, None"),
    "forked": ("Copy refused", ""),
    "pool exhausted": (
        "RenewFailed",
        'TimeoutError("no connection: 4 of the pool\'s 4 connections are in use, 1 waits")',
    ),
    "cancelled: acquire": ("Cancelled acquire", ""),
    "cancelled: body": ("Cancelled body", ""),
    "cancelled: exit": ("Cancelled exit", ""),
    "row locked": ("RenewFailed", "another session has the row locked"),
    "revoked": ("Revoked", ""),
    "revoked by force": ("Lost revoked", "taken by None, None"),
    "pruned": ("Deleted", ""),
    "advanced": ("Lost taken_over", f"taken by {HOLDER}, None"),
    "server restarted": ("WaitingFailed", "CannotConnectNowError('the database system is starting up')"),
    "server read-only": (
        "error",
        "acquire: ReadOnlySQLTransactionError('cannot execute INSERT in a read-only transaction')",
    ),
}


def fault_of(kind: str) -> Fault:
    """Return a fault of process 2, of key "a", or of the server."""
    scope = KINDS[kind].scope
    began = 12.1 if KINDS[kind].lasts[1] else 12.3
    return Fault(
        kind, began, 12.3, 2 if scope == "process" else 0, "a" if scope == "key" else "", DETAILS.get(kind, "")
    )


def sign_of(kind: str) -> Notice:
    """Return what is told of it, in that process and of that key."""
    name, detail = SIGNS[kind]
    return Notice(12.41, 2, name, "a", detail, HOLDER)


def told_of(faults: list[Fault], notices: list[Notice]) -> History:
    """Return a history of faults and of what was told."""
    history = read(sound())
    history.faults, history.notices, history.turns = faults, notices, {}
    return history


@pytest.mark.parametrize("kind", KINDS)
def test_fault_is_noticed_by_its_own_sign(kind: str) -> None:
    """Alone, each of them."""
    count = tally(told_of([fault_of(kind)], [sign_of(kind)]))[kind]
    assert (count.injected, count.noticed) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_fault_whose_sign_does_not_show_is_never_noticed_beside_others(kind: str) -> None:
    """At the same time, in the same process and of the same key everything was told that is of other faults."""
    others = [other for other in KINDS if other != kind]
    history = told_of([fault_of(kind), *map(fault_of, others)], [sign_of(other) for other in others])
    assert kind in unnoticed(history)
    for other in others:
        assert tally(told_of([fault_of(kind), fault_of(other)], [sign_of(other)]))[kind].noticed == 0, other


def test_what_two_faults_may_be_behind_is_a_sign_of_neither() -> None:
    """A closed link, of a restart or of a reset; once the one is long over it is of the other."""
    reset, restarted = fault_of("links reset"), fault_of("server restarted")
    closed = [sign_of("links reset")]
    assert tally(told_of([reset], closed))["links reset"].noticed == 1
    both = tally(told_of([reset, restarted], closed))
    assert (both["links reset"].noticed, both["server restarted"].noticed) == (0, 0)
    lately = restarted._replace(began=11.6, ended=11.81)
    assert tally(told_of([reset, lately], closed))["links reset"].noticed == 0
    before = restarted._replace(began=10.0, ended=10.2)
    assert tally(told_of([reset, before], closed))["links reset"].noticed == 1


@pytest.mark.parametrize("elsewhere", [True, False])
def test_row_that_a_stopped_session_may_keep_locked_is_no_sign_of_a_lock(elsewhere: bool) -> None:
    """Of whichever process it was."""
    stopped = fault_of("session stopped")._replace(process=7 if elsewhere else 2)
    assert tally(told_of([fault_of("row locked"), stopped], [sign_of("row locked")]))["row locked"].noticed == 0


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (FROZEN, {"process": 3}),
        (FROZEN, {"at": 12.0}),
        (FROZEN, {"at": 13.4}),
        (FROZEN, {"name": "Late"}),
        (FROZEN, {"name": "Slow", "detail": "0.2 s"}),
        ("slow replies", {"detail": "0.299 s"}),
        ("session stopped", {"detail": "0.301 s, session 43"}),
        ("session stopped", {"name": "Slow", "detail": "0.301 s"}),
        ("session stopped", {"detail": "0.15 s, session 41"}),
        ("session ended", {"name": "Write failed", "detail": f"session 43 {CLOSED}"}),
        ("process stopped", {"detail": "blocked for 0.09 s"}),
        ("pool exhausted", {"detail": "no connection: 3 of the pool's 4 connections are in use"}),
        ("row locked", {"key": "b"}),
        ("revoked", {"key": "b"}),
        ("advanced", {"detail": "taken by process-3/x, None"}),
        ("lost reply: claim", {"detail": f"exit: {CLOSED}"}),
        ("lost reply: commit", {"detail": f"session 43 {CLOSED}"}),
    ],
)
def test_fault_is_not_noticed_by_what_does_not_concern_it(kind: str, changes: dict[str, object]) -> None:
    """What another process told, or of another time, key or session, or that took too short for it."""
    notice = sign_of(kind)._replace(**changes)  # type: ignore[arg-type] # fields of each their type
    assert tally(told_of([fault_of(kind)], [notice]))[kind].noticed == 0


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (FROZEN, {"name": "Slow", "detail": "0.3 s"}),
        ("session ended", {"name": "Write failed", "detail": f"session 42 {CLOSED}"}),
        ("row locked", {"name": "Waited for", "process": 0}),
        ("server restarted", {"process": 3, "key": "b", "name": "Write failed", "detail": CLOSED}),
        ("revoked by force", {"name": "Lost deleted"}),
    ],
)
def test_fault_has_more_than_one_sign(kind: str, changes: dict[str, object]) -> None:
    """As it was met by a claim, a renewal or a write."""
    notice = sign_of(kind)._replace(**changes)  # type: ignore[arg-type] # fields of each their type
    assert tally(told_of([fault_of(kind)], [notice]))[kind].noticed == 1


def test_statement_that_was_held_up_for_long_need_not_have_been_for_most_of_the_fault() -> None:
    """Whoever is told to stop waits no longer."""
    fault = fault_of(FROZEN)._replace(ended=14.1)
    for took, noticed in ((0.51, 1), (0.49, 0)):
        notice = sign_of(FROZEN)._replace(name="Slow write", at=12.7, detail=f"{took} s, session 43")
        assert tally(told_of([fault], [notice]))[FROZEN].noticed == noticed


def test_fault_is_counted_with_what_was_told_of_it_and_the_losses_of_it() -> None:
    """A kind that was not made, or of which nothing was told, is named; a row that was deleted tells of a prune."""
    counts = tally(read(sound()))
    assert (counts[FROZEN].injected, counts[FROZEN].noticed, counts[FROZEN].lost) == (1, 1, 1)
    assert (counts["pruned"].injected, counts["pruned"].noticed, counts["pruned"].lost) == (1, 1, 0)
    assert unnoticed(read(sound())) == [name for name in KINDS if name not in {FROZEN, "pruned"}]


def test_loss_of_a_tenure_that_had_not_met_the_fault_is_not_of_it() -> None:
    """Another one of the same process, at the same time."""
    count = tally(read(altered(sound(), "notice", name_="Lost unreachable", holder="process-2/y")))[FROZEN]
    assert (count.noticed, count.lost) == (1, 0)


def test_release_is_asked_again_where_it_is_told_after_its_reply_was_lost() -> None:
    """The server had done it before; one that is told before was another one's."""
    history = told_of(
        [Fault("lost reply: release", 11.01, 11.01, 1)], [Notice(11.08, 1, "Released", "a", holder="process-1/x")]
    )
    assert tally(history)["lost reply: release"].noticed == 1
    history.notices = [history.notices[0]._replace(at=11.005)]
    assert tally(history)["lost reply: release"].noticed == 0


def test_killed_process_is_noticed_where_its_body_never_ended() -> None:
    """A tenure of it is taken over by another process, and its body had come to no last line."""

    def noticed(events: list[Event]) -> int:
        history = read(events)
        history.faults = [Fault("process killed", 12.3, 12.3, 2)]
        history.notices = [Notice(13.2, 3, "Taken over", "a", HOLDER, "process-3/x")]
        return tally(history)["process killed"].noticed

    assert noticed(sound()) == 0
    assert noticed(with_body(sound(), 2, 12.01, float("inf"))) == 1


def test_row_that_was_deleted_at_another_time_is_no_sign_of_a_prune() -> None:
    """The table tells when."""
    history = told_of([Fault("pruned", 12.0, 12.1)], [])
    assert tally(history)["pruned"].noticed == 0
    history.versions = [each._replace(at=12.05) if each.deleted else each for each in history.versions]
    assert tally(history)["pruned"].noticed == 1


@pytest.mark.parametrize("phase", ["acquire", "body", "exit"])
def test_cancellation_is_noticed_where_it_comes_out_of_its_turn(phase: str) -> None:
    """One that did not, or that nobody asked for, is a sign of nothing."""
    kind = f"cancelled: {phase}"
    history = told_of([fault_of(kind)], [])
    for turn, noticed in ((Turn(2, phase, "cancelled", 12.35), 1), (Turn(2, phase, "failed", 12.35), 0)):
        history.turns = {(2, 1): turn}
        assert tally(history)[kind].noticed == noticed


def test_summary_counts_each_kind_of_fault() -> None:
    """How often it was made, noticed, and behind a loss."""
    assert any(line.split() == [*FROZEN.split(), "1", "1", "1"] for line in summary(read(sound())))
