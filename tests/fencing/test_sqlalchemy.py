"""Guarding the transactions of SQLAlchemy's sessions and connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import pytest
from sqlalchemy import Connection as SyncConnection
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine.interfaces import IsolationLevel
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from asyncpg_lease import Lease, LeaseError, LeaseLostError, LeaseSnapshotError, acquire, lease, try_acquire
from asyncpg_lease.contrib.sqlalchemy import guard
from tests.support.databases import Server
from tests.support.observe import Observer
from tests.support.typing import Pool

pytestmark = pytest.mark.usefixtures("table")

LEVELS: list[IsolationLevel] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


class Base(DeclarativeBase):
    """The tests' tables."""


class Report(Base):
    """What a job writes."""

    __tablename__ = "report"
    day: Mapped[str] = mapped_column(primary_key=True)
    last_fence: Mapped[int]


class MakeEngine(Protocol):
    """Makes engines that are closed at the end of the test."""

    def __call__(
        self, other: str | None = None, driver: str = "asyncpg", isolation_level: IsolationLevel | None = None
    ) -> AsyncEngine:
        """Make an engine on the test's database, or on another DSN."""


@pytest.fixture
async def make_engine(dsn: str) -> AsyncIterator[MakeEngine]:
    """Make engines, and close them."""
    engines = []

    def make(
        other: str | None = None, driver: str = "asyncpg", isolation_level: IsolationLevel | None = None
    ) -> AsyncEngine:
        url = (other or dsn).replace("postgresql://", f"postgresql+{driver}://")
        engine = create_async_engine(url)
        engines.append(engine)
        return engine if isolation_level is None else engine.execution_options(isolation_level=isolation_level)

    yield make
    for engine in engines:
        await engine.dispose()


@pytest.fixture
async def engine(make_engine: MakeEngine) -> AsyncEngine:
    """An engine on the test's database, where the table `report` is."""
    engine = make_engine()
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    return engine


@pytest.fixture
async def held(pool: Pool) -> AsyncIterator[Lease]:
    """A lease of the key `report`, not entered."""
    held = await acquire(pool, "report")
    yield held
    await held.release()


async def days(engine: AsyncEngine) -> list[str]:
    """Return what has been committed."""
    async with AsyncSession(engine) as session:
        return list(await session.scalars(text("SELECT day FROM report ORDER BY day")))


async def test_session_guarded_and_committed_is_written(engine: AsyncEngine, held: Lease) -> None:
    """A guard in a session lets what the session writes be committed."""
    async with AsyncSession(engine) as session, session.begin():
        await guard(held, session)
        session.add(Report(day="monday", last_fence=held.fence))
    assert await days(engine) == ["monday"]


async def test_session_guarded_without_begin_begins_its_transaction(
    engine: AsyncEngine, held: Lease, pool: Pool, observe: Observer
) -> None:
    """Where no transaction is open the guard begins the session's, and it lasts to the session's commit."""
    async with AsyncSession(engine) as session:
        await guard(held, session)
        assert session.in_transaction()
        await observe.expire("report")
        assert await try_acquire(pool, "report") is None
        session.add(Report(day="monday", last_fence=held.fence))
        await session.commit()
        rival = await try_acquire(pool, "report")
    assert rival is not None
    await rival.release()
    assert await days(engine) == ["monday"]


async def test_session_guarded_and_rolled_back_lets_the_successor_in(
    engine: AsyncEngine, held: Lease, pool: Pool, observe: Observer
) -> None:
    """The guard ends with a rollback, and what was written is gone."""
    async with AsyncSession(engine) as session:
        await guard(held, session)
        session.add(Report(day="monday", last_fence=held.fence))
        await session.flush()
        await session.rollback()
        await observe.expire("report")
        rival = await try_acquire(pool, "report")
    assert rival is not None
    await rival.release()
    assert await days(engine) == []


async def test_scoped_session_is_guarded(engine: AsyncEngine, held: Lease, pool: Pool, observe: Observer) -> None:
    """A scoped session is the session of its scope."""
    session = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    await guard(held, session)
    await observe.expire("report")
    assert await try_acquire(pool, "report") is None
    await session.remove()


@pytest.mark.parametrize("level", LEVELS)
async def test_connection_of_each_isolation_keeps_the_successor_out(
    make_engine: MakeEngine, held: Lease, pool: Pool, observe: Observer, level: IsolationLevel
) -> None:
    """A connection's guard holds under each isolation, beside renewals, until the transaction ends."""
    async with make_engine(isolation_level=level).connect() as connection:
        for _ in range(3):
            await held.renew()
            async with connection.begin():
                await guard(held, connection)
                await held.renew()
        async with connection.begin():
            await guard(held, connection)
            await observe.expire("report")
            assert await try_acquire(pool, "report") is None


