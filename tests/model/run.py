"""Check the model in docs/model/lease.pml with spin: as designed it holds, with a rule taken out it does not.

    python -m tests.model.run [VARIANT ...] [--story]

Needs `spin` and `gcc`. A row is printed for each variant: what was expected, what was found, how many states that took.
Fails where the two differ, and where the search of a variant that holds was not complete. With `--story` the shortest
way to a violation is told as well, step by step.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).parents[2] / "docs" / "model" / "lease.pml"
DEPTH = 1_000_000
MEGABYTES = 900
AT_ONCE = 2
HOLDS = "holds"
# How spin says that it has not looked at everything.
GAPS = ["max search depth too small", "Search not completed", "out of memory"]
# Numbered as in the model: a run can check one of them alone.
PROPERTIES = [
    "one_tenure_at_a_time",
    "fences_rise",
    "bodies_apart",
    "writes_in_order",
    "own_tenure_alone",
    "key_opens_in_time",
    "guarded_write_is_the_latest",
]


@dataclass(frozen=True, slots=True)
class Variant:
    """The model with some of its macros set, and the property that is violated then; None where all of them hold."""

    name: str
    macros: tuple[str, ...]
    violates: str | None

    @property
    def options(self) -> list[str]:
        """What spin is to be told; the property alone, where one is expected to be violated."""
        only = [] if self.violates is None else [f"ONLY={PROPERTIES.index(self.violates) + 1}"]
        return [f"-D{macro}" for macro in (*self.macros, *only)]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a search has found.

    Attributes:
        found: `HOLDS`, the property that is violated, or another error in spin's own words.
        gaps: why the search says less than it seems to.
        states: how many were stored.
        seconds: for how long it searched.
    """

    found: str
    gaps: tuple[str, ...]
    states: int
    seconds: float


def broken(macro: str, violates: str, *macros: str) -> Variant:
    """Return the variant of a rule that is taken out."""
    return Variant(macro, (macro, *macros), violates)


PRUNING = ("PRUNING", "TENURES=2")
WRITING = ("WRITING", "AT_ONCE=1")
GUARDING = ("GUARDING", "TENURES=2")
VARIANTS = [
    Variant("as designed", (), None),
    Variant("as designed, pruned", PRUNING, None),
    Variant("as designed, with a fenced resource", WRITING, None),
    Variant("as designed, with guarded transactions", GUARDING, None),
    Variant("as designed, one name a client", ("NAMED",), None),
    broken("CLAIM_OF_WHAT_IS_HELD", "one_tenure_at_a_time"),
    broken("RELEASE_DELETES", "fences_rise"),
    Variant("RELEASE_DELETES, the resource", ("RELEASE_DELETES", *WRITING), "writes_in_order"),
    broken("TAKE_OVER_KEEPS_FENCE", "fences_rise"),
    broken("PRUNE_WITHOUT_FLOOR", "fences_rise", *PRUNING),
    broken("FLOOR_PASSES_CLAIMS", "fences_rise", *PRUNING),
    broken("TRUST_FROM_REPLY", "bodies_apart"),
    broken("LATE_ANSWER_IS_A_LEASE", "bodies_apart"),
    broken("NO_DEADLINE", "bodies_apart"),
    broken("NO_GRACE", "bodies_apart"),
    broken("RELEASE_BEFORE_END", "bodies_apart"),
    broken("JOINS", "bodies_apart"),
    broken("UNFENCED_RESOURCE", "writes_in_order", *WRITING),
    broken("RENEW_WITHOUT_FENCE", "own_tenure_alone", "NAMED"),
    broken("RENEW_BY_KEY", "own_tenure_alone"),
    broken("RENEW_PAST_EXPIRY", "own_tenure_alone"),
    broken("RELEASE_WITHOUT_FENCE", "own_tenure_alone", "NAMED"),
    broken("HOLDER_REUSED", "own_tenure_alone"),
    broken("RENEW_RESTING", "key_opens_in_time"),
    broken("GUARD_LOCKS_NOTHING", "guarded_write_is_the_latest", *GUARDING),
    broken("PRUNE_GUARDED", "guarded_write_is_the_latest", "PRUNING", *GUARDING),
]


