"""The wheel without its extras: what it imports, offers and says. Run by `nox -s package`, in a clean environment."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path
from pkgutil import iter_modules

import anyio
import asyncpg

# The two dependencies and what these require themselves; pip and its like are in any environment.
INSTALLED = {"anyio", "asyncpg", "asyncpg-lease", "async-timeout", "idna", "sniffio", "typing-extensions"}
ALWAYS = {"pip", "setuptools", "wheel"}
# Each has a tool of its own that is not here.
EDGES = {"cli", "contrib"}


def main() -> None:
    """Import all there is, and see that nothing else was needed; then ask the command."""
    installed = {distribution.metadata["Name"].lower().replace("_", "-") for distribution in distributions()}
    assert installed - ALWAYS <= INSTALLED, f"this environment is not bare: {installed - ALWAYS - INSTALLED}"

    before = set(sys.modules)
    package = import_module("asyncpg_lease")
    public = {module.name for module in iter_modules(package.__path__) if not module.name.startswith("_")} - EDGES
    for module in (package, *(import_module(f"asyncpg_lease.{name}") for name in sorted(public))):
        assert all(hasattr(module, name) for name in module.__all__), module
    packages = {name.partition(".")[0] for name in set(sys.modules) - before}
    strangers = packages - {"asyncpg_lease", asyncpg.__name__, anyio.__name__} - sys.stdlib_module_names
    assert not strangers, f"importing asyncpg_lease imported {sorted(strangers)}"
    assert Path(str(package.__file__)).is_relative_to(sys.prefix), f"imported from {package.__file__}"

    command = subprocess.run([sys.executable, "-m", "asyncpg_lease"], capture_output=True, text=True, check=False)
    assert command.returncode != 0
    assert "pip install 'asyncpg-lease[demo]'" in command.stderr, command.stderr


if __name__ == "__main__":
    main()
