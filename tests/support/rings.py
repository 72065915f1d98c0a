"""A pytest plugin: which tests a plain `pytest` leaves out, and a limit for those that it does not.

`@pytest.mark.slow("why")` is for a test whose subject needs real time or takes long; `@pytest.mark.night("why")` for
one that only `nox -t night` runs. All others are quick: with `--quick-limit SECONDS` one that takes longer fails.
What a test waited for its turn on a busy machine does not count, on Linux.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

RINGS = ("slow", "night")
_SHARE = pytest.StashKey[float]()


def quick_few(values: Iterable[object], number: int) -> list[object]:
    """Return the values of a parameter. With the first few a test is quick, with the others it is slow."""
    slow = pytest.mark.slow("one rule with many values, of which the first are quick")
    return [
        value if place < number else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=slow)
        for place, value in enumerate(values)
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--quick-limit SECONDS`."""
    parser.addoption("--quick-limit", type=float, metavar="SECONDS", help="fail if an unmarked test takes longer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a mark that does not say why."""
    for item in items:
        for mark in (mark for name in RINGS for mark in item.iter_markers(name)):
            if len(mark.args) != 1 or mark.kwargs or not isinstance(mark.args[0], str) or not mark.args[0].strip():
                message = f"{item.nodeid}: the mark {mark.name} takes one text, the reason"
                raise pytest.UsageError(message)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measure which part of its time on a processor the test had to wait for."""
    ran, waited = time.thread_time(), _waited()
    try:
        return (yield)
    finally:
        ran, waited = time.thread_time() - ran, _waited() - waited
        item.stash[_SHARE] = ran / (ran + waited) if waited > 0 else 1.0


def _waited() -> float:
    """Return for how many seconds this thread was ready to run, and others did: Linux says so."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a quick test's success into a failure if it took too long."""
    report = yield
    limit: float | None = item.config.getoption("--quick-limit")
    marked = any(item.get_closest_marker(name) for name in RINGS)
    took = call.duration * item.stash.get(_SHARE, 1.0)
    if limit is not None and call.when == "call" and report.passed and not marked and took > limit:
        report.outcome = "failed"
        report.longrepr = f"it took {took:.2f} s: make it quicker, or mark it slow and say why"
    return report
