"""The suite's other helpers do what they say: observer, children, bodies, leftovers, summary."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

import asyncpg_lease
from tests.conftest import MakePool
from tests.support.bodies import Bodies
from tests.support.leftovers import PREFIX, close_pool, expect_no_tasks
from tests.support.observe import Observer
from tests.support.processes import Spawn, emit, receive
from tests.support.runs import age_of, lower_bounds
from tests.support.statements import CLAIM, RELEASE, RENEW
from tests.support.typing import Pool

TABLE = """
CREATE TABLE lease (key text PRIMARY KEY, holder text, fence bigint, acquired_at timestamptz,
                    expires_at timestamptz, released_at timestamptz);
INSERT INTO lease VALUES ('k', 'me', 7, clock_timestamp(), clock_timestamp() + interval '60 s', NULL)
"""


@pytest.fixture
async def row(observe: Observer) -> Observer:
    """An observer of a table with one held row, made without the library."""
    await observe.connection.execute(TABLE)
    return observe


async def test_observer_sees_and_moves_rows(row: Observer) -> None:
    """A held row becomes free by shifting or expiring it, and another holder's by a hand-over."""
    assert not await row.is_free("k")
    assert await row.is_free("absent")
    await row.shift("k", -59.9)
    await row.until_free("k", within=10)
    assert await row.is_free("k")
    await row.hand_over("k", "other", ttl=5)
    assert await row.fence("k") == 8
    assert not await row.is_free("k")
    await row.expire("k")
    assert await row.is_free("k")
    assert [record["holder"] for record in await row.rows()] == ["other"]


async def test_observer_cost_counts_ids_and_wal(row: Observer) -> None:
    """Reading costs nothing, in the quietest of a few rounds; a write costs an id and WAL."""
    rounds = []
    for _ in range(5):
        async with row.cost() as reading:
            await row.row("k")
        rounds.append((reading.xids, reading.wal))
    assert min(rounds) == (0, 0)
    async with row.cost() as writing:
        await row.expire("k")
    assert writing.xids >= 1
    assert writing.wal > 0


async def test_observer_lock_shows_in_the_version_and_keeps_others_out(row: Observer, pool: Pool) -> None:
    """A row lock of another session changes the row's version and makes a writer wait."""
    before = await row.version("k")
    async with row.locked("k"):
        assert await row.version("k") != before
        with pytest.raises(TimeoutError):
            await pool.execute("UPDATE lease SET fence = 0", timeout=0.1)
    assert await row.fence("k") == 7


async def test_observer_terminates_the_other_backends(row: Observer, pool: Pool) -> None:
    """All sessions of this database but its own end."""
    before = await row.backends()
    assert before == [await pool.fetchval("SELECT pg_backend_pid()")]
    assert await row.terminate_backends() == 1
    # The pool may have connected anew already.
    assert not set(before) & set(await row.backends())


async def answer(name: str) -> None:
    """Be a child that answers one question."""
    emit(hello=name, pid=os.getpid())
    question = await receive()
    emit(answer=question["number"])


@pytest.mark.slow("starts a process")
async def test_child_talks_to_its_parent(spawn: Spawn) -> None:
    """Events go up, objects go down, and the exit code is known; both clocks are the same."""
    child = await spawn(answer, "x")
    hello = await child.event()
    assert (hello["hello"], hello["pid"]) == ("x", child.pid)
    assert isinstance(hello["at"], float)
    assert abs(hello["at"] - time.monotonic()) < 5
    await child.send(number=5)
    assert (await child.event())["answer"] == 5
    assert await child.wait() == 0


@pytest.mark.slow("starts a process")
async def test_child_that_is_killed_ends_its_events(spawn: Spawn) -> None:
    """A killed child is the end of the stream, and its exit code says which signal it was."""
    child = await spawn(answer, "x")
    await child.event()
    child.signal(signal.SIGKILL)
    with pytest.raises(EOFError):
        await child.event()
    assert await child.wait() == -signal.SIGKILL


def test_bodies_that_run_at_once_are_found(bodies: Bodies) -> None:
    """Nested bodies overlap, bodies one after the other do not."""
    with bodies.running("a"):
        pass
    with bodies.running("b"):
        assert bodies.overlapping() == []
        with bodies.running("c"):
            pass
    assert [(one.who, other.who) for one, other in bodies.overlapping()] == [("b", "c")]


async def test_leftover_task_fails_the_test() -> None:
    """A task of the library's that goes on is named; one that is about to end is waited for."""
    short = asyncio.create_task(asyncio.sleep(0.02), name=f"{PREFIX}short")
    await expect_no_tasks()
    assert short.done()
    endless = asyncio.create_task(asyncio.sleep(60), name=f"{PREFIX}endless")
    with pytest.raises(pytest.fail.Exception, match="endless"):
        await expect_no_tasks(within=0.05)
    endless.cancel()


