"""A pytest plugin: what a run is to run on.

`--loop NAME` chooses the kind of event loop, `--programs DIR` the PostgreSQL that is started for the tests, and
`--server-label NAME` says what the summary is to call the server. `--pooler pgbouncer` has the tests' pools go through
a PgBouncer, and adds tests/pooler, which the other runs leave out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.loops import LOOPS, VARIABLE, LoopFactory, chosen_factory

POOLER_TESTS = Path(__file__).parents[1] / "pooler"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--loop", choices=LOOPS, help="the kind of event loop to run on; asyncio's own unless given")
    parser.addoption("--programs", type=Path, metavar="DIR", help="where initdb, pg_ctl and postgres are; the wheel's")
    parser.addoption("--server-label", metavar="NAME", help="what the summary calls the server of the run")
    parser.addoption("--pooler", choices=["pgbouncer"], help="what the tests' pools go through; nothing unless given")


def pytest_configure(config: pytest.Config) -> None:
    """Tell every process of the run, those that tests start included."""
    if name := config.getoption("--loop"):
        os.environ[VARIABLE] = name


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the tests of a pooler out of a run without one."""
    return True if collection_path == POOLER_TESTS and not config.getoption("--pooler") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests whose time is moved out of runs in which it cannot be.

    uvloop has a clock of its own. A pooler is another process, and nobody can see what is on its way through it.
    """
    if config.getoption("--loop") != "uvloop" and not config.getoption("--pooler"):
        return
    travelling = [item for item in items if "travel" in getattr(item, "fixturenames", ())]
    if travelling:
        config.hook.pytest_deselected(items=travelling)
        items[:] = [item for item in items if item not in travelling]


def pytest_asyncio_loop_factories() -> Mapping[str, LoopFactory]:
    """Run each test on one loop of the run's kind."""
    return {"chosen": chosen_factory()}
