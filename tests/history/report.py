"""What a run prints: the figures that all runs have, and the story of whatever was broken."""

from __future__ import annotations

from collections.abc import Iterator

from tests.history.history import History, tenures
from tests.history.judge import RULES, STOPPED, Broken, broken_rules, excused, free_at, lateness, was_forced

WIDTH = 200
LINES = 20
"""How much of its key's history is told of something broken."""

EARLY = 0.05
"""Seconds by which a notice may seem to come before what it tells of: two processes read the clock in turns."""

WORTH_TELLING = 0.1
"""Seconds for which a process stood still that are told of."""

SHOWN = 3
"""How much of what broke one rule is told."""


def told_in_time(history: History) -> tuple[int, int]:
    """Return how many bodies were told of a server out of reach before it let anybody else in, and of how many.

    Those whose process stood still meanwhile, for longer than the grace, are neither.
    """
    held = {(tenure.key, tenure.holder): tenure for tenure in tenures(history.versions)}
    late = [
        lateness(body, tenure)
        for body in history.bodies
        if body.outcome == "lost: unreachable"
        and (tenure := held.get((body.key, body.holder))) is not None
        and not was_forced(history, tenure)
        and history.stood_still(body.process, body.stopping, body.ttl) < body.grace
    ]
    return sum(each <= 0 for each in late), len(late)


def figures(history: History) -> Iterator[str]:
    """Yield the lines of the results that all runs have."""
    in_time, of = told_in_time(history)
    late, beside = excused(history)
    guarded = sum(write.guarded for write in history.writes)
    yield f"tenures             {len(tenures(history.versions))}, bodies {len(history.bodies)}"
    yield (
        f"writes              {len(history.writes)} accepted, {guarded} of them guarded;"
        f" {len(history.refused)} late ones refused"
    )
    yield f"told in time        {in_time} of {of} bodies that could not reach the server, before it let others in"
    yield f"excused             {late} bodies told too late and {beside} beside another: stood still, or ended by force"
    shut = max((free_at(history, key) - history.over for key in history.keys), default=0.0)
    yield f"keys free again     {shut:.2f} s after the last process at the latest, with a ttl of {history.ttl:g} s"
    broken = broken_rules(history)
    counts = ", ".join(f"{name} {len(found)}" for name, found in broken.items())
    yield f"broken rules        {counts or 'none'} of {len(RULES)}"


def stories(history: History) -> Iterator[str]:
    """Yield what broke each rule, with what happened to its key before."""
    for name, broken in broken_rules(history).items():
        for each in broken[:SHOWN]:
            at = f", {each.at - history.opened:.3f} s after the beginning" if each.at else ""
            yield f"\n{name}{at}: {each.what}"
            yield from _story(history, each)
        if len(broken) > SHOWN:
            yield f"... and {len(broken) - SHOWN} more of these"


def _story(history: History, broken: Broken) -> Iterator[str]:
    """Yield the last lines of the key's history, up to a moment after it was broken; seconds since the beginning."""
    until = (broken.at or history.closed) + EARLY
    lines = sorted(line for line in _lines(history, broken.key) if line[0] <= until)
    yield from (f"  {at - history.opened:9.3f}  {line}" for at, line in lines[-LINES:])


def _lines(history: History, key: str) -> Iterator[tuple[float, str]]:
    """Yield all that is known of a key, and of the faults of the processes that had it."""
    yield from _of_server(history, key)
    yield from _of_bodies(history, key)
    processes = {0} | {body.process for body in history.bodies if body.key == key}
    for fault in history.faults:
        if fault.key == key or (not fault.key and fault.process in processes) or fault.kind == STOPPED:
            whom = f"process {fault.process}" if fault.process else fault.key or "the server"
            yield fault.began, f"fault: {fault.kind}, {whom}, for {fault.ended - fault.began:.3f} s"
    for process in processes:
        for stall in history.stalls.get(process, ()):
            if stall.length >= WORTH_TELLING:
                yield stall.ended, f"process {process} stood still for {stall.length:.3f} s until now"


def _of_server(history: History, key: str) -> Iterator[tuple[float, str]]:
    for version in history.versions:
        if version.key == key:
            what = "deleted" if version.deleted else "released" if version.released else "held"
            left = version.expires_at - version.at
            yield version.at, f"row: {what} by {version.holder}, fence {version.fence}, for {left:.3f} s"
    for write in history.writes:
        if write.key == key:
            yield write.at, f"{'guarded' if write.guarded else 'other'} write {write.number}, fence {write.fence}"


def _of_bodies(history: History, key: str) -> Iterator[tuple[float, str]]:
    for body in history.bodies:
        if body.key == key:
            who = f"body of process {body.process} with fence {body.fence}"
            yield body.started, f"{who} begins"
            yield body.told, f"{who} is told to stop"
            yield body.ended, f"{who} ends: {body.outcome}"
    for notice in (*history.notices, *history.wrong):
        if notice.key == key:
            yield notice.at, f"process {notice.process}: {notice.name} {notice.detail[:WIDTH]}"
