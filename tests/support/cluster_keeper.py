"""The process that keeps the nodes of a `Cluster`, and takes them away when its own stdin ends.

A server of one node is what `asyncpg_lease.testing._keeper` keeps; here are several, which are copied from each other,
promoted and stopped, and whose clocks libfaketime can turn. On stdin comes a request a line, `{"do": .., "node": ..}`;
on stdout goes `{"dsn": .., "folder": ..}` of that node, or `{"error": ..}`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.inside import (
    Account,
    KeeperError,
    KeptCluster,
    make_server_folder,
    say_to_owner,
    server_account,
)

CLOCK = "clock"
"""The file in a node's folder with the seconds by which its clock is wrong, with a sign."""

SETTINGS = {"max_connections": "60", "wal_retrieve_retry_interval": "200ms"}


class Node(KeptCluster):
    """One server of a cluster; its port stays the same for good.

    Args:
        folder: Its own, which is not there yet.
        programs: PostgreSQL's.
        account: The system's user that it runs as.
        library: libfaketime, for a clock that can be turned; None: the machine's clock.
    """

    def __init__(self, folder: Path, programs: Path, account: Account | None, library: str | None) -> None:
        super().__init__(folder, programs, account)
        self._library = library
        self._clock = folder / CLOCK

    def make(self) -> None:
        """Make a cluster of its own and start it."""
        self._make_folder()
        self.create(SETTINGS)
        self.start()

    def copy(self, primary: Node) -> None:
        """Become a standby of another node, whatever this one was, and start."""
        self.remove()
        self._make_folder()
        self._password, self._programs = primary._password, primary._programs
        self._run(
            "pg_basebackup",
            f"--pgdata={self._data}",
            f"--dbname={primary.dsn}",
            "--write-recovery-conf",
            "--checkpoint=fast",
            "--no-sync",
        )
        self.start()

    def start(self) -> None:
        """Start, on the port that it had before."""
        if self._port:
            self._control("start", f"--options=-p {self._port}", f"--log={self.log}")
        else:
            super().start()

    def promote(self) -> None:
        """Become a primary."""
        self._control("promote")

    def remove(self) -> None:
        """Stop and leave nothing behind."""
        with suppress(FileNotFoundError):
            self.stop()
            shutil.rmtree(self._folder)

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700)
        self._clock.write_text("+0\n")
        if self._account is not None:
            os.chown(self._folder, self._account.uid, self._account.gid)

    def _control(self, action: str, *options: str) -> None:
        # pg_ctl compares its clock with the server's.
        with self._turned_clock():
            super()._control(action, *options)

    @contextmanager
    def _turned_clock(self) -> Iterator[None]:
        if self._library is None:
            yield
            return
        faked = {
            "LD_PRELOAD": self._library,
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_NO_CACHE": "1",
            # Waits are counted by that one, and go on whatever the clock is turned to.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        os.environ.update(faked)
        try:
            yield
        finally:
            for name in faked:
                del os.environ[name]

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._folder


def _keep(programs: Path, library: str | None) -> None:
    account = server_account()
    folder = make_server_folder(account)
    folder.chmod(0o711)
    nodes = {name: Node(folder / f"{name}-{secrets.token_hex(2)}", programs, account, library) for name in ("a", "b")}
    try:
        for line in sys.stdin:
            request = json.loads(line)
            node = nodes[request["node"]]
            orders: dict[str, Callable[[], None]] = {
                "make": node.make,
                "start": node.start,
                "stop": node.stop,
                "promote": node.promote,
                "copy": lambda: node.copy(nodes[request["of"]]),  # noqa: B023 - called in this round
            }
            try:
                orders[request["do"]]()
                say_to_owner(dsn=node.dsn, folder=str(node.folder))
            except (OSError, subprocess.SubprocessError, KeeperError) as error:
                say_to_owner(error=str(error))
    finally:
        for node in nodes.values():
            node.remove()
        shutil.rmtree(folder)


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _signum, _frame: None)
    request = json.loads(sys.argv[1])
    _keep(Path(request["programs"]), request["library"])


if __name__ == "__main__":
    _main()
