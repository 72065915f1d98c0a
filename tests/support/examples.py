"""Hypothesis on a machine that others use too; imported where it is used, since it takes its time."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings, strategies

__all__ = ["example", "given", "settings", "strategies"]

# How long an example takes says more of the machine than of what is tested. The same examples each time: a run that
# fails can be repeated.
settings.register_profile(
    "shared machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")
