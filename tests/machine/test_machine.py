"""Random histories of a lease table keep to the rules: the short form of `nox -s machine`."""

from __future__ import annotations

from tests.machine.machine import run_histories


def test_machine_random_histories_keep_to_the_rules(dsn: str) -> None:
    """Whatever holders do answers as the model says, and touches no row but its own."""
    run_histories(dsn, number=150, of_seed=1, shrink=False)
