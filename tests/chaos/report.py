"""What became of each kind of fault, as a run prints it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.noticed import tally
from tests.history.history import History
from tests.history.report import figures


def summary(history: History) -> Iterator[str]:
    """Yield the lines of the results."""
    counts = tally(history)
    yield f"{'fault':22}{'injected':>9}{'noticed':>9}{'losses':>8}"
    for name, count in counts.items():
        yield f"{name:22}{count.injected:>9}{count.noticed:>9}{count.lost:>8}"
    all_faults = sum(count.injected for count in counts.values())
    yield f"{'all':22}{all_faults:>9}{sum(count.noticed for count in counts.values()):>9}"
    yield ""
    yield from figures(history)
