"""A lease in a web application's lifespan is released when the server is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.lease.lifespan_app import KEY
from tests.support.observe import Observer
from tests.support.proxy import Proxy

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs unix sockets and signals"),
    pytest.mark.slow("runs an application under uvicorn, and stops it by a signal"),
]


@asynccontextmanager
async def serving(way: str, dsn: str, socket: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the application under uvicorn until its lifespan has begun."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "tests.lease.lifespan_app:app", "--uds", str(socket)),
        *("--log-level", "warning", "--timeout-graceful-shutdown", "1"),
        cwd=ROOT,
        env={**os.environ, "LIFESPAN": way, "LIFESPAN_DSN": dsn},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await line_of(process) == "held"
        async with asyncio.timeout(30):
            while not await is_listening(socket):
                await asyncio.sleep(0.01)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def is_listening(socket: Path) -> bool:
    """Tell whether somebody takes connections at a socket."""
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def line_of(process: asyncio.subprocess.Process) -> str:
    """Return the next line that the application says."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        return (await process.stdout.readline()).decode().strip()


async def stop(process: asyncio.subprocess.Process, number: signal.Signals) -> int:
    """Stop the server by a signal and return its exit code."""
    process.send_signal(number)
    assert await line_of(process) == "ended"
    async with asyncio.timeout(30):
        return await process.wait()


async def expect_release(observe: Observer) -> None:
    """See that the row was released, and has not run out."""
    row = await observe.row(KEY)
    assert row is not None
    assert row["released_at"] is not None
    assert await observe.is_free(KEY)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_lifespan_ended_by_a_signal_has_released_its_lease(
    dsn: str, observe: Observer, tmp_path: Path, number: signal.Signals
) -> None:
    """SIGTERM and SIGINT end the server as they do without a lease, and the row is free when it has ended."""
    async with serving("none", dsn, tmp_path / "none") as process:
        usual = await stop(process, number)
    for way in ("yield", "task"):
        async with serving(way, dsn, tmp_path / way) as process:
            assert not await observe.is_free(KEY)
            assert await stop(process, number) == usual
        await expect_release(observe)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("way", "number"), [("yield", signal.SIGTERM), ("task", signal.SIGTERM), ("yield", signal.SIGINT)]
)
async def test_lifespan_ended_beside_an_open_response_has_released_its_lease(
    dsn: str, observe: Observer, tmp_path: Path, way: str, number: signal.Signals
) -> None:
    """A client that is still being answered delays the end of the server, and not the release after it."""
    async with serving(way, dsn, tmp_path / "socket") as process:
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        writer.write(b"GET /stream HTTP/1.1\r\nHost: here\r\n\r\n")
        assert await reader.readuntil(b".")
        await stop(process, number)
        writer.close()
    await expect_release(observe)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(("way", "number"), [("yield", signal.SIGTERM), ("task", signal.SIGINT)])
async def test_lifespan_ended_beside_a_slow_database_has_released_its_lease(
    proxy: Proxy, observe: Observer, tmp_path: Path, way: str, number: signal.Signals
) -> None:
    """The end of the server waits for a release that takes its time."""
    async with serving(way, proxy.dsn, tmp_path / "socket") as process:
        proxy.delay_replies = 0.4
        await stop(process, number)
    await expect_release(observe)
