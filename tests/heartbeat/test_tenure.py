"""The arithmetic of trust, for all numbers."""

from __future__ import annotations

import pytest

from tests.support.examples import given
from tests.support.examples import strategies as st
from tests.support.inside import Options, Tenure, Trust

times = st.floats(0, 1e9)
parts = st.floats(0.001, 1)


@st.composite
def trusts(draw: st.DrawFn) -> Trust:
    """Make a trust as the options allow it: 2 x heartbeat + grace below the ttl."""
    ttl = draw(st.floats(0.1, 1e6))
    heartbeat = ttl * draw(st.floats(0.001, 0.49))
    grace = max(ttl - 2 * heartbeat, 0) * draw(st.floats(0, 0.99))
    return Trust(sent_at=draw(times), ttl=ttl, heartbeat=heartbeat, grace=grace)


@pytest.mark.slow("takes half a second or so")
@given(trusts(), times)
def test_trust_is_over_at_the_deadline_and_for_ever_after(trust: Trust, now: float) -> None:
    """Over means at or after the deadline, and what is over stays over."""
    assert trust.is_over(now) == (now >= trust.deadline)
    assert trust.is_over(trust.deadline)
    assert trust.is_over(max(now, trust.deadline))


@given(trusts())
def test_trust_ends_a_grace_before_the_server_lets_others_in(trust: Trust) -> None:
    """The order is: the renewal is due, the holder gives up, the server lets others in."""
    assert trust.sent_at <= trust.beat_at <= trust.deadline <= trust.trusted_until
    assert trust.stall_limit > 0
    assert trust.late_limit > 0


@given(trusts(), times)
def test_trust_remaining_falls_to_zero_and_not_below(trust: Trust, now: float) -> None:
    """What remains is the time until others may come in, and never negative."""
    assert trust.remaining(now) >= 0
    assert trust.remaining(trust.trusted_until) == 0
    assert trust.remaining(now) <= max(trust.trusted_until - now, 0)


@given(trusts(), times)
def test_trust_has_patience_for_half_of_the_time_left(trust: Trust, now: float) -> None:
    """One renewal may take half of what is left, so that another one fits in; none where nothing is left."""
    patience = trust.patience(now)
    assert patience >= 0
    assert patience <= max(trust.deadline - now, 0)
    assert trust.patience(trust.deadline) == 0


@given(trusts(), st.lists(times, max_size=8))
def test_trust_renewed_in_any_order_is_the_newest(trust: Trust, answers: list[float]) -> None:
    """Answers that overtook each other never lower the trust: the last sending counts."""
    renewed = trust
    for sent_at in answers:
        following = renewed.renewed(sent_at)
        assert following.deadline >= renewed.deadline
        renewed = following
    assert renewed.sent_at == max([trust.sent_at, *answers])
    assert (renewed.ttl, renewed.heartbeat, renewed.grace) == (trust.ttl, trust.heartbeat, trust.grace)


@given(st.floats(0.1, 31_536_000))
def test_trust_with_the_default_options_has_time_for_two_renewals(ttl: float) -> None:
    """By default the first renewal is due after a third, and two fit in before the deadline."""
    options = Options.fold(ttl=ttl, min_hold=0, on_lost="cancel", label=None, holder=None, heartbeat=None, grace=None)
    trust = Trust(sent_at=0, ttl=options.ttl, heartbeat=options.heartbeat, grace=options.grace)
    assert trust.beat_at == ttl / 3
    assert 2 * trust.heartbeat < trust.deadline


def test_tenure_is_its_key_holder_and_fence() -> None:
    """A tenure is a value: equal by its parts."""
    assert Tenure("k", "h", 1) == Tenure("k", "h", 1)
    assert Tenure("k", "h", 1) != Tenure("k", "h", 2)
