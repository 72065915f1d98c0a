"""TLS in front of a server that speaks none: as a load balancer of a cloud does it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

HOST = "127.0.0.1"
SSL_REQUEST_LENGTH = 8


class TlsFront:
    """Takes TLS connections alone, ends the TLS, and hands what is in it to the server.

    The wheel's PostgreSQL is built without TLS, so it cannot be the server's own here; to a pool it is the same.

    Args:
        dsn: where the server is.
        context: the server's side of TLS, with its certificate.
    """

    def __init__(self, dsn: str, context: ssl.SSLContext) -> None:
        self._server = urlsplit(dsn)
        self._context = context
        self._listener: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.opened = 0

    @property
    def dsn(self) -> str:
        """The server's DSN with this address in it."""
        assert self._listener is not None
        port = self._listener.sockets[0].getsockname()[1]
        account = self._server.netloc.rpartition("@")[0]
        return self._server._replace(netloc=f"{account}@{HOST}:{port}").geturl()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, HOST, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task of its own, since asyncio's complains where it is cancelled.
        link = asyncio.create_task(self._carry(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)
        with contextlib.suppress(asyncio.CancelledError):
            await link

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            await reader.readexactly(SSL_REQUEST_LENGTH)
            writer.write(b"S")
            await writer.start_tls(self._context)
            self.opened += 1
            server_reader, server_writer = await asyncio.open_connection(self._server.hostname, self._server.port)
            writers.append(server_writer)
            ways = [
                asyncio.create_task(_copy(reader, server_writer)),
                asyncio.create_task(_copy(server_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            # Whoever is there sees its link end.
            pass
        finally:
            for one in writers:
                one.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
