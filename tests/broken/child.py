"""One run of pytest on a broken package, in a process that was forked with everything but that package loaded."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path

import pytest

LOADED = ["pytest", "pytest_asyncio", "pytest_timeout", "xdist", "asyncpg", "anyio._backends._asyncio", "hypothesis"]
"""What takes most of a run's time to import, and imports nothing of the package's."""


def context() -> ForkServerContext | SpawnContext:
    """Return the way to start such processes; where there is no forking they load everything themselves."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(LOADED)
    return forking


def run(arguments: Sequence[str], folder: Path, copy: Path, environment: Mapping[str, str], output: Path) -> None:
    """Run pytest and exit with its code: in a folder, on the package in another one, with its output in a file."""
    with output.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.environ.update(environment, PYTHONPATH=str(copy))
    os.chdir(folder)
    sys.path.insert(0, str(copy))
    sys.exit(pytest.main(list(arguments)))
