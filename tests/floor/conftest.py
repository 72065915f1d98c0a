"""Fixtures for the floor's tests."""

from __future__ import annotations

from tests.pools.conftest import make_login
from tests.sql.conftest import session
from tests.table.conftest import make_role

__all__ = ["make_login", "make_role", "session"]