def read(output: str) -> Finding:
    """Read what the search has printed.

    Raises:
        ValueError: It did not come to its end.
    """
    errors = re.search(r"errors: (\d+)", output)
    states = re.search(r"^ *(\d+(?:\.\d+)?(?:e\+\d+)?) states, stored", output, re.MULTILINE)
    seconds = re.search(r"elapsed time ([\d.e+-]+) seconds", output)
    if errors is None or states is None:
        message = f"the search did not come to its end:\n{output[-2000:]}"
        raise ValueError(message)
    told = re.search(r"^pan:\d+: (?:assertion violated )?(.+?)(?: \(at depth \d+\))?$", output, re.MULTILINE)
    found = HOLDS
    if errors[1] != "0" or told is not None:
        found = told[1] if told is not None else f"{errors[1]} errors"
    gaps = tuple(gap for gap in GAPS if gap in output)
    unreached = tuple(
        f"unreached: line {line}"
        for line, what in re.findall(r":(\d+), state \d+, \"(.*)\"$", output, re.MULTILINE)
        if what != "-end-"
    )
    return Finding(found, (*gaps, *unreached), int(float(states[1])), float(seconds[1]) if seconds else 0.0)


def complaint(variant: Variant, finding: Finding) -> str | None:
    """Return what is wrong with what was found, or None."""
    expected = variant.violates or HOLDS
    if finding.found != expected:
        return f"{variant.name}: expected {expected}, found {finding.found}"
    if variant.violates is None and finding.gaps:
        return f"{variant.name}: the search was not complete: {', '.join(finding.gaps)}"
    return None


def search(variant: Variant, folder: Path, *, shortest: bool = False) -> Finding:
    """Let spin make the program that searches, compile it and run it in a folder of its own."""
    shutil.copy2(MODEL, folder)
    _call(["spin", "-a", *variant.options, MODEL.name], folder)
    # Exhaustive: states are compressed without loss, and nothing is hashed away. Breadth first finds the shortest way.
    how = ["-DBFS"] if shortest else ["-DCOLLAPSE"]
    # Where a violation ends the search soon, a quick compilation saves more than a quick program.
    effort = "-O2" if variant.violates is None else "-O0"
    _call(["gcc", effort, "-w", "-DSAFETY", *how, f"-DMEMLIM={MEGABYTES}", "-o", "pan", "pan.c"], folder)
    return read(_call(["./pan", f"-m{DEPTH}", "-w22"], folder))


def story(variant: Variant, folder: Path) -> list[str]:
    """Return the shortest way to a variant's violation, in the words of the model's own printf."""
    search(variant, folder, shortest=True)
    told = _call(["spin", "-t", *variant.options, MODEL.name], folder)
    steps, _, _ = told.partition("spin: ")
    return [line.strip() for line in steps.splitlines()]


def _call(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        message = f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}"
        raise RuntimeError(message)
    return done.stdout


def _search(variant: Variant) -> Finding:
    with tempfile.TemporaryDirectory(prefix="lease-model-") as folder:
        return search(variant, Path(folder))


def main(arguments: Sequence[str]) -> int:
    """Check the variants, print what was found, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.model.run")
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("variants", nargs="*", metavar="VARIANT", help=f"one of: {', '.join(names)}")
    parser.add_argument("--story", action="store_true", help="tell the shortest way to each violation")
    options = parser.parse_args(arguments)
    if unknown := set(options.variants) - set(names):
        parser.error(f"there is no variant {', '.join(sorted(unknown))}")
    variants = [variant for variant in VARIANTS if not options.variants or variant.name in options.variants]
    wrong = []
    with ThreadPoolExecutor(AT_ONCE) as workers:
        print(f"{'variant':40} {'expected':28} {'found':28} {'states':>10} {'seconds':>8}")
        for variant, finding in zip(variants, workers.map(_search, variants), strict=True):
            expected = variant.violates or HOLDS
            figures = f"{finding.states:>10,} {finding.seconds:>8.1f}"
            print(f"{variant.name:40} {expected:28} {finding.found:28} {figures}", flush=True)
            if said := complaint(variant, finding):
                wrong.append(said)
    for variant in variants if options.story else []:
        if variant.violates is not None:
            with tempfile.TemporaryDirectory(prefix="lease-model-") as folder:
                print(f"\n{variant.name}:", *story(variant, Path(folder)), sep="\n  ")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