async def test_leftover_connection_fails_the_test(make_pool: MakePool) -> None:
    """A pool with a connection that was never given back cannot be closed, and that is a failure."""
    pool = await make_pool()
    await pool.acquire()
    with pytest.raises(pytest.fail.Exception, match="never given back"):
        await close_pool(pool, within=0.1)


@pytest.mark.parametrize(("part", "file"), [(CLAIM, "claim"), (RENEW, "renew"), (RELEASE, "release")])
def test_statement_is_known_by_its_part_alone(part: str, file: str) -> None:
    """The part of the SQL by which tests know a statement is in that statement and in no other."""
    sql = files(asyncpg_lease).joinpath("sql").iterdir()
    assert [path.name for path in sql if part in path.read_text()] == [f"{file}.sql"]


@pytest.mark.slow("runs pytest in a process")
def test_summary_says_what_ran_and_what_was_skipped(pytester: pytest.Pytester) -> None:
    """The run's last lines, and the file for CI, name the combination and every skipped test."""
    pytester.makepyfile("import pytest\n\ndef test_here(): pytest.skip('not here')\n")
    root = Path(__file__).parents[2]
    pytester.makeini(f"[pytest]\npythonpath = {root}")
    pytester.makeconftest("pytest_plugins = ['tests.support.summary']")
    done = pytester.runpytest_subprocess("--runs=runs.txt")
    done.stdout.fnmatch_lines(["*what ran*", "ran: Python *, loop none, server none, pooler none, packages *"])
    done.stdout.fnmatch_lines([f"versions: anyio {version('anyio')}, asyncpg {version('asyncpg')}"])
    written = (pytester.path / "runs.txt").read_text().splitlines()
    assert not any(line.startswith("versions") for line in written)
    assert written[-1].startswith("skipped: test_summary")
    assert written[-1].endswith("not here")


@pytest.mark.slow("runs pytest in a process")
def test_summary_of_a_run_that_was_cut_off_is_not_written(pytester: pytest.Pytester) -> None:
    """What CI compares is written by a run that came to its end, though some tests failed."""
    root = Path(__file__).parents[2]
    pytester.makeini(f"[pytest]\npythonpath = {root}")
    pytester.makeconftest("pytest_plugins = ['tests.support.summary']")
    pytester.makepyfile("def test_here(: pass")
    assert pytester.runpytest_subprocess("--runs=runs.txt").ret == pytest.ExitCode.INTERRUPTED
    assert not (pytester.path / "runs.txt").exists()
    pytester.makepyfile("def test_here(): assert False")
    assert pytester.runpytest_subprocess("--runs=runs.txt", "--numprocesses", "2").ret == pytest.ExitCode.TESTS_FAILED
    assert (pytester.path / "runs.txt").read_text().startswith("ran: ")


def test_packages_are_lowest_at_every_lower_bound_and_nowhere_else() -> None:
    """A run is one on the lowest versions where each package is at its bound exactly, as a version and not as text."""
    bounds = {"anyio": "4.4", "asyncpg": "0.29"}
    assert age_of({"anyio": "4.4.0", "asyncpg": "0.29.0"}, bounds) == "lowest"
    assert age_of({"anyio": "4.4.0", "asyncpg": "0.29.1"}, bounds) == "current"
    assert age_of({"anyio": "4.16.0", "asyncpg": "0.29.0"}, bounds) == "current"


def test_lower_bounds_are_those_of_what_is_always_needed() -> None:
    """Extras and platforms bring no package into the comparison, and an upper limit is no lower bound."""
    declared = ["anyio>=4.4", "asyncpg<1,>=0.29", "typer>=0.16; extra == 'cli'", "tool; sys_platform == 'win32'"]
    assert lower_bounds(declared) == {"anyio": "4.4", "asyncpg": "0.29"}


@pytest.mark.slow("runs pytest in a process")
def test_loop_of_a_run_is_noted_for_coroutines_alone(pytester: pytest.Pytester) -> None:
    """A test that is no coroutine has no event loop, and adds none to what the run says that it ran on."""
    pytester.makepyfile("def test_here(): pass")
    root = Path(__file__).parents[2]
    pytester.makeini(f"[pytest]\npythonpath = {root}\nasyncio_mode = auto")
    pytester.makeconftest("from tests.conftest import *")
    done = pytester.runpytest_subprocess("--loop=asyncio")
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["ran: Python *, loop none, *"])
    pytester.makepyfile("async def test_there(): pass")
    done = pytester.runpytest_subprocess("--loop=asyncio")
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["ran: Python *, loop asyncio, *"])
