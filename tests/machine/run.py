"""The long forms of the tests in this folder, on a server of their own.

    python -m tests.machine.run histories [--number 2000] [--seed N] [--programs DIR]
    python -m tests.machine.run faults [--number 1000] [--seed N] [--programs DIR]
    python -m tests.machine.run acquisitions [--number 10000] [--seed N] [--programs DIR]

The first runs random histories on a server and on the model, and makes one that fails as short as it can be. The same
seed and number make the same histories. So does the second, in whose histories answers are lost, links reset, sessions
ended, statements refused, and claims cancelled.

The third fails if a rule was broken (see `tests.history.judge`), or if something that was to be seen was not.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from asyncpg_lease.testing import EmbeddedServer
from tests.history.report import stories
from tests.machine.histories import run_histories
from tests.machine.long_run import complaints, run_long, summary
from tests.support.databases import TEST_SETTINGS, Server
from tests.support.loops import run

NUMBERS = {"histories": 2000, "faults": 1000, "acquisitions": 10_000}


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says, print what came of it, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.machine.run")
    parser.add_argument("what", choices=NUMBERS)
    parser.add_argument("--number", type=int, help=f"so many at least ({NUMBERS})")
    parser.add_argument("--seed", type=int, help="of an earlier run, to have it again")
    parser.add_argument(
        "--programs", type=Path, metavar="DIR", help="where initdb, pg_ctl and postgres are; the wheel's"
    )
    options = parser.parse_args(arguments)
    number = options.number or NUMBERS[options.what]
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    # Every loss and every revocation would be told; they are the subject.
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    with EmbeddedServer(TEST_SETTINGS, programs=options.programs) as embedded:
        server = Server.at(embedded.dsn, "embedded")
        server.make_connecting_cheap()
        _say(f"PostgreSQL {server.major}, {options.what} --number {number} --seed {seed}")
        with server.database() as database:
            if options.what == "acquisitions":
                wrong = _run_long(database.dsn, number, seed)
            else:
                wrong = _run_histories(database.dsn, number, seed, faults=options.what == "faults")
    _say(*wrong, f"in {time.monotonic() - started:.0f} s")
    return 1 if wrong else 0


def _run_histories(dsn: str, number: int, seed: int, *, faults: bool) -> list[str]:
    # One that fails comes out as an error, after its steps have been printed.
    run_histories(dsn, number=number, of_seed=seed, shrink=True, faults=faults)
    return []


def _run_long(dsn: str, number: int, seed: int) -> list[str]:
    history = run(run_long(dsn, number, seed))
    _say(*summary(history))
    return [*stories(history), *complaints(history, number)]


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
