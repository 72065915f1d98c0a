"""Other copies of the table: a logical subscriber, a data-only copy, a backup older than what was handed out."""

from __future__ import annotations

import asyncio
import io
from urllib.parse import urlsplit

import asyncpg
import pytest

from asyncpg_lease import LeaseTable, Pruned
from asyncpg_lease.testing import EmbeddedServer
from tests.conftest import MakePool
from tests.floor.calls import use
from tests.support.observe import Observer, observing

pytestmark = pytest.mark.slow("copies whole databases")

KEY = "k"


async def copy_out(observe: Observer) -> io.BytesIO:
    """Copy the table's rows out, the reserved one among them, as a data-only dump has them."""
    copied = io.BytesIO()
    await observe.connection.copy_from_table("lease", output=copied)
    copied.seek(0)
    return copied


async def test_subscriber_that_takes_over_goes_on_above_every_fence(
    request: pytest.FixtureRequest, make_pool: MakePool
) -> None:
    """The floor is a row, so logical replication carries it: after the switch pruned keys start above all they had."""
    with EmbeddedServer({"wal_level": "logical"}, programs=request.config.getoption("--programs")) as server:
        standby = urlsplit(server.dsn)._replace(path="/standby").geturl()
        connection = await asyncpg.connect(server.dsn)
        await connection.execute("CREATE DATABASE standby")
        table = LeaseTable(await make_pool(server.dsn))
        other = LeaseTable(await make_pool(standby))
        for one in (table, other):
            await one.create()
        await connection.execute("CREATE PUBLICATION leases FOR TABLE lease")
        await connection.execute("SELECT pg_create_logical_replication_slot('leases', 'pgoutput')")
        async with observing(server.dsn) as publisher, observing(standby) as subscriber:
            # The slot is made by hand: on one server the subscription would wait for its own transaction.
            await subscriber.connection.execute(
                f"CREATE SUBSCRIPTION leases CONNECTION '{server.dsn}' PUBLICATION leases"
                " WITH (create_slot = false, slot_name = 'leases')"
            )
            last = await use(table, KEY, 5)
            assert await table.prune(0) == Pruned(deleted=1, kept=0, floor=last)
            await use(table, "later", 2)
            async with asyncio.timeout(20):
                while await subscriber.rows() != await publisher.rows():
                    await asyncio.sleep(0.05)
            await subscriber.connection.execute("DROP SUBSCRIPTION leases")
            assert (await use(other, KEY), await use(other, "later")) == (last + 1, last + 3)
            assert await other.prune(0) == Pruned(deleted=2, kept=0, floor=last + 3)
        await connection.close()


async def test_data_only_copy_goes_on_above_every_fence(table: LeaseTable, observe: Observer) -> None:
    """A dump of the rows has the floor in it, settled as it was."""
    last = await use(table, KEY, 5)
    await table.prune(0)
    await use(table, "later")
    copied = await copy_out(observe)
    await observe.connection.execute("DROP TABLE lease")
    await table.create()
    await observe.connection.copy_to_table("lease", source=copied)
    assert (await use(table, KEY), await use(table, "later")) == (last + 1, last + 2)
    row = await observe.row("")
    assert row is not None
    assert row["released_at"] is not None


async def test_restored_backup_needs_one_fence_for_all(table: LeaseTable, observe: Observer) -> None:
    """After a backup one key was pruned and made anew: its lost fences are above its old row plus all that was lost.

    So each row plus `by` is not enough, and the greatest of all plus `by` is.
    """
    by = 10
    await use(table, "busy", 100)
    await use(table, KEY, 3)
    copied = await copy_out(observe)
    # What the backup knows nothing of: fewer acquisitions than `by`.
    await table.prune(0)
    lost = await use(table, KEY)
    assert lost == 101 > 3 + by
    await observe.connection.execute("TRUNCATE lease")
    await observe.connection.copy_to_table("lease", source=copied)
    assert await observe.fence(KEY) == 3
    assert await table.advance_fences(by) == 110
    assert await use(table, KEY) == 111 > lost
