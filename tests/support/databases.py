"""The server of a run, and an empty database on it for every test."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

# For an embedded server that lives as long as the run: nobody needs its data after a power cut.
TEST_SETTINGS = {"fsync": "off", "max_connections": "200", "shared_buffers": "16MB"}

FIRST_WITH_ITERATIONS = 16

EMPTY = """
DO $$
DECLARE
    it record;
BEGIN
    PERFORM set_config('lock_timeout', '10s', true);
    FOR tries_left IN REVERSE 2500..0 LOOP
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid();
        EXIT WHEN NOT FOUND;
        IF tries_left = 0 THEN
            RAISE 'sessions of % do not end: %', current_database(),
                (SELECT string_agg(pid || ' ' || query, ', ') FROM pg_stat_activity WHERE datname = current_database());
        END IF;
        -- pg_terminate_backend could wait itself, for a tenth of a second at least.
        PERFORM pg_sleep(0.002), pg_stat_clear_snapshot();
    END LOOP;
    FOR it IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', it.nspname);
    END LOOP;
    EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
    EXECUTE format('ALTER DATABASE %I OWNER TO %I', current_database(), current_user);
    EXECUTE format('GRANT CONNECT, TEMPORARY ON DATABASE %I TO PUBLIC', current_database());
    CREATE SCHEMA public AUTHORIZATION pg_database_owner;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
    IF EXISTS (SELECT FROM pg_default_acl) OR EXISTS (SELECT FROM pg_largeobject_metadata)
        OR EXISTS (SELECT FROM pg_publication) OR EXISTS (SELECT FROM pg_event_trigger)
        OR EXISTS (SELECT FROM pg_foreign_data_wrapper) OR EXISTS (SELECT FROM pg_cast WHERE oid >= 16384)
        OR EXISTS (
            SELECT FROM pg_database JOIN pg_db_role_setting ON setdatabase = pg_database.oid
            WHERE datname = current_database()
        )
        OR EXISTS (SELECT FROM pg_database WHERE datname = current_database() AND datconnlimit <> -1)
    THEN
        RAISE 'something of the last test is left in %', current_database();
    END IF;
END $$
"""
"""What makes a database that a test has used like a new one, or fails."""
BACKSTAGE = "backstage"
"""The application's name of the session that each database keeps, which no fault of a test's is to hit."""
# Whatever a test has set for the whole database would hold for this session, too.
_UNDISTURBED = " ".join(
    f"-c {setting}"
    for setting in (
        *("statement_timeout=0", "idle_session_timeout=0", "default_transaction_read_only=off"),
        *(r"default_transaction_isolation=read\ committed", "search_path="),
    )
)
_OPTIONS = f"{_UNDISTURBED} -c application_name={BACKSTAGE}"

_run = secrets.token_hex(3)
_numbers = itertools.count(1)


class Database:
    """A database that one test uses at a time, and a session in it that stays for the next one.

    Attributes:
        dsn: Where it is.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._session = self._connect()

    def execute(self, statement: str | sql.Composed) -> psycopg.Cursor[dict[str, Any]]:
        """Run statements as one transaction, whatever the test has set for this database; the event loop stands still.

        Connecting takes as long as the rest of a short test: the session is made anew only where it has been ended.
        """
        try:
            return self._session.execute(statement)
        except psycopg.OperationalError:
            if not self._session.closed:
                raise
            self._session = self._connect()
            return self._session.execute(statement)

    def _connect(self) -> psycopg.Connection[dict[str, Any]]:
        return psycopg.connect(
            self.dsn, autocommit=True, prepare_threshold=None, options=_OPTIONS, row_factory=dict_row
        )

    def empty(self) -> bool:
        """Make it like a new one, and tell whether that went well."""
        try:
            self.execute("ROLLBACK")
            self.execute(EMPTY)
        except psycopg.Error:
            return False
        return True

    def close(self) -> None:
        """End the session; the next statement makes another one."""
        self._session.close()


@dataclass(frozen=True, slots=True)
class Server:
    """A running PostgreSQL: where it is, what to call it in the summary, its major version."""

    dsn: str
    label: str
    major: int
    _free: list[Database] = field(default_factory=list, compare=False, repr=False)

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

    @contextmanager
    def database(self) -> Iterator[Database]:
        """Yield an empty database that nobody else uses.

        It is emptied and used again: that takes 4 ms, and making one takes 140 ms. If that fails it is dropped.
        """
        database = self._free.pop() if self._free else self._make()
        yield database
        if database.empty():
            self._free.append(database)
        else:
            self._drop(database)

    def drop_databases(self) -> None:
        """Drop what `database` has made and keeps for its next call."""
        while self._free:
            self._drop(self._free.pop())

    def _drop(self, database: Database) -> None:
        database.close()
        self.execute(f"DROP DATABASE {urlsplit(database.dsn).path[1:]} WITH (FORCE)")

    def _make(self) -> Database:
        name = f"lease_test_{os.getpid()}_{_run}_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return Database(urlsplit(self.dsn)._replace(path=f"/{name}").geturl())
