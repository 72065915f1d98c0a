"""A TCP proxy between a pool and its server that can be slow, deaf, cut, or silent.

It runs on the test's own event loop and understands enough of the wire protocol (`wire`) to say which
statement is under way: a fault can hit "the reply of the second renew", and a test can count statements
and round trips without asking the server.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.support.link import Link, Traffic

_HOST = "127.0.0.1"


class Proxy(Traffic):
    """Stands between clients and one server; every attribute and method takes effect at once.

    Latency, faults at a statement, freezing and the counters are those of `Traffic`; links are here.

    Example:
        async with Proxy(server_dsn) as proxy, asyncpg.create_pool(proxy.dsn) as pool:
            proxy.delay_replies = 0.02
            lost = proxy.drop_reply("UPDATE", nth=2)
            ...
            await lost.happened.wait()
    """

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._server = urlsplit(dsn)
        if self._server.hostname is None:
            message = f"the proxy needs a server on TCP, not {dsn!r}"
            raise ValueError(message)
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._links: dict[Link, asyncio.Task[None]] = {}
        self._failures: list[BaseException] = []

    async def __aenter__(self) -> Self:
        await self.accept()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.refuse()
        tasks = list(self._links.values())
        self.reset_links()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._failures and error is None:
            message = "the proxy itself failed"
            # An Exception, whatever it holds: past anything else pytest leaves the other fixtures to the next tests.
            raise RuntimeError(message) from BaseExceptionGroup(message, self._failures)

    @property
    def dsn(self) -> str:
        """The server's DSN with the proxy's address in it."""
        account, at, _address = self._server.netloc.rpartition("@")
        return self._server._replace(netloc=f"{account}{at}{_HOST}:{self._port}").geturl()

    @property
    def open_links(self) -> int:
        """How many links are open now."""
        return len(self._links)

    def refuse(self) -> None:
        """Refuse new links from now on (connection refused); open ones stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def accept(self) -> None:
        """Accept new links (again), on the same port."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._open, _HOST, self._port)
            self._port = self._listener.sockets[0].getsockname()[1]

    def reset_links(self) -> None:
        """Reset (RST) every open link on both sides; new ones are still accepted."""
        for link, task in list(self._links.items()):
            link.cut()
            task.cancel()

    def silence_links(self) -> None:
        """Deliver nothing any more on the links that are open now, and close nothing; new ones work.

        What a NAT or a firewall does that has forgotten a connection: neither an answer nor an error.
        """
        for link in self._links:
            link.silence()

    def _open(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.links += 1
        link = Link(self, self.links, (reader, writer))
        task = asyncio.create_task(
            link.run(self._server.hostname or "", self._server.port or 5432), name=f"proxy:link:{self.links}"
        )
        self._links[link] = task
        task.add_done_callback(lambda _: self._closed(link))

    def _closed(self, link: Link) -> None:
        task = self._links.pop(link)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failures.append(failure)
