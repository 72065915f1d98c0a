"""A pytest plugin: what a run is to run on. `--loop NAME` chooses the kind of event loop."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from tests.support.loops import LOOPS, VARIABLE, LoopFactory, chosen_factory


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--loop", choices=LOOPS, help="the kind of event loop to run on; asyncio's own unless given")


def pytest_configure(config: pytest.Config) -> None:
    """Tell every process of the run, those that tests start included."""
    if name := config.getoption("--loop"):
        os.environ[VARIABLE] = name


def pytest_asyncio_loop_factories() -> Mapping[str, LoopFactory]:
    """Run each test on one loop of the run's kind."""
    return {"chosen": chosen_factory()}
