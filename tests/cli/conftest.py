"""A folder in which anything that is left behind is seen, and ways to run programs in it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest

from asyncpg_lease import cli
from asyncpg_lease.testing import EmbeddedServer

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]  # The demo is for POSIX, and these tests are about its signals.
else:
    import pwd

PATIENCE = 45.0


class Scratch:
    """A temporary folder of its own: programs that are run with it are known by it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environment(self) -> dict[str, str]:
        """What makes a program put its files here."""
        return os.environ | {"TMPDIR": str(self.folder), "HOME": str(self.folder)}

    def processes(self) -> list[str]:
        """Name the processes that run here, each as its id and its command.

        They are known by their environment, their arguments or their working folder.
        """
        if not Path("/proc/self/environ").exists():
            return self._processes_by_ps()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
                environment = (process / "environ").read_text(errors="replace")
                folder = str((process / "cwd").readlink())
                if process.name != str(os.getpid()) and str(self.folder) in command + environment + folder:
                    found.append(f"{process.name} {command}")
        return found

    def _processes_by_ps(self) -> list[str]:
        listing = subprocess.run(
            ["ps", "axeww", "-o", "pid=,command="],  # noqa: S607 (wherever the system has it)
            env={"PATH": os.defpath},
            check=True,
            capture_output=True,
            text=True,
        )
        return [line.strip() for line in listing.stdout.splitlines() if str(self.folder) in line]

    def leftovers(self) -> list[str]:
        """Name every process and every file that is here."""
        return [*self.processes(), *(path.name for path in self.folder.iterdir())]

    def wait_until_empty(self, seconds: float = 15) -> None:
        """Wait until nothing is left; for ends that are not waited for, as after kill -9."""
        wait_until(lambda: not self.leftovers(), seconds)


class Watched:
    """A process under test, and a thread that runs `read` for as long as it writes.

    Args:
        process: the process.
        read: reads all that it writes.
        let_go: closes what it was read from.
    """

    def __init__(
        self, process: subprocess.Popen[Any], read: Callable[[], object], let_go: Callable[[], object]
    ) -> None:
        self.process = process
        self._let_go = let_go
        self._reader = threading.Thread(target=read)
        self._reader.start()

    def finish(self) -> int:
        """Wait for its end, and return its status."""
        status = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return status

    def close(self) -> None:
        """End it in any case."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE)
        self._let_go()


class Program(Watched):
    """A program under test, whose lines are read as they come."""

    def __init__(self, command: Sequence[str], scratch: Scratch, **options: object) -> None:
        self._lines: list[str] = []
        process: subprocess.Popen[str] = subprocess.Popen(  # type: ignore[call-overload]
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=scratch.folder,
            **{"env": scratch.environment()} | options,
        )
        assert process.stdout is not None
        super().__init__(process, partial(self._lines.extend, process.stdout), process.stdout.close)

    @property
    def output(self) -> str:
        """All that it has printed so far."""
        return "".join(self._lines)

    def wait_for(self, text: str) -> None:
        """Wait until it has printed this text."""
        wait_until(lambda: text in self.output, PATIENCE, lambda: f"{text!r} not in:\n{self.output}")

    def send(self, signum: int) -> None:
        """Send it a signal."""
        self.process.send_signal(signum)


class Unprivileged(NamedTuple):
    """A Python, and the options of `Popen` that make it run as an ordinary user."""

    python: str
    options: dict[str, object]


def wait_until(
    condition: Callable[[], bool], seconds: float, describe: Callable[[], str] = lambda: "not in time"
) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.02)


async def demo_schemas(dsn: str) -> list[str]:
    """Name the demo's schemas on a server."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("SELECT nspname FROM pg_namespace WHERE nspname LIKE '%demo%'")
        return [row["nspname"] for row in rows]
    finally:
        await connection.close()


@pytest.fixture(scope="session")
def bystander() -> Iterator[EmbeddedServer]:
    """A server that is not the demo's."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    """A folder that every user may use, as programs of another user are run in it."""
    folder = Path(tempfile.mkdtemp(prefix="lease-test-", dir="/tmp")).resolve()
    folder.chmod(0o777)
    yield Scratch(folder)
    shutil.rmtree(folder)


@pytest.fixture
def run(scratch: Scratch) -> Iterator[Callable[..., Program]]:
    """Start programs in the folder; whichever still runs at the end is ended."""
    programs: list[Program] = []

    def start(*command: str, **options: object) -> Program:
        programs.append(Program(command, scratch, **options))
        return programs[-1]

    yield start
    for program in programs:
        program.close()


@pytest.fixture
def run_demo(run: Callable[..., Program]) -> Callable[..., Program]:
    """Start the demo in the folder."""

    def start(*arguments: str, **options: object) -> Program:
        return run(sys.executable, "-m", "asyncpg_lease", "demo", *arguments, **options)

    return start


@pytest.fixture
def unprivileged(scratch: Scratch) -> Unprivileged:
    """How to run Python as an ordinary user: as ourselves, or as root as one that owns nothing here."""
    if os.geteuid() != 0:
        return Unprivileged(sys.executable, {})
    search_path = [sysconfig.get_path("purelib"), str(Path(cli.__file__).parents[2])]
    options: dict[str, object] = {
        "user": "nobody",
        "group": pwd.getpwnam("nobody").pw_gid,
        "extra_groups": [],
        "env": scratch.environment() | {"PYTHONPATH": os.pathsep.join(search_path)},
    }
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, shutil.which(version, path="/usr/local/bin:/usr/bin:/bin")):
        if python and _can_run(python, options):
            return Unprivileged(python, options)
    pytest.skip("no Python of this version that the user nobody may run")


def _can_run(python: str, options: dict[str, object]) -> bool:
    command = [python, "-c", "import asyncpg_lease, typer"]
    try:
        subprocess.run(command, check=True, capture_output=True, cwd="/", **options)  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError):
        return False
    return True
