"""Faults of all kinds for a while, on a server of its own, and a judgement afterwards.

    python -m tests.chaos.run [--seconds 60] [--seed N] [--processes 6] [--keys 12] [--programs DIR]

Fails, with the history of the key, if a rule was broken (see `tests.history.judge`), or if no fault of some kind was
noticed by its own sign (see `noticed`).
The same seed makes the same faults, one after the other, in each lane; what they meet is the machine's.
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
from tests.chaos.noticed import summary, unnoticed
from tests.chaos.soak import run_soak
from tests.history.judge import broken_rules
from tests.history.report import stories
from tests.support.databases import TEST_SETTINGS, Server
from tests.support.loops import run

PROCESSES = 6
KEYS = 12


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says, print what came of it, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run")
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults (60)")
    parser.add_argument("--seed", type=int, help="of an earlier run, to have its faults again")
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"at work ({PROCESSES})")
    parser.add_argument("--keys", type=int, default=KEYS, help=f"that they share ({KEYS})")
    parser.add_argument(
        "--programs", type=Path, metavar="DIR", help="where initdb, pg_ctl and postgres are; the wheel's"
    )
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    logging.disable(logging.CRITICAL)
    started = time.monotonic()
    with EmbeddedServer(TEST_SETTINGS, programs=options.programs) as embedded:
        server = Server.at(embedded.dsn, "embedded")
        server.make_connecting_cheap()
        size = f"--seconds {options.seconds:g} --processes {options.processes} --keys {options.keys}"
        _say(f"PostgreSQL {server.major}, {size} --seed {seed}")
        soak = run_soak(embedded, options.seconds, seed, processes=options.processes, keys=options.keys)
        history = run(soak)
    silent = unnoticed(history)
    _say(*summary(history), *stories(history), *(f"never noticed: {name}" for name in silent))
    _say(f"in {time.monotonic() - started:.0f} s")
    return 1 if broken_rules(history) or silent else 0


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
