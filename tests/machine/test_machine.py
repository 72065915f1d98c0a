"""Random histories of a lease table keep to the rules: the short form of `nox -s machine`."""

from __future__ import annotations

import pytest

from tests.machine.histories import run_histories

pytestmark = pytest.mark.slow("each step of many random histories is a call on a real server")


def test_machine_random_histories_keep_to_the_rules(dsn: str) -> None:
    """Whatever holders do answers as the model says, and touches no row but its own."""
    assert run_histories(dsn, number=100, of_seed=1, shrink=False, faults=False) >= 100


def test_machine_histories_with_faults_keep_to_the_rules(dsn: str) -> None:
    """Lost answers, failed renewals and cancelled claims leave nothing claimed, end no tenure, and lower no fence."""
    assert run_histories(dsn, number=25, of_seed=1, shrink=False, faults=True) >= 25