@pytest.mark.parametrize("level", LEVELS)
async def test_guard_of_a_released_row_under_each_isolation_is_lost(
    make_engine: MakeEngine, held: Lease, observe: Observer, level: IsolationLevel
) -> None:
    """A tenure that is over when the guard comes first is lost, whatever the isolation."""
    await observe.hand_over("report")
    async with make_engine(isolation_level=level).connect() as connection:
        with pytest.raises(LeaseLostError) as caught:
            await guard(held, connection)
    assert caught.value.reason == "taken_over"


async def test_guard_after_an_older_snapshot_says_so(make_engine: MakeEngine, held: Lease) -> None:
    """Under REPEATABLE READ a guard that follows a statement refuses what was renewed since."""
    async with AsyncSession(make_engine(isolation_level="REPEATABLE READ")) as session:
        await session.execute(text("SELECT 1"))
        await held.renew()
        with pytest.raises(LeaseSnapshotError):
            await guard(held, session)
        await session.rollback()
        await guard(held, session)


async def test_guard_takes_no_snapshot_to_have_sqlalchemy_begin(make_engine: MakeEngine, held: Lease) -> None:
    """A renewal that comes between SQLAlchemy's begin and the check does not make the snapshot an old one."""
    engine = make_engine(isolation_level="REPEATABLE READ")

    def renew_now(connection: SyncConnection, *_: object) -> None:
        inner = connection.connection.dbapi_connection
        assert inner is not None
        inner.run_async(lambda _: held.renew())

    async with engine.connect() as connection:
        event.listen(connection.sync_connection, "after_cursor_execute", renew_now)
        await guard(held, connection)


async def test_guard_of_a_lost_lease_writes_nothing_and_leaves_no_connection(
    engine: AsyncEngine, pool: Pool, observe: Observer
) -> None:
    """The loss comes out of the lease's block, the session's writes are gone, and its connection is idle or closed."""
    with pytest.raises(LeaseLostError):
        async with lease(pool, "report") as held, AsyncSession(engine) as session, session.begin():
            session.add(Report(day="monday", last_fence=held.fence))
            await session.flush()
            await observe.hand_over("report")
            await guard(held, session)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert await days(engine) == []
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    left = await observe.connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    )
    assert left == 0


@pytest.mark.parametrize("kept", [True, False], ids=["before", "inside"])
async def test_guard_and_savepoint_rolled_back_lasts_where_it_came_before(
    engine: AsyncEngine, held: Lease, pool: Pool, observe: Observer, kept: bool
) -> None:
    """A savepoint that is rolled back takes away a guard made inside it, and none made before it."""
    async with AsyncSession(engine) as session, session.begin():
        if kept:
            await guard(held, session)
        nested = await session.begin_nested()
        if not kept:
            await guard(held, session)
        await nested.rollback()
        await observe.expire("report")
        rival = await try_acquire(pool, "report")
        assert (rival is None) is kept
    if rival is not None:
        await rival.release()


@pytest.mark.parametrize("target", [AsyncSession, AsyncConnection])
async def test_guard_in_autocommit_is_refused(
    make_engine: MakeEngine, held: Lease, target: Callable[[AsyncEngine], AsyncSession | AsyncConnection]
) -> None:
    """A guard that would end with its own statement is refused."""
    async with target(make_engine(isolation_level="AUTOCOMMIT")) as opened:
        with pytest.raises(RuntimeError, match="AUTOCOMMIT"):
            await guard(held, opened)


async def test_guard_in_another_database_is_refused(server: Server, make_engine: MakeEngine, held: Lease) -> None:
    """A session on another database than the lease's is refused."""
    async with AsyncSession(make_engine(server.dsn)) as session:
        with pytest.raises(LeaseError, match="leads to database"):
            await guard(held, session)


@pytest.mark.parametrize("target", [AsyncSession, AsyncConnection])
async def test_guard_on_another_driver_is_refused(
    make_engine: MakeEngine, held: Lease, target: Callable[[AsyncEngine], AsyncSession | AsyncConnection]
) -> None:
    """An engine on another driver than asyncpg is refused by name."""
    async with target(make_engine(driver="psycopg")) as opened:
        with pytest.raises(TypeError, match="is on psycopg"):
            await guard(held, opened)


async def test_guard_of_something_else_is_refused(engine: AsyncEngine, dsn: str, held: Lease) -> None:
    """A sync session, an engine, or nothing at all is refused, and said what it is."""
    sync = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))
    said = {}
    with Session(sync) as session:
        for wrong in (session, engine, sync, held, None):
            with pytest.raises(TypeError) as caught:
                await guard(held, wrong)  # type: ignore[arg-type]
            said[type(wrong).__name__] = str(caught.value)
    sync.dispose()
    assert len(said) == 5
    assert [name for name in said if f"not {name}" not in said[name]] == [], said
