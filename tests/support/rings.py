"""A pytest plugin: which tests a plain `pytest` leaves out, and a limit for those that it does not.

`@pytest.mark.slow("why")` is for a test whose subject needs real time or takes long; `@pytest.mark.night("why")` for
one that only `nox -t night` runs. All others are quick: with `--quick-limit SECONDS` one that takes longer fails.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

RINGS = ("slow", "night")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--quick-limit SECONDS`."""
    parser.addoption("--quick-limit", type=float, metavar="SECONDS", help="fail if an unmarked test takes longer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a mark that does not say why."""
    for item in items:
        for mark in (mark for name in RINGS for mark in item.iter_markers(name)):
            if len(mark.args) != 1 or not isinstance(mark.args[0], str) or mark.kwargs:
                message = f"{item.nodeid}: the mark {mark.name} takes one text, the reason"
                raise pytest.UsageError(message)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a quick test's success into a failure if it took too long."""
    report = yield
    limit: float | None = item.config.getoption("--quick-limit")
    marked = any(item.get_closest_marker(name) for name in RINGS)
    if limit is not None and call.when == "call" and report.passed and not marked and call.duration > limit:
        report.outcome = "failed"
        report.longrepr = f"it took {call.duration:.2f} s: make it quicker, or mark it slow and say why"
    return report
