"""A forked child has a copy of a lease, which is none; on a pool of its own it is a process like any other."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from asyncpg_lease import Lease, LeaseTable, LeaseUnavailableError, acquire, lease
from tests.support.leasing import until
from tests.support.observe import Observer
from tests.support.processes import Spawn, emit, receive
from tests.support.proxy import Proxy
from tests.support.statements import RELEASE, RENEW
from tests.support.typing import Pool

pytestmark = [
    pytest.mark.slow("processes are forked"),
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork"),
    pytest.mark.usefixtures("table"),
]
KEY = "forked"
OTHER = "not entered"


class Copies:
    """What the child has copies of."""

    def __init__(self, pool: Pool, held: Lease, other: Lease) -> None:
        self.pool = pool
        self.held = held
        self.other: Lease | None = other


# What the child does ----------------------------------------------------------------------------------


async def use_copies(copies: Copies, dsn: str) -> None:
    """Try everything with the copies, on an event loop of its own."""
    connection = await asyncpg.connect(dsn)
    for held in filter(None, (copies.held, copies.other)):
        assert not held.is_held
        for call in (held.__aenter__, held.renew, held.confirm, lambda held=held: held.guard(connection)):
            with pytest.raises(RuntimeError, match="forked child"):
                await call()
        with pytest.raises(RuntimeError, match="forked child"):
            async with held.transaction(connection):
                pass
        await held.release()
    await connection.close()


async def use_pool(copies: Copies, dsn: str) -> None:  # noqa: ARG001 - as the others
    """Claim on the copy of the pool."""
    for key in (KEY, "new"):
        with pytest.raises(RuntimeError, match="another event loop"):
            await acquire(copies.pool, key)


async def use_own_pool(copies: Copies, dsn: str) -> None:
    """Claim the same key and another one on a pool of its own."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        with pytest.raises(LeaseUnavailableError) as caught:
            await acquire(pool, KEY)
        assert (caught.value.holder, caught.value.fence) == (copies.held.holder, copies.held.fence)
        async with lease(pool, "the child's", ttl=30, heartbeat=0.2) as held:
            before = held.expires_at
            await until(lambda: held.expires_at > before, within=20)
            assert held.is_held
            assert held.holder != copies.held.holder
            await held.confirm()


async def drop_copies(copies: Copies, dsn: str) -> None:  # noqa: ARG001 - as the others
    """Have the copies collected."""
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = said.append  # type: ignore[method-assign, assignment]
    logging.getLogger("asyncpg_lease").addHandler(handler)
    copies.other = None
    gc.collect()
    assert said == []


async def wait_for_the_key(copies: Copies, dsn: str) -> None:
    """Wait until the parent has released the key, and have it then."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool:
        emit(waiting=True)
        async with lease(LeaseTable(pool, poll=0.02), KEY, wait=20) as held:
            assert held.fence == copies.held.fence + 1


Work = Callable[[Copies, str], Coroutine[Any, Any, None]]
WORK: dict[str, Work] = {
    work.__name__: work for work in (use_copies, use_pool, use_own_pool, drop_copies, wait_for_the_key)
}


def run_in_child(name: str, copies: Copies, dsn: str) -> None:
    """Do it; what fails ends the process with an exit code of 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        asyncio.run(WORK[name](copies, dsn))


# Its parent -------------------------------------------------------------------------------------------


async def hold_and_fork(proxied: str, dsn: str, renewing: bool) -> None:
    """Hold a lease and have another one, fork a child for each kind of work, and see that both are as they were."""
    async with asyncpg.create_pool(proxied, min_size=2, max_size=2) as pool, asyncio.TaskGroup() as group:
        async with lease(pool, KEY, ttl=60) as held:
            copies = Copies(pool, held, await acquire(pool, OTHER, ttl=60))
            # So that the next one is a single statement, on the connection that was used last.
            await held.renew()
            await until(lambda: pool.get_idle_size() == 2)
            emit(held=True)
            await receive()
            if renewing:
                group.create_task(held.renew())
                await receive()
            fork = multiprocessing.get_context("fork")
            children = {name: fork.Process(target=run_in_child, args=(name, copies, dsn)) for name in WORK}
            with warnings.catch_warnings():
                # Newer Pythons warn of forks beside threads.
                warnings.simplefilter("ignore")
                for child in children.values():
                    child.start()
            emit(forked=True)
            for name, child in children.items():
                if name != wait_for_the_key.__name__:
                    await asyncio.to_thread(child.join)
            assert held.is_held
            await held.confirm()
            assert copies.other is not None
            await copies.other.confirm()
            await copies.other.release()
            await receive()
        await asyncio.to_thread(children[wait_for_the_key.__name__].join)
    emit(exit_codes={name: child.exitcode for name, child in children.items()})


@pytest.mark.parametrize("renewing", [False, True])
async def test_forked_child_leaves_its_parents_lease_alone(
    spawn: Spawn, proxy: Proxy, observe: Observer, renewing: bool
) -> None:
    """Whatever it does, and were a renewal under way: its copies refuse, and send nothing; its own leases work."""
    parent = await spawn(hold_and_fork, proxy.dsn, observe.dsn, renewing)
    assert "held" in await parent.event()
    if renewing:
        proxy.freeze()
        renewals = proxy.count(RENEW)
        await parent.send()
        await proxy.wait_for(RENEW, count=renewals + 1)
    await parent.send()
    # The parent's, and that of the child which waits for the key.
    events = {**await parent.event(), **await parent.event()}
    assert {"forked", "waiting"} <= events.keys()
    proxy.thaw()
    await parent.send()
    assert (await parent.event())["exit_codes"] == dict.fromkeys(WORK, 0)
    assert await parent.wait() == 0
    # Through the proxy goes what the parent sends, and what its children would with the copies.
    assert proxy.count(RELEASE) == 2
    assert await observe.is_free(KEY)
    assert await observe.is_free(OTHER)
