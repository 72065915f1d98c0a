"""One link through the proxy: the client's connection, the server's, and what is done to the bytes between."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass

from tests.support.wire import (
    CANCEL_REQUEST,
    GSSENC_REQUEST,
    SSL_REQUEST,
    ClientStream,
    Drop,
    Framer,
    Message,
    code_of,
    ends_round_trip,
    is_ready,
)

_CHUNK = 65536


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that a client ran: its SQL, the link it went over, the loop's time when it passed."""

    sql: str
    link: int
    at: float

    def __repr__(self) -> str:
        """Show the beginning alone: a failing test prints many of these."""
        return f"<{' '.join(self.sql.split())[:60]!r} on link {self.link} at {self.at:.3f}>"


class Traffic:
    """What has gone through all links of a proxy, and what is to be done to what comes next.

    Attributes:
        delay_replies: Latency in seconds from server to client, for bytes that arrive from now on.
            It is latency and not throughput: what arrives together is delivered together.
        delay_requests: The same from client to server.
        statements: Every statement that clients ran, in order; a pool's reset query is one too.
        round_trips: How often a client stopped to wait for the server (after its log-in).
        links: How many links were opened so far.
        bytes_from_client: Bytes received from clients.
        bytes_from_server: Bytes received from the server.
    """

    def __init__(self) -> None:
        self.delay_replies = 0.0
        self.delay_requests = 0.0
        self.statements: list[Statement] = []
        self.round_trips = 0
        self.links = 0
        self.bytes_from_client = 0
        self.bytes_from_server = 0
        self._drops: list[Drop] = []
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._progress = asyncio.Condition()

    def freeze(self) -> None:
        """Deliver nothing in either direction, close nothing, and leave new links without an answer."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Deliver what was kept back by `freeze`, and all that follows."""
        self._flowing.set()

    def drop_reply(self, matching: str = "", *, nth: int = 1) -> Drop:
        """Let the server carry a statement out, then cut the link instead of delivering the reply.

        Args:
            matching: Part of the statement's SQL (case counts); empty matches every statement.
            nth: Which of the matching statements from now on, 1 for the next one.
        """
        drop = Drop(matching, nth)
        self._drops.append(drop)
        return drop

    def count(self, matching: str = "") -> int:
        """Return how many statements that contain `matching` were run."""
        return sum(matching in statement.sql for statement in self.statements)

    def forget(self) -> None:
        """Empty the record of statements and set the counters of bytes and round trips to zero."""
        self.statements.clear()
        self.round_trips = self.bytes_from_client = self.bytes_from_server = 0

    async def wait_for(self, matching: str = "", *, count: int = 1, within: float = 10) -> None:
        """Wait until `count` statements that contain `matching` have passed on their way to the server.

        Raises:
            TimeoutError: If they have not after `within` seconds.
        """
        async with asyncio.timeout(within), self._progress:
            await self._progress.wait_for(lambda: self.count(matching) >= count)

    async def flowing(self) -> None:
        """Wait while nothing is delivered (for links)."""
        await self._flowing.wait()

    async def note(self, statement: Statement) -> Drop | None:
        """Record a statement and return the order to drop its reply, if there is one (for links)."""
        self.statements.append(statement)
        async with self._progress:
            self._progress.notify_all()
        hit = None
        for drop in [drop for drop in self._drops if drop.matching in statement.sql]:
            drop.left -= 1
            if drop.left == 0:
                self._drops.remove(drop)
                hit = drop
        return hit


