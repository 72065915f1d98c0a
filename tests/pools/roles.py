"""Roles that log in by themselves, so that their own settings count."""

from __future__ import annotations

from typing import Protocol


class MakeLogin(Protocol):
    """Makes a role that may connect and use the schema public, and nothing else."""

    async def __call__(self, *statements: str) -> str:
        """Create the role, run the statements (`{role}` in them is its name), and return a DSN that logs in as it."""
