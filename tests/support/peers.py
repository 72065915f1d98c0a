"""What lies outside PostgreSQL: a Redis and an HTTP server of one's own, on free ports of the loopback interface."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import tempfile
import time
import unittest
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn

START_LIMIT = 20.0


@contextmanager
def redis_server() -> Iterator[str]:
    """Run Debian's redis-server without files of its own, and yield its URL.

    Raises:
        SkipTest: it is not installed.
    """
    program = shutil.which("redis-server")
    if program is None:
        message = "redis-server is not installed: apt-get install redis-server"
        raise unittest.SkipTest(message)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", folder]
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_LIMIT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


@asynccontextmanager
async def http_server(app: Any) -> AsyncIterator[str]:  # noqa: ANN401 - an ASGI application
    """Serve an application with uvicorn and yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none", lifespan="off"))
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(START_LIMIT):
            while not server.started:
                await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task
