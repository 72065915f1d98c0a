"""Processes and a server under faults of all kinds: the short form of `nox -s chaos`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from asyncpg_lease.testing import EmbeddedServer
from tests.chaos.noticed import summary
from tests.chaos.soak import run_soak
from tests.history.judge import broken_rules
from tests.history.report import stories
from tests.support.databases import TEST_SETTINGS

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP and os.fork"),
    pytest.mark.slow("processes are stopped and killed for seconds"),
]

SECONDS = 6.0


@pytest.fixture
def unhappy_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server of its own, with connections for everybody who comes again."""
    with EmbeddedServer(TEST_SETTINGS, programs=request.config.getoption("--programs")) as server:
        yield server


async def test_faults_of_all_kinds_leave_never_two_and_never_stuck(unhappy_server: EmbeddedServer) -> None:
    """Whatever meets whatever, no rule is broken: see `tests.history.judge`."""
    history = await run_soak(unhappy_server, SECONDS, seed=1, processes=3, keys=6)
    assert len(history.faults) > SECONDS
    assert len(history.bodies) > SECONDS
    assert broken_rules(history) == {}, "\n".join([*summary(history), *stories(history)])
