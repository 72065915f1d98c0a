"""By what a fault is known among all that is told: for each symptom, whether a notice bears it, beside that fault.

What is told of a fault has its own words: those of the server's or the driver's error, or of the library's event.
Where the words are the same for much, as those of an answer that did not come, the symptom asks for more: for the
session that was meant, for how long the answer did not come, or whose key it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tests.history.records import Fault, Notice

Symptom = Callable[[Notice, Fault], bool]

MOST = 0.5
"""The part of a fault's length that whoever was held up by it says at the least."""

LONG = 0.5
"""Seconds that are enough, however long the fault was: whoever is told to stop waits no longer."""

FAILED = ("RenewFailed", "WaitingFailed", "ReleaseFailed", "Lost unreachable", "error", "Write failed")
SLOW = ("Slow", "Slow claim", "Slow write")
SILENT = "did not answer|no answer to|None, None"
CLOSED = r"in the middle of operation'|ConnectionResetError|connection is closed|released back to the pool"


def _told(*names: str, saying: str = "") -> Symptom:
    """Return the symptom that something of these names was told, whose detail has the pattern."""
    pattern = re.compile(saying)
    return lambda notice, _: notice.name in names and pattern.search(notice.detail) is not None


def seconds(notice: Notice) -> float:
    """Return how long something took, or stood still, by a notice that says so."""
    found = re.search(r"[\d.]+(?= s)", notice.detail)
    return float(found[0]) if found else 0.0


def _held_up(notice: Notice, fault: Fault) -> bool:
    """Tell whether something took as long as half of the fault, at that time, in its session where that is told."""
    if notice.name not in SLOW or not _in_session(notice, fault):
        return False
    beside = min(notice.at, fault.ended) - max(notice.at - seconds(notice), fault.began)
    return beside >= min(MOST * (fault.ended - fault.began), LONG)


def _in_session(notice: Notice, fault: Fault) -> bool:
    """Tell whether a notice is of one of the sessions to which the fault was done; true where either has none."""
    told = re.search(r"session (\d+)", notice.detail)
    return told is None or not fault.detail.startswith("session") or told[1] in fault.detail.split()


SYMPTOMS: Mapping[str, Symptom] = {
    # Errors.
    "refused": _told(*FAILED, saying="ConnectionRefusedError"),
    "closed": _told(*FAILED, saying=CLOSED),
    "closed: claim": lambda notice, _: (
        re.search(CLOSED, notice.detail) is not None
        and (notice.name == "WaitingFailed" or notice.detail.startswith("acquire: "))
    ),
    "closed: renew": _told("RenewFailed", saying=CLOSED),
    "closed: commit": _told("Write failed", saying=f"at its end: .*({CLOSED})"),
    "ended by an administrator": _told(*FAILED, saying="terminating connection due to administrator command"),
    "session broken": lambda notice, fault: (
        notice.name == "Write failed" and _in_session(notice, fault) and re.search(CLOSED, notice.detail) is not None
    ),
    "server not up": _told(*FAILED, saying="CannotConnectNowError"),
    "read-only": _told(*FAILED, saying="in a read-only transaction|the transaction is read-only"),
    "no connection": _told(*FAILED, saying="no connection for "),
    "all connections in use": _told(*FAILED, saying=r" (\d+) of the pool's \1 connections are in use"),
    "row locked": _told("RenewFailed", saying="another session has the row locked"),
    # What took long, and answers that did not come at all.
    "silent": _told(*FAILED, saying=SILENT),
    "held up": _held_up,
    "session held up": lambda notice, fault: notice.name == "Slow write" and _held_up(notice, fault),
    "as slow": lambda notice, fault: (
        notice.name in SLOW and seconds(notice) >= float(fault.detail) and notice.at - seconds(notice) <= fault.ended
    ),
    "slow": _told(*SLOW),
    # A claim may wait for the floor's row, a release and a guard for their own; a renewal waits for none.
    "waits for a row": lambda notice, _: (
        notice.name in {"Slow claim", "Slow write"}
        or (notice.name != "RenewFailed" and notice.name in FAILED and re.search(SILENT, notice.detail) is not None)
    ),
    "stood still": lambda notice, fault: (
        notice.name == "Late" and seconds(notice) >= MOST * (fault.ended - fault.began)
    ),
    "stalled": _told("Lost stalled"),
    # What was done to the row. A row whose fence was advanced still has the holder, who is told of himself.
    "waited for": _told("Waited for"),
    "revoked": _told("Revoked"),
    "cut off": _told("Lost revoked"),
    "overtaken": lambda notice, _: (
        notice.name in {"Lost taken_over", "Lost expired", "Lost deleted"} and not _of_itself(notice)
    ),
    "fence moved": lambda notice, _: notice.name == "Lost taken_over" and _of_itself(notice),
    "deleted": _told("Deleted"),
    "released again": _told("Released again"),
    # What a process or its child says, or whoever comes after it.
    "dead one taken over": _told("Dead one taken over"),
    "copy refused": _told("Copy refused"),
    "cancelled: acquire": _told("Cancelled acquire"),
    "cancelled: body": _told("Cancelled body"),
    "cancelled: exit": _told("Cancelled exit"),
}


def _of_itself(notice: Notice) -> bool:
    return notice.holder != "" and notice.detail.startswith(f"taken by {notice.holder},")


def bears(notice: Notice, fault: Fault, symptoms: frozenset[str]) -> bool:
    """Tell whether a notice bears one of the symptoms."""
    return any(SYMPTOMS[name](notice, fault) for name in symptoms)
