"""The command line: `asyncpg-lease`, or `python -m asyncpg_lease`."""

import signal
import sys

__all__ = ["main"]

_TOOLS = frozenset({"typer", "click", "rich"})


def main() -> None:
    """Run the command line with the arguments of this process.

    Exits with a message where its tools, the extra `demo`, are not installed.
    """
    # Until a command takes care of Ctrl-C there is nothing to tidy up, and nobody wants a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from asyncpg_lease.cli._app import app  # noqa: PLC0415 (an optional tool at the edge)
    except ModuleNotFoundError as error:
        tool = str(error.name).partition(".")[0]
        if tool not in _TOOLS:
            raise
        sys.exit(f"asyncpg-lease: {tool} is missing: pip install 'asyncpg-lease[demo]'")
    app(prog_name="asyncpg-lease")
