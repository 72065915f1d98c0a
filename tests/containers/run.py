"""Run tests on a PostgreSQL in a container.

    python -m tests.containers.run IMAGE [PYTEST'S ARGUMENTS ...]

Where no engine answers, or the image cannot be had, nothing is run, and the file of `--runs` says so, as it says what
other runs have skipped. testcontainers starts a container of its own as well, which removes what a killed run leaves;
where its image cannot be had, TESTCONTAINERS_RYUK_DISABLED=true does without.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.containers import IMAGE_VARIABLE
from tests.containers.engine import dsn_of, missing, postgres
from tests.support.databases import TEST_SETTINGS


def main(arguments: Sequence[str]) -> int:
    """Run pytest on a container, or say why not; return the exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("image")
    parser.add_argument("--runs", type=Path)
    known, options = parser.parse_known_args(arguments)
    if reason := missing(known.image):
        _skip(f"skipped: containers: {known.image}: {reason}", known.runs)
        return 0
    if known.runs is not None:
        options.append(f"--runs={known.runs}")
    with postgres(known.image, TEST_SETTINGS) as container:
        environment = {"ASYNCPG_LEASE_TEST_DSN": dsn_of(container), IMAGE_VARIABLE: known.image}
        command = [sys.executable, "-m", "pytest", "--server-label", "container", *options]
        return subprocess.run(command, env=os.environ | environment, check=False).returncode


def _skip(line: str, runs: Path | None) -> None:
    print(line)
    if runs is not None:
        runs.parent.mkdir(parents=True, exist_ok=True)
        runs.write_text(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
