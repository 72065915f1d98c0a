"""Fixtures for the tests of pools: roles that log in by themselves."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.pools.roles import MakeLogin
from tests.support.observe import Observer


@pytest.fixture
async def make_login(dsn: str, observe: Observer) -> AsyncIterator[MakeLogin]:
    """Make roles without any right of their own, on a database on which PUBLIC has none; dropped at the end."""
    roles: list[str] = []
    database = await observe.connection.fetchval("SELECT quote_ident(current_database())")

    async def make(*statements: str) -> str:
        role, password = f"lease_test_{secrets.token_hex(6)}", secrets.token_hex(12)
        try:
            await observe.connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
        except asyncpg.InsufficientPrivilegeError:
            pytest.skip("the server's role may not create roles")
        roles.append(role)
        await observe.connection.execute(
            f"REVOKE ALL ON DATABASE {database} FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC;"
            f"GRANT CONNECT ON DATABASE {database} TO {role}; GRANT USAGE ON SCHEMA public TO {role}"
        )
        for statement in statements:
            await observe.connection.execute(statement.format(role=role))
        address = urlsplit(dsn)
        return address._replace(netloc=f"{role}:{password}@{address.netloc.rpartition('@')[2]}").geturl()

    yield make
    for role in roles:
        await observe.connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = $1", role
        )
        await observe.connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
