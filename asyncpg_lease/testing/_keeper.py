"""The process that keeps an embedded PostgreSQL, and takes it away when its own stdin ends.

It alone makes the folder, runs the server and removes both. Whatever ends the process that started it
(a return, Ctrl-C, SIGTERM, kill -9) closes the pipe, and that is the one signal this process obeys, so
there is one way out and no moment at which something is left behind. Only a kill -9 of this very process
leaves a server and its folder.

It is run as a file, by `asyncpg_lease.testing._server`, and needs the standard library alone: importing the
package would cost more time than the rest of its work. It speaks JSON lines: on stdout an answer to each
request, `{"dsn": ..., "log": ...}` or `{"error": ...}`; on stdin a request to restart the server a line.
"""

import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

if sys.platform != "win32":
    import pwd

_HOST = "127.0.0.1"
_USER = "postgres"
_SETTINGS = {
    "listen_addresses": _HOST,
    "unix_socket_directories": "",
    # An immediate restart loses processes, not the operating system's cache: without fsync it is survived.
    # synchronous_commit stays on, since what has been committed must have reached that cache.
    "fsync": "off",
    "shared_buffers": "32MB",
}
# Below the ports that systems give to outgoing connections: on one of those a client that keeps trying
# while the server is down can be connected to itself, and so keep the port from the server.
_PORTS = range(15_000, 32_000)
_START_ATTEMPTS = 5
_BUILD_FILES = shutil.ignore_patterns("include", "doc", "pgxs", "pkgconfig", "*.a", "__pycache__")


class _KeeperError(Exception):
    """A step towards a running server failed."""


class _Account(NamedTuple):
    """The system's user that the server runs as, where that is not our own."""

    uid: int
    gid: int


class _Cluster:
    """One PostgreSQL cluster in a temporary folder."""

    def __init__(self, folder: Path, programs: Path, account: _Account | None) -> None:
        self._folder = folder
        self._programs = programs
        self._account = account
        self._data = folder / "data"
        self._password = secrets.token_urlsafe(18)
        self._port = 0
        self.log = folder / "server.log"

    @property
    def dsn(self) -> str:
        return f"postgresql://{_USER}:{self._password}@{_HOST}:{self._port}/postgres"

    def create(self, settings: dict[str, str]) -> None:
        password_file = self._folder / "password"
        password_file.write_text(self._password)
        if self._account is not None:
            # PostgreSQL refuses to run as root, and another user may not get as far as root's files.
            if not _is_open(self._programs):
                self._programs = _copy(self._programs, self._folder)
            for path in (self._folder, *self._folder.rglob("*")):
                os.chown(path, self._account.uid, self._account.gid, follow_symlinks=False)
        self._run(
            "initdb",
            f"--pgdata={self._data}",
            f"--username={_USER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
            "--no-instructions",
        )
        # initdb itself takes settings from PostgreSQL 16 on.
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            for name, value in (_SETTINGS | settings).items():
                escaped = value.replace("\\", "\\\\").replace("'", "''")
                file.write(f"{name} = '{escaped}'\n")

    def start(self) -> None:
        for attempts_left in reversed(range(_START_ATTEMPTS)):
            self._port = _free_port()
            try:
                self._control("start", f"--options=-p {self._port}", f"--log={self.log}")
            except _KeeperError:
                # Most likely somebody took the port after it was found free.
                if not attempts_left:
                    raise
            else:
                return

    def restart(self) -> None:
        # Its options, the port among them, are kept by the server for its restart.
        self._control("restart", "--mode=immediate", f"--log={self.log}")

    def stop(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self._control("stop", "--mode=immediate")

    def _control(self, action: str, *options: str) -> None:
        self._run("pg_ctl", action, f"--pgdata={self._data}", "--wait", "--timeout=60", *options)

    def _run(self, program: str, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        command = [str(self._programs / program), *arguments]
        account: dict[str, object] = {}
        if self._account is not None:
            account = {"user": self._account.uid, "group": self._account.gid, "extra_groups": []}
        # A file, since a pipe would be held open by the server that pg_ctl starts.
        with tempfile.TemporaryFile() as output:
            result = subprocess.run(  # type: ignore[call-overload]  # noqa: S603 (PostgreSQL's programs)
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                env=environment | {"LC_ALL": "C"},
                check=False,
                **account,
            )
            if result.returncode != 0:
                output.seek(0)
                said = output.read().decode(errors="replace")
                message = f"{program} failed ({result.returncode}):\n{said}{self._log_tail()}"
                raise _KeeperError(message)

    def _log_tail(self) -> str:
        with suppress(OSError):
            return self.log.read_text(errors="replace")[-2000:]
        return ""


def _free_port() -> int:
    for port in random.sample(_PORTS, k=100):
        with socket.socket() as probe, suppress(OSError):
            if sys.platform != "win32":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_HOST, port))
            return port
    message = f"none of 100 ports from {_PORTS.start} to {_PORTS.stop} on {_HOST} is free"
    raise _KeeperError(message)


def _copy(programs: Path, folder: Path) -> Path:
    """Copy an installation that can be moved, with the libraries that a wheel has beside its package."""
    installation = programs.parent
    package = installation.parent
    copy = folder / package.name / installation.name
    shutil.copytree(installation, copy, ignore=_BUILD_FILES, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)
    return copy / programs.name


def _is_open(folder: Path) -> bool:
    """Tell whether ordinary users get into a folder."""
    return all(entered.stat().st_mode & 0o001 for entered in (folder, *folder.parents))


def _account() -> _Account | None:
    if sys.platform == "win32" or os.geteuid() != 0:
        return None
    for name in ("nobody", "postgres", "daemon"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return _Account(entry.pw_uid, entry.pw_gid)
    message = "PostgreSQL does not run as root, and there is no user nobody, postgres or daemon"
    raise _KeeperError(message)


def _make_folder(account: _Account | None) -> Path:
    if account is None:
        return Path(tempfile.mkdtemp(prefix="asyncpg-lease-"))
    for name in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108 (mkdtemp makes the folder)
        base = Path(name).resolve()
        # Root's own temporary folder may be closed to the user that the server runs as.
        if _is_open(base):
            return Path(tempfile.mkdtemp(prefix="asyncpg-lease-", dir=base))
    message = "no temporary folder can be entered by ordinary users: set TMPDIR to one"
    raise _KeeperError(message)


def _say(**answer: str) -> None:
    # Nobody may be listening any more; then stdin has ended as well, and that decides.
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), json.dumps(answer).encode() + b"\n")


def _keep(programs: Path, settings: dict[str, str]) -> None:
    account = _account()
    folder = _make_folder(account)
    try:
        cluster = _Cluster(folder, programs, account)
        cluster.create(settings)
        try:
            cluster.start()
            _say(dsn=cluster.dsn, log=str(cluster.log))
            for _ in sys.stdin:
                cluster.restart()
                _say(dsn=cluster.dsn, log=str(cluster.log))
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder)


def _main() -> None:
    # Handlers, not SIG_IGN, which the server would inherit.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda _signum, _frame: None)
    request = json.loads(sys.argv[1])
    try:
        _keep(Path(request["programs"]), request["settings"])
    except (OSError, subprocess.SubprocessError, _KeeperError) as error:
        _say(error=str(error))


if __name__ == "__main__":
    _main()
