"""The demo under signals: whenever one comes, no process and no file of it stays."""

import os
import signal
from collections.abc import Callable

import pytest

from asyncpg_lease.testing.server import EmbeddedServer
from tests.cli.conftest import Program, Scratch, demo_schemas, wait_until


def _expect_orderly_end(program: Program, scratch: Scratch, signum: int) -> None:
    assert program.finish() == 128 + signum, program.output
    assert not scratch.leftovers()
    assert "Traceback" not in program.output
    assert "Verdict" not in program.output


def test_demo_on_ctrl_c_during_initdb_leaves_nothing(scratch: Scratch, run_demo: Callable[..., Program]) -> None:
    """Ctrl-C before the server is there ends the making of it."""
    program = run_demo()
    wait_until(lambda: any("/initdb " in process for process in scratch.processes()), 20)
    program.send(signal.SIGINT)
    _expect_orderly_end(program, scratch, signal.SIGINT)


def test_demo_on_a_terminals_ctrl_c_among_workers_leaves_nothing(
    scratch: Scratch, run_demo: Callable[..., Program]
) -> None:
    """Ctrl-C goes to the whole group, and impatient people press it twice."""
    program = run_demo(start_new_session=True)
    program.wait_for("acquired")
    for _ in range(2):
        os.killpg(program.process.pid, signal.SIGINT)
    _expect_orderly_end(program, scratch, signal.SIGINT)


def test_demo_on_sigterm_while_a_worker_is_stopped_leaves_nothing(
    scratch: Scratch, run_demo: Callable[..., Program]
) -> None:
    """A worker that is stopped, and so reads nothing, is ended all the same."""
    program = run_demo()
    program.wait_for("SIGSTOP")
    program.send(signal.SIGTERM)
    _expect_orderly_end(program, scratch, signal.SIGTERM)


def test_demo_on_a_hang_up_during_the_restart_leaves_nothing(
    scratch: Scratch, run_demo: Callable[..., Program]
) -> None:
    """A server that is on its way down and up again is taken away too."""
    program = run_demo()
    program.wait_for("restarted at once")
    program.send(signal.SIGHUP)
    _expect_orderly_end(program, scratch, signal.SIGHUP)


async def test_demo_on_ctrl_c_with_a_given_server_drops_its_schema(
    scratch: Scratch, run_demo: Callable[..., Program], bystander: EmbeddedServer
) -> None:
    """A server of the user's own is left as it was found."""
    program = run_demo("--dsn", bystander.dsn)
    program.wait_for("acquired")
    assert len(await demo_schemas(bystander.dsn)) == 1
    program.send(signal.SIGINT)
    _expect_orderly_end(program, scratch, signal.SIGINT)
    assert await demo_schemas(bystander.dsn) == []


@pytest.mark.parametrize("moment", ["acquired", "SIGSTOP"])
def test_demo_killed_leaves_nothing(moment: str, scratch: Scratch, run_demo: Callable[..., Program]) -> None:
    """Not even kill -9 of the demo leaves a server or a worker, running or stopped."""
    program = run_demo()
    program.wait_for(moment)
    program.send(signal.SIGKILL)
    assert program.finish() == -signal.SIGKILL
    scratch.wait_until_empty()
