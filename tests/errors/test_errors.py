"""The errors: their tree, what they know and say, and that they survive a pickle."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from typing import get_args

import pytest

from asyncpg_lease import (
    LeaseError,
    LeaseLostError,
    LeaseTableError,
    LeaseTimeoutError,
    LeaseUnavailableError,
    LossReason,
)

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
REASONS: tuple[LossReason, ...] = get_args(LossReason)

ERRORS: list[LeaseError] = [
    LeaseError("whatever"),
    LeaseUnavailableError("k"),
    LeaseUnavailableError("k", 1.5, holder="h/1", fence=7, expires_at=WHEN),
    LeaseUnavailableError("k", -0.2, holder="h/1", fence=7, expires_at=WHEN),
    LeaseUnavailableError("k", 4.5, holder="h/1", fence=7, expires_at=WHEN, resting=True),
    LeaseTimeoutError("k"),
    LeaseTimeoutError("k", 0.25, holder="h/1", fence=7, expires_at=WHEN),
    *(LeaseLostError("k", "h/1", 7, reason) for reason in REASONS),
    LeaseLostError("k", "h/1", 7, "taken_over", taken_by="h/2"),
    LeaseTableError('"public"."lease"', "no such table: run this"),
]
WITH_HOLDER = [error for error in ERRORS if getattr(error, "holder", None) is not None]


def test_errors_form_one_tree() -> None:
    """One base for all, a timeout is unavailable and a TimeoutError, and nothing else is anything else."""
    assert [kind.__bases__ for kind in (LeaseUnavailableError, LeaseLostError, LeaseTableError)] == [(LeaseError,)] * 3
    assert LeaseError.__bases__ == (Exception,)
    assert LeaseTimeoutError.__bases__ == (LeaseUnavailableError, TimeoutError)
    assert not issubclass(LeaseLostError, (TimeoutError, LeaseUnavailableError))


@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_error_survives_pickle_and_copy(error: LeaseError) -> None:
    """Class, attributes and message are the same after every protocol, and after a copy."""
    copies = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]  # noqa: S301
    copies += [copy.copy(error), copy.deepcopy(error)]
    seen = [(type(other), vars(other), str(other), repr(other)) for other in copies]
    assert seen == [(type(error), vars(error), str(error), repr(error))] * len(seen)


def test_error_with_a_note_keeps_it_through_a_pickle() -> None:
    """What somebody added on the way (PEP 678) neither breaks the pickle nor gets lost."""
    error = LeaseLostError("k", "h/1", 7, "expired")
    error.add_note("in the nightly report")
    other = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert other.__notes__ == ["in the nightly report"]
    assert str(other) == str(error)


def test_error_of_a_subclass_survives_a_pickle() -> None:
    """An application's own subclass with the same arguments is pickled as itself."""
    other = pickle.loads(pickle.dumps(CustomError("k", 1.0, holder="h", fence=1)))  # noqa: S301
    assert type(other) is CustomError
    assert (other.key, other.retry_after, other.holder, other.fence) == ("k", 1.0, "h", 1)


class CustomError(LeaseUnavailableError):
    """An application's own."""


@pytest.mark.parametrize("error", WITH_HOLDER, ids=str)
def test_error_says_key_holder_and_fence(error: LeaseError) -> None:
    """Whoever reads the log knows which lease, whose, and which tenure."""
    said = str(error)
    assert "'k'" in said
    assert "'h/1'" in said
    assert "fence 7" in said


@pytest.mark.parametrize("reason", REASONS)
def test_loss_says_its_reason_and_what_follows(reason: LossReason) -> None:
    """Each reason is named, and explained in words of its own."""
    said = {one: str(LeaseLostError("k", "h/1", 7, one)) for one in REASONS}
    assert reason in said[reason]
    assert "fence" in said[reason]
    assert len({text.replace(one, "") for one, text in said.items()}) == len(REASONS)


def test_loss_says_who_took_over() -> None:
    """A successor that is known is named."""
    assert "'h/2'" in str(LeaseLostError("k", "h/1", 7, "taken_over", taken_by="h/2"))


def test_unavailable_without_an_incumbent_says_what_to_do() -> None:
    """Where a race hid who was quicker the message claims no holder, and says what to do."""
    error = LeaseUnavailableError("k")
    assert (error.key, error.retry_after, error.holder, error.fence, error.expires_at) == ("k", None, None, None, None)
    assert "None" not in str(error)
    assert "wait=" in str(error)
    assert "None" not in str(LeaseTimeoutError("k"))


def test_unavailable_says_for_how_long() -> None:
    """The time left is in the message; where there is none, what keeps the key shut all the same."""
    assert "1.500 s" in str(LeaseUnavailableError("k", 1.5, holder="h/1", fence=7, expires_at=WHEN))
    over = str(LeaseUnavailableError("k", -0.2, holder="h/1", fence=7, expires_at=WHEN))
    assert "guarded transaction" in over
    assert "0.2" not in over


def test_unavailable_while_it_rests_says_that_nobody_has_it() -> None:
    """A key that was released and is kept shut is told from one that is held."""
    message = str(LeaseUnavailableError("k", 4.5, holder="h/1", fence=7, expires_at=WHEN, resting=True))
    assert "rests under its min_hold for 4.500 s more" in message
    assert "has it" not in message
    assert "renewed" not in message


def test_table_error_says_the_table_and_what_to_run() -> None:
    """Both of its attributes are the message."""
    error = LeaseTableError('"public"."lease"', "no such table: run this")
    assert error.table in str(error)
    assert error.problem in str(error)
