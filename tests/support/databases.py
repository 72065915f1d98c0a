"""The server of a run, and a fresh database on it for every test."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import asyncpg

from tests.support.loops import run

# For an embedded server that lives as long as the run: nobody needs its data after a power cut.
TEST_SETTINGS = {"fsync": "off", "max_connections": "200"}

FIRST_WITH_ITERATIONS = 16

_run = secrets.token_hex(3)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Server:
    """A running PostgreSQL: where it is, what to call it in the summary, its major version."""

    dsn: str
    label: str
    major: int

    @classmethod
    def at(cls, dsn: str, label: str) -> Server:
        """Connect once and find out the version."""

        async def ask() -> int:
            connection = await asyncpg.connect(dsn)
            try:
                return connection.get_server_version().major
            finally:
                await connection.close()

        return cls(dsn, label, run(ask()))

    def execute(self, statement: str) -> None:
        """Run one statement on the server's own database, on a connection of its own."""

        async def send() -> None:
            connection = await asyncpg.connect(self.dsn)
            try:
                await connection.execute(statement)
            finally:
                await connection.close()

        run(send())

    def make_connecting_cheap(self) -> None:
        """Have the password hashed once in place of 4,096 times, from PostgreSQL 16 on.

        asyncpg before 0.32 does it in Python: 40 ms a connection, in which the event loop stands still.
        """
        if self.major < FIRST_WITH_ITERATIONS:
            return
        where = urlsplit(self.dsn)
        self.execute(f"SET scram_iterations = 1; ALTER ROLE {where.username} PASSWORD '{where.password}'")

    @contextmanager
    def database(self) -> Iterator[str]:
        """Create an empty database, yield its DSN, and drop it with whatever is still connected."""
        name = f"lease_test_{os.getpid()}_{_run}_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        try:
            yield urlsplit(self.dsn)._replace(path=f"/{name}").geturl()
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")
