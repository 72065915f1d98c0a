"""Pools of roles that may do next to nothing."""

from __future__ import annotations

from typing import Protocol

from tests.support.typing import Pool


class MakeRole(Protocol):
    """Makes a role, grants it what is given, and returns a pool that runs as it."""

    async def __call__(self, *grants: str) -> Pool:
        """Create the role; `{role}` in a grant is its name."""
