"""Run README.md's example with another environment's Python: `python tests/package/readme.py PYTHON`.

That environment has the wheel and nothing else; the server is this one's. Run by `nox -s package`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from asyncpg_lease.testing import EmbeddedServer

README = Path(__file__).parents[2] / "README.md"


def example() -> str:
    """Return the first Python block after "## Use it"."""
    block = re.search(r"^## Use it\n.*?^```python\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert block is not None
    return block[1]


def main(python: str) -> None:
    """Run the example twice: it says what it does, and releases, or the second run would be refused."""
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        where = urlsplit(server.dsn)
        variables = {
            "PGHOST": where.hostname,
            "PGPORT": str(where.port),
            "PGUSER": where.username,
            "PGPASSWORD": where.password,
            "PGDATABASE": where.path.lstrip("/"),
        }
        env = os.environ | {name: value for name, value in variables.items() if value is not None}
        script = Path(folder, "example.py")
        script.write_text(example(), "utf-8")
        for fence in (1, 2):
            command = [python, "-I", "-W", "error", str(script)]
            run = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
            assert run.returncode == 0, run.stderr
            assert not run.stderr, run.stderr
            assert run.stdout == f"writing the report with fence {fence}\n", run.stdout


if __name__ == "__main__":
    main(sys.argv[1])
