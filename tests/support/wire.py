"""As much of PostgreSQL's wire protocol as a proxy needs: where a message ends and which SQL runs.

Nothing here does I/O.
Source: PostgreSQL manual, "Frontend/Backend Protocol", sections Message Flow and Message Formats.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

SSL_REQUEST = 80877103
GSSENC_REQUEST = 80877104
CANCEL_REQUEST = 80877102
_HEADER = 5
_UNTYPED_HEADER = 4


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its type byte (empty for the untyped ones of the start-up) and all of its bytes."""

    kind: bytes
    raw: bytes

    @property
    def body(self) -> bytes:
        """The bytes after type and length."""
        return self.raw[len(self.kind) + 4 :]


class Framer:
    """Cuts a byte stream into messages; the first ones of a client have no type byte."""

    def __init__(self, *, starts_untyped: bool) -> None:
        self._buffer = bytearray()
        self.untyped = starts_untyped

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes and yield every message that is complete now."""
        self._buffer += data
        while (message := self._next()) is not None:
            yield message

    def _next(self) -> Message | None:
        head = _UNTYPED_HEADER if self.untyped else _HEADER
        if len(self._buffer) < head:
            return None
        (length,) = struct.unpack_from("!I", self._buffer, head - 4)
        total = length + head - 4
        if len(self._buffer) < total:
            return None
        raw = bytes(self._buffer[:total])
        del self._buffer[:total]
        return Message(b"" if self.untyped else raw[:1], raw)


def code_of(message: Message) -> int:
    """Return the request code (or protocol version) of an untyped start-up message."""
    (code,) = struct.unpack_from("!I", message.raw, 4)
    return int(code)


@dataclass(slots=True, eq=False)
class Drop:
    """An order to swallow one reply; `happened` is set once the server has given it and the link is cut."""

    matching: str
    left: int
    happened: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Cycle:
    """What the client asked for up to one Sync or simple Query: one ReadyForQuery answers it."""

    drop: Drop | None = None


class ClientStream:
    """Follows the client's messages of one link and knows which SQL each Bind runs.

    asyncpg sends the SQL once, in Parse, and from then on only the statement's name in Bind: so the
    names are kept per link, as the server keeps them.
    """

    def __init__(self) -> None:
        self._cycles: deque[Cycle] = deque()
        self._open: Cycle | None = None
        self._prepared: dict[bytes, str] = {}

    def follow(self, message: Message) -> str | None:
        """Take one typed message; return the SQL that it runs, if it runs any."""
        match message.kind:
            case b"P":
                name, query = message.body.split(b"\0", 2)[:2]
                self._prepared[name] = query.decode()
                self._current()
            case b"B":
                _portal, name = message.body.split(b"\0", 2)[:2]
                return self._run(self._prepared.get(name, ""))
            case b"Q":
                statement = self._run(message.body.rstrip(b"\0").decode())
                self._open = None
                return statement
            case b"C" if message.body[:1] == b"S":
                self._prepared.pop(message.body[1:].rstrip(b"\0"), None)
                self._current()
            case b"S":
                self._current()
                self._open = None
            case _:
                pass
        return None

    def drop(self, order: Drop) -> None:
        """Drop the reply to the cycle of the statement that `follow` returned last."""
        self._cycles[-1].drop = order

    def dropped(self, *, ends: bool) -> Drop | None:
        """Return the order, if there is one, to drop the reply that the server is sending now."""
        if not self._cycles:
            return None
        return self._cycles.popleft().drop if ends else self._cycles[0].drop

    def _run(self, statement: str) -> str:
        self._current()
        return statement

    def _current(self) -> Cycle:
        if self._open is None:
            self._open = Cycle()
            self._cycles.append(self._open)
        return self._open


def ends_round_trip(message: Message) -> bool:
    """Tell whether the client waits for an answer after this message (Sync, Flush or simple Query)."""
    return message.kind in {b"S", b"H", b"Q"}


def is_ready(message: Message) -> bool:
    """Tell whether the server's message ends a cycle (ReadyForQuery)."""
    return message.kind == b"Z"
