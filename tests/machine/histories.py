"""Run random histories."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machine.faults import faulty_world
from tests.machine.faulty_machine import FaultyMachine
from tests.machine.machine import LeaseMachine
from tests.machine.world import world
from tests.support.loops import chosen_factory

STEPS = 40
"""Steps in a history."""


def run_histories(dsn: str, *, number: int, of_seed: int, shrink: bool, faults: bool) -> int:
    """Run so many histories on an empty database; the same seed makes the same ones. Return how many were begun.

    Args:
        dsn: the database.
        number: how many.
        of_seed: what they are made of.
        shrink: whether a history that fails is made as short as it can be, which takes its time.
        faults: whether things go wrong on the way to the server, beside whatever holders do.

    Raises:
        AssertionError: a history broke a rule; its steps have been printed.
    """
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
    chosen = settings(
        max_examples=number,
        stateful_step_count=STEPS,
        phases=phases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    begun = 0

    def begin() -> Any:  # noqa: ANN401 - hypothesis has no type for it
        nonlocal begun
        begun += 1
        return kind(runner, opened)

    kind: Any = FaultyMachine if faults else LeaseMachine
    with asyncio.Runner(loop_factory=chosen_factory()) as runner:
        context: Any = faulty_world(dsn) if faults else world(dsn)
        opened = runner.run(context.__aenter__())
        try:
            machine: Any = seed(of_seed)(begin)
            run_state_machine_as_test(machine, settings=chosen)
        finally:
            runner.run(context.__aexit__(None, None, None))
    return begun
