"""A forwarder whose open links can die in silence, one by one, while new ones work."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_HOST = "127.0.0.1"
_CHUNK = 65536


class MortalLinks:
    """Forwards to one server; `die` makes every open link a black hole and leaves new ones alone.

    What a NAT or a firewall does that has forgotten a connection: neither an answer nor an error.
    """

    def __init__(self, dsn: str) -> None:
        self._server = urlsplit(dsn)
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._alive: set[asyncio.StreamWriter] = set()
        self._links: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._open, _HOST, 0)
        self._port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    @property
    def dsn(self) -> str:
        """The server's DSN with the forwarder's address in it."""
        account, at, _address = self._server.netloc.rpartition("@")
        return self._server._replace(netloc=f"{account}{at}{_HOST}:{self._port}").geturl()

    def die(self) -> None:
        """Deliver nothing any more on the links that are open now."""
        self._alive.clear()

    def _open(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.create_task(self._carry(reader, writer), name="mortal:link")
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._server.hostname, self._server.port)
        self._alive.add(writer)
        try:
            ways = [self._pipe(reader, server_writer, writer), self._pipe(server_reader, writer, writer)]
            await asyncio.gather(*ways)
        finally:
            for end in (writer, server_writer):
                end.transport.abort()

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, link: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(_CHUNK):
                if link in self._alive:
                    sink.write(data)
        if link in self._alive:
            sink.close()
