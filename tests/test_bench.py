"""The benchmark runs, and writes down what it measured: its figures are nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RATIOS = ["guarded / plain", "guard / plain", "guard / plain, the guard by pg_stat_statements"]


pytestmark = pytest.mark.night("starts a program that starts a server")


def bench(name: str, folder: Path) -> dict[str, Any]:
    """Run one of the programs in its short form, and return what it wrote."""
    command = [sys.executable, f"bench/{name}.py", "--rounds", "1", "--calls", "3", "--json", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=60)
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
    return found


def test_bench_in_its_short_form_writes_every_figure_beside_its_floor(tmp_path: Path) -> None:
    """Each subject has a time and a ratio to the floor of its own run."""
    found = bench("run", tmp_path)
    floors = {
        "1 task": {"acquire + release", "async with lease", "two raw statements", "SELECT 1 twice"},
        "200 tasks": {"acquire + release", "async with lease", "two raw statements", "SELECT 1 twice"},
        "a held key": {"losing acquire", "SELECT 1"},
        "1,000 leases": {"renewed together", "one by one"},
    }
    for name, subjects in floors.items():
        assert found[name].keys() == subjects
        assert all(figure["microseconds"] > 0 and figure["ratio"] > 0 for figure in found[name].values())
    assert found["import asyncpg_lease, after asyncpg"]["milliseconds"] > 0


def test_bench_of_guards_in_its_short_form_writes_every_figure(tmp_path: Path) -> None:
    """What is counted is as promised, one statement and one round trip, and what is timed has a figure."""
    found = bench("guard", tmp_path)
    assert found["a guard adds"] == {"statements": 1, "round trips": 1}
    for name in ("on the server", "on the server, 1 ms more for a flush", "on the server, nothing prepared"):
        logged = found[name]["microseconds by log_duration"]
        assert logged["plain"].keys() == {"BEGIN", "UPDATE", "COMMIT", "whole transaction"}
        assert logged["guarded"].keys() == {"guard", *logged["plain"]}
        assert found[name]["microseconds by pg_stat_statements"].keys() == {"BEGIN", "guard", "UPDATE", "COMMIT"}
        assert all(found[name][share] > 0 for share in RATIOS)
    assert found["on the server, 1 ms more for a flush"]["microseconds by log_duration"]["plain"]["COMMIT"] > 1000
    assert found["for the client"].keys() == {"plain", "plain with SELECT 1", "guarded"}
    assert len(found["take-over"]) == 3
    assert found["renewals"].keys() == {"alone", "beside a plain transaction", "beside a guarded transaction"}
    for figure in (*found["take-over"].values(), *found["renewals"].values()):
        # A waiter may have its answer in the turn of the loop in which the commit has its own.
        assert 0 <= figure["milliseconds"] <= figure["longest"]
