"""A pytest plugin: what a run is to run on.

`--loop NAME` chooses the kind of event loop, `--programs DIR` the PostgreSQL that is started for the tests, and
`--server-label NAME` says what the summary is to call the server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.loops import LOOPS, VARIABLE, LoopFactory, chosen_factory


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--loop", choices=LOOPS, help="the kind of event loop to run on; asyncio's own unless given")
    parser.addoption("--programs", type=Path, metavar="DIR", help="where initdb, pg_ctl and postgres are; the wheel's")
    parser.addoption("--server-label", metavar="NAME", help="what the summary calls the server of the run")


def pytest_configure(config: pytest.Config) -> None:
    """Tell every process of the run, those that tests start included."""
    if name := config.getoption("--loop"):
        os.environ[VARIABLE] = name


def pytest_asyncio_loop_factories() -> Mapping[str, LoopFactory]:
    """Run each test on one loop of the run's kind."""
    return {"chosen": chosen_factory()}
