"""Fixtures for the table's tests: roles of their own."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.conftest import MakePool
from tests.support.observe import Observer
from tests.support.typing import Pool
from tests.table.roles import MakeRole


@pytest.fixture
async def make_role(make_pool: MakePool, observe: Observer) -> AsyncIterator[MakeRole]:
    """Make roles without any right but the grants given, and pools that run as them; dropped at the end."""
    roles: list[str] = []
    pools: list[Pool] = []

    async def make(*grants: str) -> Pool:
        role = f"lease_test_{secrets.token_hex(6)}"
        try:
            await observe.connection.execute(f"CREATE ROLE {role}; GRANT {role} TO CURRENT_USER")
        except asyncpg.InsufficientPrivilegeError:
            pytest.skip("the server's role may not create roles")
        roles.append(role)
        await observe.connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        for grant in grants:
            await observe.connection.execute(grant.format(role=role))
        pools.append(await make_pool(server_settings={"role": role}))
        assert await pools[-1].fetchval("SELECT current_user") == role
        return pools[-1]

    yield make
    for pool in pools:
        await pool.close()
    for role in roles:
        await observe.connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
