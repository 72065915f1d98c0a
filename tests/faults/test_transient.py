"""An error of the database is no evidence of anything: what passes costs no lease, and is logged with its cause."""

from __future__ import annotations

import asyncio
import sys
from typing import NamedTuple

import pytest

from asyncpg_lease import LeaseTable, acquire, lease
from asyncpg_lease.events import Lost, Renewed, RenewFailed
from asyncpg_lease.testing import EmbeddedServer
from tests.conftest import MakePool
from tests.faults import outages
from tests.faults.outages import Outage, Stage
from tests.support.leasing import Recorder, until
from tests.support.observe import Observer
from tests.support.proxy import Proxy
from tests.support.travel import Travel

KEY = "transient"


class Case(NamedTuple):
    """What happens, how often, and what the log says of it; with so many connections at most."""

    outage: Outage
    cause: str
    times: int = 2
    connections: int = 2

    def __str__(self) -> str:
        return f"{self.outage.__name__} {self.cause}"


@pytest.mark.slow("takes half a second or so")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    "case",
    [
        Case(outages.cut, "Refused"),
        Case(outages.frozen, "Timeout", times=1),
        Case(outages.late_replies, "Timeout", times=1),
        Case(outages.locked_row, "another session has the row locked"),
        Case(outages.locked_table, "Timeout", times=1),
        Case(outages.hanging_commit, "Timeout", times=1),
        Case(outages.exhausted_pool, "2 connections are in use", times=1),
        Case(outages.failing("53100"), "DiskFullError"),
        Case(outages.failing("57014"), "QueryCanceledError"),
        Case(outages.failing("XX000"), "InternalServerError"),
        pytest.param(
            Case(outages.stopped_backends, "Timeout", times=1, connections=1),
            marks=pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP"),
        ),
    ],
    ids=str,
)
async def test_lease_outlasts_what_passes_before_its_deadline(
    *,
    make_pool: MakePool,
    proxy: Proxy,
    observe: Observer,
    travel: Travel,
    caplog: pytest.LogCaptureFixture,
    case: Case,
) -> None:
    """Renewals that fail are tried again and logged with the cause; the body runs on, in the same tenure."""
    stage = await Stage.make(make_pool, proxy, observe, connections=case.connections)
    told = Recorder()
    async with lease(stage.pool, KEY, ttl=30, observer=told) as held:
        # The claim's connection has come back: one that hangs on its way there is another fault.
        await until(lambda: stage.pool.get_idle_size() == stage.pool.get_size())
        for _ in range(case.times):
            failed = len(told.of(RenewFailed))
            async with case.outage(stage):
                # Without the rows, which some outages keep everybody from writing.
                await travel.until(lambda failed=failed: len(told.of(RenewFailed)) > failed, within=25, rows=False)
            renewed = len(told.of(Renewed))
            await travel.until(lambda renewed=renewed: len(told.of(Renewed)) > renewed, within=15, rows=False)
        assert held.is_held
        assert await observe.fence(KEY) == held.fence == 1
    assert not told.of(Lost)
    expect_warnings(told, caplog, case)


@pytest.mark.slow("what ends as fast as it begins does so in real time")
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("outage", [outages.reset_again_and_again, outages.ended_again_and_again])
async def test_lease_outlasts_links_that_end_again_and_again(
    make_pool: MakePool, proxy: Proxy, observe: Observer, caplog: pytest.LogCaptureFixture, outage: Outage
) -> None:
    """Renewals on links that end before anything comes of them cost no lease, and are made when links last again."""
    stage = await Stage.make(make_pool, proxy, observe)
    told, case = Recorder(), Case(outage, "", times=3)
    async with lease(stage.pool, KEY, ttl=20, heartbeat=0.3, observer=told) as held:
        for _ in range(case.times):
            failed = len(told.of(RenewFailed))
            async with outage(stage):
                await until(lambda failed=failed: len(told.of(RenewFailed)) > failed, within=10)  # type: ignore[misc]
            renewed = len(told.of(Renewed))
            await until(lambda renewed=renewed: len(told.of(Renewed)) > renewed, within=10)  # type: ignore[misc]
        assert held.is_held
        assert await observe.fence(KEY) == held.fence == 1
    assert not told.of(Lost)
    expect_warnings(told, caplog, case)


def expect_warnings(told: Recorder, caplog: pytest.LogCaptureFixture, case: Case) -> None:
    """See each failed renewal told and logged, with its cause, and nothing worse."""
    errors = [event.error for event in told.of(RenewFailed)]
    assert [error for error in errors if "Error" not in error and "locked" not in error] == []
    warned = [record for record in caplog.records if record.name == "asyncpg_lease" and record.levelname == "WARNING"]
    causes = [record.getMessage() for record in warned if record.getMessage().startswith("lease renewal failed")]
    assert len(causes) >= case.times
    assert any(case.cause in cause for cause in causes)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.slow("a server of its own crashes twice")
async def test_lease_outlasts_a_crash_of_its_server(make_pool: MakePool, own_server: EmbeddedServer) -> None:
    """A server that is back before the deadline finds the same tenure renewed, and released at the end."""
    table = LeaseTable(await make_pool(own_server.dsn))
    await table.create()
    async with lease(table, KEY, ttl=60, heartbeat=0.1) as held:
        for _ in range(2):
            await asyncio.to_thread(own_server.restart_immediately)
            before = held.expires_at
            await until(lambda before=before: held.expires_at > before, within=30)  # type: ignore[misc]
        assert held.is_held
    info = await table.get(KEY)
    assert info is not None
    assert (info.fence, info.state) == (1, "free")


# What the server says above READ COMMITTED, and where transactions wait for each other.
CONFLICTS = ["40001", "40P01"]


async def conflict(observe: Observer, code: str) -> None:
    """Let three writes in a row fail with this SQLSTATE, once; a sequence is not rolled back."""
    await observe.connection.execute(
        "CREATE SEQUENCE IF NOT EXISTS conflicts; SELECT setval('conflicts', 1, false);"
        " CREATE OR REPLACE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN IF nextval('conflicts') <= 3 THEN RAISE EXCEPTION 'made up' USING ERRCODE = '{code}'; END IF;"
        " RETURN NEW; END $$;"
        " CREATE OR REPLACE TRIGGER conflict BEFORE INSERT OR UPDATE ON lease"
        " FOR EACH ROW EXECUTE FUNCTION conflict()"
    )


@pytest.mark.parametrize("code", CONFLICTS)
async def test_conflict_that_the_server_reports_is_tried_again_at_once(
    table: LeaseTable, observe: Observer, code: str
) -> None:
    """A claim of a new or a free key, a renewal and a release each come through, and nobody hears of it."""
    told = Recorder()
    for fence in (1, 2):
        await conflict(observe, code)
        held = await acquire(table, KEY, ttl=30, observer=told)
        assert held.fence == fence
        await conflict(observe, code)
        await held.renew()
        await conflict(observe, code)
        await held.release()
        assert await observe.is_free(KEY)
        assert await observe.connection.fetchval("SELECT last_value FROM conflicts") > 3
    assert not told.of(RenewFailed)
