"""Who holds: a fresh name each time, whatever host and process are called."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import time

import pytest

from asyncpg_lease import LeaseTable, LeaseUnavailableError, acquire, lease
from tests.conftest import MakePool
from tests.support.bodies import Bodies
from tests.support.inside import bind, fresh_holder
from tests.support.observe import Observer
from tests.support.processes import Spawn, emit
from tests.support.travel import Travel

RANDOM = re.compile(r"/[0-9a-f]{32}$")


async def contend_as_pid_one(dsn: str, label: str | None, seconds: float, seed: int | None) -> None:
    """Be a container's only process: pid 1 on a host called app, going for one key again and again.

    With a seed it is a copy that has all of Python's own chance in common with the others, as after a fork.
    """
    import asyncpg  # noqa: PLC0415 - in the child

    if seed is not None:
        random.seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        patch.setattr(socket, "gethostname", lambda: "app")
        async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                try:
                    async with lease(pool, "k", ttl=10, label=label) as held:
                        started = time.monotonic()
                        await asyncio.sleep(0.02)
                        emit(holder=held.holder, fence=held.fence, started=started, ended=time.monotonic())
                except LeaseUnavailableError:
                    await asyncio.sleep(0.005)
    emit(holder=None)


@pytest.mark.slow("two processes of their own contend for a key")
@pytest.mark.parametrize(("label", "seconds", "seed"), [(None, 1.5, None), ("worker", 1.0, None), ("worker", 1.5, 1)])
async def test_holders_of_two_processes_with_one_name_exclude_each_other(
    *,
    observe: Observer,
    spawn: Spawn,
    bodies: Bodies,
    label: str | None,
    seconds: float,
    seed: int | None,
) -> None:
    """Two replicas that are pid 1 of `app`, or have one label, never hold at once, and are told apart."""
    await observe.connection.execute(bind("table", "lease"))
    children = [await spawn(contend_as_pid_one, observe.dsn, label, seconds, seed) for _ in range(2)]
    holders: list[set[str]] = []
    fences: list[int] = []
    for number, child in enumerate(children):
        mine: set[str] = set()
        while (event := await child.event(within=20))["holder"] is not None:
            mine.add(str(event["holder"]))
            fences.append(int(str(event["fence"])))
            bodies.add(str(number), float(str(event["started"])), float(str(event["ended"])))
        holders.append(mine)
    assert all(holders), "both had their turn"
    assert bodies.overlapping() == []
    assert len(set(fences)) == len(fences) == sum(map(len, holders))
    assert not holders[0] & holders[1]
    prefix = label or "app:1"
    assert all(holder.startswith(f"{prefix}/") for mine in holders for holder in mine)


@pytest.mark.parametrize("pools", [1, 2])
async def test_holders_of_two_handles_in_one_process_exclude_each_other(
    table: LeaseTable, make_pool: MakePool, observe: Observer, travel: Travel, pools: int
) -> None:
    """Two tasks of one process, on one pool or on two, are two holders: the second waits for the first."""
    target = table if pools == 1 else await make_pool()
    first = await acquire(table, "k", label="same")
    with pytest.raises(LeaseUnavailableError):
        await acquire(target, "k", label="same")
    waiting = asyncio.create_task(acquire(target, "k", label="same", wait=30))
    await travel(4)
    assert not waiting.done()
    await first.release()
    await travel.until(waiting.done, within=10)
    second = await waiting
    assert second.fence == first.fence + 1
    assert second.holder != first.holder
    assert not second.joined
    await second.release()
    assert len(await observe.rows()) == 1


def test_holder_is_fresh_every_time() -> None:
    """No two are the same, and none hangs on a seed that a fork or a test may share."""
    holders = {fresh_holder("same") for _ in range(1000)}
    assert len(holders) == 1000
    assert [holder for holder in holders if not RANDOM.search(holder)] == []


def test_holder_without_a_label_says_host_and_process() -> None:
    """The readable half says where to look."""
    assert RANDOM.sub("", fresh_holder(None)) == f"{socket.gethostname()}:{os.getpid()}"


def test_holder_on_a_host_of_an_impossible_name_fits_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host name that is no UTF-8 does not become a driver's error."""
    monkeypatch.setattr(socket, "gethostname", lambda: "caf\udce9")
    assert fresh_holder(None).encode().startswith(b"caf?:")


async def test_holder_that_is_explicit_is_used_as_it_is(table: LeaseTable) -> None:
    """An explicit holder stands in the row without any addition, and joins its own tenure."""
    first = await acquire(table, "k", holder="me")
    second = await acquire(table, "k", holder="me")
    assert (first.holder, second.holder, second.fence) == ("me", "me", first.fence)
    assert (first.joined, second.joined) == (False, True)
    await second.release()
    info = await table.get("k")
    assert info is not None
    assert info.state == "held"
    await first.release()
