"""The benchmark runs, and writes down what it measured: its figures are nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_bench_in_its_short_form_writes_every_figure_beside_its_floor(tmp_path: Path) -> None:
    """Each subject has a time and a ratio to the floor of its own run."""
    results = tmp_path / "bench.json"
    command = [sys.executable, "bench/run.py", "--rounds", "1", "--calls", "3", "--json", str(results)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=60)
    found = json.loads(results.read_text())
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
