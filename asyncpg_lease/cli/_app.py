"""The commands of `asyncpg-lease`."""

import sys
import typing
from pathlib import Path
from typing import Annotated

import asyncpg
import typer

from asyncpg_lease.cli._demo import DsnError, run_demo
from asyncpg_lease.cli._file import check_writable, write_whole
from asyncpg_lease.cli._picture import draw_picture
from asyncpg_lease.cli._signals import run_until_signalled
from asyncpg_lease.cli._story import StoryError
from asyncpg_lease.testing import EmbeddedServerError

_GREEN, _RED, _UNUSABLE = 0, 1, 2

app = typer.Typer(
    help="Leases with fencing tokens on PostgreSQL.",
    add_completion=False,
    no_args_is_help=True,
    # A traceback with local variables would show the password of a DSN.
    pretty_exceptions_enable=False,
)


@app.callback()
def _commands() -> None:
    # One command alone would take the place of the program: `asyncpg-lease` in place of `asyncpg-lease demo`.
    pass


@app.command()
def demo(
    *,
    dsn: Annotated[
        str | None,
        typer.Option(metavar="DSN", help="Use this server, in a temporary schema, and leave its restart out."),
    ] = None,
    unfenced: Annotated[
        bool,
        typer.Option("--unfenced", help="Leave the fence check out of the writes: this must end red."),
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Write who held the lease when as a picture, red or green."),
    ] = None,
) -> None:
    """Show a lease under hand-over, kill -9, pause and restart, on a PostgreSQL of its own.

    Live where there is a terminal of 60 columns and 18 lines or more, else as plain lines.

    Takes about 15 seconds, and leaves nothing behind.

    Exit status: 0 where the verdict is green, 1 where it is red, 2 where it cannot run.
    """
    if sys.platform == "win32":
        _give_up("the demo stops and continues processes with signals, which Windows does not have")
    if svg is not None:
        try:
            check_writable(svg)
        except OSError as error:
            _give_up(f"the picture cannot be written: {error}")
    raise typer.Exit(run_until_signalled(_demo_status(dsn, svg, fenced=not unfenced)))


async def _demo_status(dsn: str | None, svg: Path | None, *, fenced: bool) -> int:
    try:
        outcome = await run_demo(dsn, fenced=fenced)
        if svg is not None:
            write_whole(svg, draw_picture(outcome))
            typer.echo(f"The picture is in {svg}")
    except StoryError as error:
        typer.echo(f"RED: {error}")
        return _RED
    except DsnError as error:
        _give_up(str(error))
    except (EmbeddedServerError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        _give_up(f"{type(error).__name__}: {error}")
    return _GREEN if outcome.green else _RED


def _give_up(reason: str) -> typing.NoReturn:
    typer.echo(f"asyncpg-lease demo: {reason}", err=True)
    raise typer.Exit(_UNUSABLE)
