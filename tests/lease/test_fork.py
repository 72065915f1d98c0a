"""A forked child has a copy of the lease, and not the lease."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from contextlib import suppress

import asyncpg
import pytest

from asyncpg_lease import Lease, acquire, lease
from tests.lease.test_misuse import KEY, step
from tests.support.leasing import assert_child_is_fine, until
from tests.support.observe import Observer
from tests.support.processes import Spawn, emit
from tests.support.proxy import Proxy
from tests.support.statements import RELEASE

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs os.fork"),
    pytest.mark.slow("forks a process that holds a lease"),
]


async def hold_and_fork(dsn: str) -> None:
    """Hold a lease, fork inside the body, and report what the copy thinks of it."""
    async with asyncpg.create_pool(dsn, max_size=1, min_size=1) as pool, lease(pool, KEY, ttl=10, heartbeat=4) as held:
        second = await acquire(pool, "second")
        # The connection is back in the pool.
        await until(lambda: pool.get_idle_size() == 1)
        emit(forking=True)
        # In a forked child asyncio knows no running loop any more, up to Python 3.11.
        loop = asyncio.get_running_loop()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            # os._exit, whatever happens: the child has a copy of everything, the event loop included.
            code = 1
            with suppress(BaseException):
                _misuse_copy(held, second)
                code = await _go_on_with(loop)
            os._exit(code)
        await asyncio.to_thread(assert_child_is_fine, pid)
        assert held.is_held
        await held.confirm()
        await second.release()
    emit(done=True)


async def _go_on_with(loop: asyncio.AbstractEventLoop) -> int:
    """Let the copied loop run its timers, and return how many of them failed."""
    problems: list[object] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    turned: asyncio.Future[None] = loop.create_future()
    # The next look at the leases is due in half a second.
    loop.call_later(1, turned.set_result, None)
    await turned
    return len(problems)


def _misuse_copy(held: Lease, second: Lease) -> None:
    assert not held.is_held
    assert not second.is_held
    for call in (held.renew(), held.confirm(), second.__aenter__()):
        with pytest.raises(RuntimeError, match="forked child"):
            step(call)
    with pytest.raises(RuntimeError, match="forked child"):
        held.raise_if_stopping()
    for call in (held.release(), second.release(), held.__aexit__(None, None, None)):
        with suppress(StopIteration):
            call.send(None)
        call.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second.__del__()


@pytest.mark.usefixtures("table")
async def test_lease_in_a_forked_child_is_not_held_and_sends_nothing(
    spawn: Spawn, proxy: Proxy, observe: Observer
) -> None:
    """A fork copies the object, not the tenure: the copy is not held, refuses everything, and sends nothing."""
    child = await spawn(hold_and_fork, proxy.dsn)
    assert "forking" in await child.event()
    proxy.forget()
    assert "done" in await child.event()
    assert await child.wait() == 0
    releases = [statement for statement in proxy.statements if RELEASE in statement.sql]
    assert len(releases) == 2
    assert await observe.is_free(KEY)