class _Way:
    """One direction of a link: bytes go in as they arrive and come out after the latency.

    Attributes:
        silent: Whether nothing comes out any more, not even the end of the stream.
    """

    def __init__(self, traffic: Traffic, writer: asyncio.StreamWriter) -> None:
        self.silent = False
        self._traffic = traffic
        self._writer = writer
        self._queue: asyncio.Queue[tuple[float, bytes | Drop | None]] = asyncio.Queue()

    def send(self, item: bytes | Drop | None, delay: float) -> None:
        """Deliver bytes, the end of the stream (None) or a cut of the link after `delay` seconds."""
        self._queue.put_nowait((asyncio.get_running_loop().time() + delay, item))

    async def deliver(self) -> Drop | None:
        """Deliver until the stream ends (None) or a cut is due (its order)."""
        loop = asyncio.get_running_loop()
        while True:
            due, item = await self._queue.get()
            await asyncio.sleep(due - loop.time())
            await self._traffic.flowing()
            if self.silent:
                continue
            if item is None:
                self._writer.close()
                return None
            if isinstance(item, Drop):
                return item
            self._writer.write(item)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()


class Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(
        self, traffic: Traffic, number: int, client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        self._traffic = traffic
        self._number = number
        self._reader, writer = client
        self._writers = [writer]
        self._followed = ClientStream()
        self._replies = _Way(traffic, writer)
        self._ways = [self._replies]

    async def run(self, host: str, port: int) -> None:
        """Connect to the server and carry bytes both ways until one side ends."""
        try:
            server_reader, server_writer = await asyncio.open_connection(host, port)
            self._writers.append(server_writer)
            requests = _Way(self._traffic, server_writer)
            self._ways.append(requests)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_requests(requests))
                tasks.create_task(self._read_replies(server_reader))
                tasks.create_task(requests.deliver())
                tasks.create_task(self._deliver_replies())
        except OSError:
            self.cut()
        finally:
            for writer in self._writers:
                writer.close()

    def silence(self) -> None:
        """Deliver nothing any more, in either direction, and close nothing."""
        for way in self._ways:
            way.silent = True

    def cut(self) -> None:
        """Send RST to both sides; the readers then see the end of both streams."""
        for writer in self._writers:
            link = writer.get_extra_info("socket")
            # Of a transport that is closed asyncio shows a closed socket, uvloop none or one without a file.
            if link is not None and link.fileno() >= 0:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def _deliver_replies(self) -> None:
        drop = await self._replies.deliver()
        if drop is not None:
            self.cut()
            drop.happened.set()

    async def _read_requests(self, way: _Way) -> None:
        framer = Framer(starts_untyped=True)
        while data := await _read(self._reader):
            self._traffic.bytes_from_client += len(data)
            forward = bytearray()
            for message in framer.feed(data):
                if framer.untyped:
                    forward += self._start_up(framer, message)
                    continue
                await self._follow(message)
                forward += message.raw
            way.send(bytes(forward), self._traffic.delay_requests)
        way.send(None, self._traffic.delay_requests)

    def _start_up(self, framer: Framer, message: Message) -> bytes:
        code = code_of(message)
        if code in {SSL_REQUEST, GSSENC_REQUEST}:
            # Answered here: behind TLS the proxy could not see the statements.
            self._replies.send(b"N", self._traffic.delay_requests + self._traffic.delay_replies)
            return b""
        framer.untyped = code == CANCEL_REQUEST
        return message.raw

    async def _follow(self, message: Message) -> None:
        self._traffic.round_trips += ends_round_trip(message)
        sql = self._followed.follow(message)
        if sql is not None:
            now = asyncio.get_running_loop().time()
            drop = await self._traffic.note(Statement(sql, self._number, now))
            if drop is not None:
                self._followed.drop(drop)

    async def _read_replies(self, reader: asyncio.StreamReader) -> None:
        framer = Framer(starts_untyped=False)
        logged_in = False
        while data := await _read(reader):
            self._traffic.bytes_from_server += len(data)
            forward = bytearray()
            for message in framer.feed(data):
                ready = is_ready(message)
                drop = self._followed.dropped(ends=ready) if logged_in else None
                logged_in = logged_in or ready
                if drop is None:
                    forward += message.raw
                elif ready:
                    self._replies.send(drop, self._traffic.delay_replies)
            self._replies.send(bytes(forward), self._traffic.delay_replies)
        self._replies.send(None, self._traffic.delay_replies)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Read what is there; a reset counts as the end of the stream."""
    try:
        return await reader.read(_CHUNK)
    except ConnectionError:
        return b""
