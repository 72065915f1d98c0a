"""The demo under signals: whenever one comes, no process and no file of it stays."""

import os
import signal
from collections.abc import Callable

import pytest

from asyncpg_lease.testing import EmbeddedServer
from tests.cli.conftest import Program, Scratch, demo_schemas, wait_until

pytestmark = pytest.mark.slow("signals real processes")


def _disorder(program: Program, scratch: Scratch) -> list[str]:
    """Wait for the end, and return whatever is left behind or was said that should not have been."""
    program.finish()
    said = [word for word in ("Traceback", "Verdict") if word in program.output]
    return [*scratch.leftovers(), *said]


def test_demo_on_ctrl_c_during_initdb_leaves_nothing(scratch: Scratch, run_demo: Callable[..., Program]) -> None:
    """Ctrl-C before the server is there ends the making of it."""
    program = run_demo()
    wait_until(lambda: any("/initdb " in process for process in scratch.processes()), 20)
    program.send(signal.SIGINT)
    assert _disorder(program, scratch) == []
    assert program.finish() == 128 + signal.SIGINT, program.output


def test_demo_on_a_terminals_ctrl_c_among_workers_leaves_nothing(
    scratch: Scratch, run_demo: Callable[..., Program]
) -> None:
    """Ctrl-C goes to the whole group, and impatient people press it twice."""
    program = run_demo(start_new_session=True)
    program.wait_for("acquired")
    for _ in range(2):
        os.killpg(program.process.pid, signal.SIGINT)
    assert _disorder(program, scratch) == []
    assert program.finish() == 128 + signal.SIGINT, program.output


def test_demo_on_sigterm_while_a_worker_is_stopped_leaves_nothing(
    scratch: Scratch, run_demo: Callable[..., Program]
) -> None:
    """A worker that is stopped, and so reads nothing, is ended all the same."""
    program = run_demo()
    program.wait_for("SIGSTOP")
    program.send(signal.SIGTERM)
    assert _disorder(program, scratch) == []
    assert program.finish() == 128 + signal.SIGTERM, program.output


@pytest.mark.night("the demo comes to its restart at its end")
def test_demo_on_a_hang_up_during_the_restart_leaves_nothing(
    scratch: Scratch, run_demo: Callable[..., Program]
) -> None:
    """A server that is on its way down and up again is taken away too."""
    program = run_demo()
    program.wait_for("restarted at once")
    program.send(signal.SIGHUP)
    assert _disorder(program, scratch) == []
    assert program.finish() == 128 + signal.SIGHUP, program.output


async def test_demo_on_ctrl_c_with_a_given_server_drops_its_schema(
    scratch: Scratch, run_demo: Callable[..., Program], bystander: EmbeddedServer
) -> None:
    """A server of the user's own is left as it was found."""
    program = run_demo("--dsn", bystander.dsn)
    program.wait_for("acquired")
    assert len(await demo_schemas(bystander.dsn)) == 1
    program.send(signal.SIGINT)
    assert _disorder(program, scratch) == []
    assert program.finish() == 128 + signal.SIGINT, program.output
    assert await demo_schemas(bystander.dsn) == []


@pytest.mark.parametrize("moment", ["acquired", "SIGSTOP"])
def test_demo_killed_leaves_nothing(moment: str, scratch: Scratch, run_demo: Callable[..., Program]) -> None:
    """Not even kill -9 of the demo leaves a server or a worker, running or stopped."""
    program = run_demo()
    program.wait_for(moment)
    program.send(signal.SIGKILL)
    assert program.finish() == -signal.SIGKILL
    scratch.wait_until_empty()
