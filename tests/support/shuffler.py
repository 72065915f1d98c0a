"""A pooler of transactions in the worst of moods: each one goes to whichever of its server links chance will have.

It knows as much as it needs: a client has a link from its first message until the server says that it is ready
and in no transaction. Of prepared statements it knows nothing.
"""

from __future__ import annotations

import asyncio
import random
import struct
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast
from urllib.parse import urlsplit

import asyncpg

from tests.support.typing import Connection
from tests.support.wire import GSSENC_REQUEST, SSL_REQUEST, Framer, Message, code_of, ends_round_trip, is_ready

_HOST = "127.0.0.1"
_CHUNK = 65536
_IDLE = b"I"
_PARAMETERS = {"client_encoding": "UTF8", "server_encoding": "UTF8", "integer_datetimes": "on"}


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


@dataclass(eq=False, slots=True)
class _Client:
    """A client's connection, the link that it has now, and how many answers it still waits for there."""

    writer: asyncio.StreamWriter
    link: _ServerLink | None = None
    awaited: int = 0


class _ServerLink(asyncio.Protocol):
    """A connection to the server; asyncpg has logged in on it, and its bytes are ours from then on."""

    def __init__(self, shuffler: Shuffler, number: int, connection: Connection) -> None:
        self.number = number
        self.client: _Client | None = None
        self.version = connection.get_server_version()
        self._shuffler = shuffler
        self._framer = Framer(starts_untyped=False)
        self._owner = connection
        # Private, but the driver knows every way to log in.
        self.transport = cast("asyncio.Transport", connection._transport)  # type: ignore[attr-defined]  # noqa: SLF001
        self.transport.set_protocol(self)

    def close(self) -> None:
        """Close it at once."""
        self._owner.terminate()

    def data_received(self, data: bytes) -> None:
        """Pass answers on, and let the client go with the last one outside a transaction."""
        for message in self._framer.feed(data):
            client = self.client
            if client is None:
                continue
            client.writer.write(message.raw)
            if is_ready(message):
                client.awaited -= 1
                if client.awaited == 0 and message.body == _IDLE:
                    client.link = self.client = None
                    self._shuffler.free(self)


class Shuffler:
    """Stands between clients and some links to one server.

    Attributes:
        transactions: The numbers of the links that transactions went over, in order.

    Example:
        async with Shuffler(dsn, seed=1) as shuffler, asyncpg.create_pool(shuffler.dsn, statement_cache_size=0): ...
    """

    def __init__(self, dsn: str, *, links: int = 2, seed: int = 0) -> None:
        self.transactions: list[int] = []
        self._dsn = dsn
        self._count = links
        self._chance = random.Random(seed)  # noqa: S311 - chance, not a secret
        self._free: list[_ServerLink] = []
        self._links: list[_ServerLink] = []
        self._freed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: set[_Client] = set()
        self._port = 0
        self._stack = AsyncExitStack()

    @property
    def dsn(self) -> str:
        """Where to connect to."""
        return f"postgresql://anyone@{_HOST}:{self._port}{urlsplit(self._dsn).path}"

    async def __aenter__(self) -> Self:
        for number in range(self._count):
            await self._link(number)
        listener = await asyncio.start_server(self._serve, _HOST, 0)
        self._port = listener.sockets[0].getsockname()[1]
        self._stack.callback(listener.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        # Whoever still waits for an answer must learn that none will come.
        for client in self._clients:
            client.writer.transport.abort()
        for link in self._links:
            link.close()

    def free(self, link: _ServerLink) -> None:
        """Take a link back, and wake who waits for one (for links)."""
        self._free.append(link)
        task = asyncio.ensure_future(self._wake())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _link(self, number: int) -> None:
        link = _ServerLink(self, number, await asyncpg.connect(self._dsn))
        self._links.append(link)
        self.free(link)

    async def _wake(self) -> None:
        async with self._freed:
            self._freed.notify_all()

    async def _take(self, client: _Client) -> _ServerLink:
        async with self._freed:
            await self._freed.wait_for(lambda: self._free)
            link = self._free.pop(self._chance.randrange(len(self._free)))
        link.client, client.link = client, link
        self.transactions.append(link.number)
        return link

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = _Client(writer)
        self._clients.add(client)
        framer = Framer(starts_untyped=True)
        with suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                for message in framer.feed(data):
                    if framer.untyped:
                        framer.untyped = not self._greet(client, message)
                    elif message.kind == b"X":
                        # The server's link is not the client's to end.
                        writer.close()
                    else:
                        await self._pass_on(client, message)
        self._clients.discard(client)
        writer.close()
        if client.link is not None:
            # It went in the middle of a transaction: what is left of that must reach nobody else.
            client.link.close()
            await self._link(client.link.number)

    def _greet(self, client: _Client, message: Message) -> bool:
        """Answer a start-up message; tell whether the client is in."""
        if code_of(message) in {SSL_REQUEST, GSSENC_REQUEST}:
            client.writer.write(b"N")
            return False
        version = self._links[0].version
        parameters = {**_PARAMETERS, "server_version": f"{version.major}.{version.minor}"}
        client.writer.write(
            _message(b"R", struct.pack("!I", 0))
            + b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in parameters.items())
            + _message(b"K", struct.pack("!II", 1, 1))
            + _message(b"Z", _IDLE)
        )
        return True

    async def _pass_on(self, client: _Client, message: Message) -> None:
        link = client.link or await self._take(client)
        client.awaited += ends_round_trip(message) and message.kind != b"H"
        link.transport.write(message.raw)
