"""The server of a run, and an empty database on it for every test."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

# For an embedded server that lives as long as the run: nobody needs its data after a power cut.
TEST_SETTINGS = {"fsync": "off", "max_connections": "200"}

FIRST_WITH_ITERATIONS = 16

EMPTY = """
DO $$
DECLARE
    it record;
BEGIN
    PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    FOR it IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', it.nspname);
    END LOOP;
    EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
    EXECUTE format('ALTER DATABASE %I OWNER TO %I', current_database(), current_user);
    EXECUTE format('GRANT CONNECT, TEMPORARY ON DATABASE %I TO PUBLIC', current_database());
    CREATE SCHEMA public AUTHORIZATION pg_database_owner;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
END $$
"""
"""What makes a database that a test has used like a new one."""
# Whatever a test has set for the whole database would hold for this session, too.
_UNDISTURBED = "-c default_transaction_read_only=off -c default_transaction_isolation=read\\ committed -c search_path="

_run = secrets.token_hex(3)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Server:
    """A running PostgreSQL: where it is, what to call it in the summary, its major version."""

    dsn: str
    label: str
    major: int
    _free: list[str] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def at(cls, dsn: str, label: str) -> Server:
        """Connect once and find out the version."""
        with psycopg.connect(dsn) as connection:
            return cls(dsn, label, connection.info.server_version // 10_000)

    def execute(self, statement: str | sql.Composed) -> None:
        """Run one statement on the server's own database, on a connection of its own."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)

    def make_connecting_cheap(self) -> None:
        """Have the password hashed once in place of 4,096 times, from PostgreSQL 16 on.

        asyncpg before 0.32 does it in Python: 40 ms a connection, in which the event loop stands still.
        """
        if self.major < FIRST_WITH_ITERATIONS:
            return
        where = urlsplit(self.dsn)
        self.execute(f"SET scram_iterations = 1; ALTER ROLE {where.username} PASSWORD '{where.password}'")

    def dsn_of(self, database: str) -> str:
        """Return the DSN of one of the server's databases."""
        return urlsplit(self.dsn)._replace(path=f"/{database}").geturl()

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the DSN of an empty database that nobody else uses.

        It is emptied and used again: that takes 8 ms, and making one takes 140 ms.
        """
        name = self._free.pop() if self._free else self._make()
        try:
            yield self.dsn_of(name)
        finally:
            with psycopg.connect(self.dsn_of(name), autocommit=True, options=_UNDISTURBED) as admin:
                admin.execute(EMPTY)
            self._free.append(name)

    def drop_databases(self) -> None:
        """Drop what `database` has made and keeps for its next call."""
        while self._free:
            self.execute(f"DROP DATABASE {self._free.pop()} WITH (FORCE)")

    def _make(self) -> str:
        name = f"lease_test_{os.getpid()}_{_run}_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return name
