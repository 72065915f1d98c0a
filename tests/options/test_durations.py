"""Durations and how they fit together: folded once, every range checked, both numbers named."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from tests.support.examples import example, given, settings
from tests.support.examples import strategies as st
from tests.support.inside import MAX_TTL, MIN_TTL, Options, fold_duration

YEAR = 365 * 86400.0
DEFAULTS: dict[str, Any] = {
    "ttl": 60,
    "wait": 0,
    "min_hold": 0,
    "on_lost": "cancel",
    "label": None,
    "holder": None,
    "heartbeat": None,
    "grace": None,
    "drain": None,
}
numbers = st.integers() | st.floats(allow_nan=False) | st.timedeltas()


def fold(**changed: Any) -> Options:  # noqa: ANN401 - wrong types are the point
    """Fold the defaults with some of them changed."""
    return Options.fold(**{**DEFAULTS, **changed})


def in_seconds(value: float | timedelta) -> float:
    """Return a duration in seconds, infinite where no float can hold it."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@settings(max_examples=60)
@given(value=numbers, least=st.floats(0, 1e9), most=st.floats(0, 1e12))
@example(value=10**400, least=0.0, most=math.inf)
@example(value=-(10**400), least=0.0, most=math.inf)
def test_duration_in_its_range_is_its_seconds_and_out_of_it_an_error(
    value: float | timedelta, least: float, most: float
) -> None:
    """A number or a timedelta is folded to float seconds if and only if it is in the range."""
    seconds = in_seconds(value)
    if least <= seconds <= most:
        folded = fold_duration("ttl", value, least, most)
        assert type(folded) is float
        assert folded == seconds
    else:
        with pytest.raises(ValueError, match="ttl must be between") as caught:
            fold_duration("ttl", value, least, most)
        for number in (least, most):
            assert f"{number:,.10g}" in str(caught.value)


@pytest.mark.slow("takes half a second or so")
@settings(max_examples=40)
@given(value=st.none() | st.booleans() | st.text() | st.binary() | st.complex_numbers() | st.lists(st.floats()))
def test_duration_of_another_type_is_a_type_error(value: object) -> None:
    """What is neither a number nor a timedelta is named by its type, and so is a bool."""
    with pytest.raises(TypeError, match=rf"wait must be seconds .* not {type(value).__name__}"):
        fold_duration("wait", value, 0, 1)


@pytest.mark.parametrize("name", ["ttl", "wait", "min_hold", "heartbeat", "grace", "drain"])
@pytest.mark.parametrize("value", [math.nan, -1, -0.001, timedelta(microseconds=-1), timedelta.min, -math.inf])
def test_duration_that_is_negative_or_no_number_is_refused(name: str, value: object) -> None:
    """No setting takes one, and the message names the setting."""
    with pytest.raises(ValueError, match=f"^{name} must be between"):
        fold(**{name: value})


@pytest.mark.parametrize("name", ["ttl", "min_hold", "heartbeat", "grace", "drain"])
@pytest.mark.parametrize("value", [math.inf, 1e18, 10**400, timedelta.max, timedelta(days=366), YEAR + 1])
def test_duration_beyond_a_year_is_refused(name: str, value: object) -> None:
    """Only a wait may be longer than a year: the server must be able to say when the rest is over."""
    with pytest.raises(ValueError, match=f"^{name} must be between"):
        fold(**{name: value})


@pytest.mark.parametrize("value", [0, 0.0, timedelta(0), 0.5, 10**7, 1e18, math.inf, timedelta.max])
def test_wait_may_be_of_any_length(value: float | timedelta) -> None:
    """Nought is one try, infinity is for ever, and everything between is a wait."""
    assert fold(wait=value).wait == in_seconds(value)


@pytest.mark.parametrize(
    ("changed", "name", "seconds"),
    [
        ({"ttl": MIN_TTL}, "ttl", 0.1),
        ({"ttl": MAX_TTL}, "ttl", YEAR),
        ({"ttl": timedelta(days=365)}, "ttl", YEAR),
        ({"ttl": timedelta(milliseconds=1500)}, "ttl", 1.5),
        ({"min_hold": YEAR}, "min_hold", YEAR),
        ({"heartbeat": 0.01}, "heartbeat", 0.01),
        ({"grace": 0}, "grace", 0.0),
        ({"ttl": 9}, "heartbeat", 3.0),
        ({"ttl": 9}, "grace", 0.9),
        ({"ttl": 9}, "drain", 9.0),
        ({"drain": 0.1}, "drain", 0.1),
        ({"drain": timedelta(days=365)}, "drain", 31536000.0),
        ({"ttl": 30, "heartbeat": timedelta(seconds=1)}, "heartbeat", 1.0),
    ],
)
def test_duration_at_the_end_of_its_range_is_taken(changed: dict[str, object], name: str, seconds: float) -> None:
    """Ranges include their ends; heartbeat is ttl / 3, grace ttl / 10 and drain the ttl unless given."""
    folded = getattr(fold(**changed), name)
    assert type(folded) is float
    assert folded == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ttl", math.nextafter(0.1, 0)), ("ttl", 0), ("ttl", math.nextafter(YEAR, math.inf)), ("heartbeat", 0.0099)],
)
def test_duration_just_out_of_its_range_is_refused(name: str, value: float) -> None:
    """The next float beyond an end is out of the range."""
    with pytest.raises(ValueError, match=f"^{name} must be between"):
        fold(**{name: value})


@settings(max_examples=60)
@given(
    ttl=st.floats(MIN_TTL, 1e6),
    beat=st.floats(0.0, 0.7, exclude_min=True),
    part=st.floats(0.0, 1.0),
)
@example(ttl=10.0, beat=0.4, part=0.2)
@example(ttl=8.0, beat=0.25, part=0.5)
@example(ttl=8.0, beat=0.5, part=0.0)
def test_two_heartbeats_and_the_grace_fit_into_the_ttl_or_are_refused(ttl: float, beat: float, part: float) -> None:
    """2 x heartbeat + grace below ttl is taken, equal to it or above is refused with every number named."""
    heartbeat, grace = max(ttl * beat, 0.01), ttl * part
    if 2 * heartbeat + grace < ttl:
        folded = fold(ttl=ttl, heartbeat=heartbeat, grace=grace)
        assert (folded.ttl, folded.heartbeat, folded.grace) == (ttl, heartbeat, grace)
    else:
        with pytest.raises(ValueError, match="must be below ttl") as caught:
            fold(ttl=ttl, heartbeat=heartbeat, grace=grace)
        for number in (heartbeat, grace, 2 * heartbeat + grace, ttl):
            assert f"{number:g}" in str(caught.value)


def test_settings_cannot_be_changed_after_their_check() -> None:
    """What was validated together stays together."""
    folded = fold()
    with pytest.raises(AttributeError):
        folded.ttl = 1.0  # type: ignore[misc]
