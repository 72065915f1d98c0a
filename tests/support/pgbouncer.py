"""A PgBouncer in front of one server, for as long as a block lasts.

A shell of its own keeps it: PgBouncer is killed and its folder removed as soon as the shell's input ends, and so
however this process ends. As root it runs as an unprivileged user, since PgBouncer refuses to be root.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import asyncpg

_HOST = "127.0.0.1"
# Below the ports that systems give to outgoing connections; apart from those of the embedded servers.
_PORTS = range(10_000, 15_000)
_START_ATTEMPTS = 5
_START_LIMIT = 10.0
_KEEPER = """
"$1" -q "$2/pgbouncer.ini" &
trap '' INT TERM HUP
cat >&2
kill -9 "$!"
wait
rm -r "$2"
"""
_SETTINGS = {
    "admin_users": "anyone",
    "auth_type": "any",
    "default_pool_size": "2",
    "ignore_startup_parameters": "extra_float_digits",
    "listen_addr": _HOST,
    "max_client_conn": "500",
    "pool_mode": "transaction",
    "unix_socket_dir": "",
}


def find_program() -> str | None:
    """Return the path of PgBouncer, or None where it is not installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin")


def version_of(program: str) -> str:
    """Return major.minor of a PgBouncer."""
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    found = re.match(r"PgBouncer (\d+\.\d+)", said)
    assert found is not None, said
    return found[1]


class PgBouncer:
    """PgBouncer on a free port of the loopback interface, in transaction mode with two server connections.

    Each database of the server has a pool of its own.

    Args:
        server_dsn: The server that it stands in front of.
        settings: What is to differ in its section `[pgbouncer]`.

    Raises:
        SkipTest: It is not installed.
    """

    def __init__(self, server_dsn: str, settings: Mapping[str, str] | None = None) -> None:
        program = find_program()
        if program is None:
            message = "PgBouncer is not installed: apt-get install pgbouncer"
            raise unittest.SkipTest(message)
        self._program = program
        self._server = urlsplit(server_dsn)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._port = 0
        self._folder = Path()
        self._keeper: subprocess.Popen[bytes] | None = None

    @property
    def label(self) -> str:
        """What to call it in the summary: its name, major and minor version."""
        return f"pgbouncer {version_of(self._program)}"

    @property
    def folder(self) -> Path:
        """Where its files are, while it runs."""
        return self._folder

    @property
    def dsn(self) -> str:
        """Where to connect to, for the database of the server's DSN."""
        return self.dsn_of(self._server.path.removeprefix("/"))

    def dsn_of(self, database: str) -> str:
        """Where to connect to, for a database of the server."""
        return f"postgresql://anyone@{_HOST}:{self._port}/{database}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, on the port that it had before if it had one, and wait until it takes connections."""
        ports = [self._port] if self._port else random.sample(_PORTS, _START_ATTEMPTS)
        said = ""
        for self._port in ports:
            self._launch()
            if self._answers():
                return
            # Most likely somebody has the port.
            said = (self._folder / "log").read_text() if self._folder.exists() else said
            self.stop()
        message = f"PgBouncer did not start:\n{said}"
        raise RuntimeError(message)

    def stop(self) -> None:
        """End it at once, and every connection through it."""
        if self._keeper is not None:
            self._keeper.communicate(timeout=10)
            self._keeper = None

    def restart(self) -> None:
        """End it at once, and start it on the same port."""
        self.stop()
        self.start()

    async def command(self, command: str) -> None:
        """Run a command of the admin console, such as PAUSE, RESUME or RELOAD."""
        console = await asyncpg.connect(self.dsn_of("pgbouncer"))
        try:
            await console.execute(command)
        finally:
            await console.close()

    async def configure(self, **settings: str) -> None:
        """Change settings in the file and RELOAD."""
        self._settings.update(settings)
        self._write()
        await self.command("RELOAD")

    def _launch(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="asyncpg-lease-pooler-"))
        self._write()
        account: dict[str, Any] = {}
        if os.geteuid() == 0:
            shutil.chown(self._folder, "nobody")
            account = {"user": "nobody", "extra_groups": []}
        with (self._folder / "log").open("wb") as log:
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", _KEEPER, "keeper", self._program, str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Out of the terminal's process group: Ctrl-C is for the tests.
                start_new_session=True,
                **account,
            )

    def _write(self) -> None:
        server = {
            "host": self._server.hostname,
            "port": self._server.port or 5432,
            "user": unquote(self._server.username or "postgres"),
            "password": unquote(self._server.password or ""),
        }
        values = " ".join(f"{name}='{str(value).replace(chr(39), 2 * chr(39))}'" for name, value in server.items())
        settings = {**self._settings, "listen_port": self._port, "logfile": self._folder / "pgbouncer.log"}
        lines = ["[databases]", f"* = {values}", "[pgbouncer]", *(f"{name} = {it}" for name, it in settings.items())]
        path = self._folder / "pgbouncer.ini"
        path.write_text("\n".join([*lines, ""]))
        path.chmod(0o644)

    def _answers(self) -> bool:
        assert self._keeper is not None
        until = time.monotonic() + _START_LIMIT
        while time.monotonic() < until and self._keeper.poll() is None:
            with suppress(OSError), socket.create_connection((_HOST, self._port), 1):
                return True
            time.sleep(0.01)
        return False
