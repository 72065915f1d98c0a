"""Which requests of this process a server has not read yet, as the kernel sees it.

Only Linux tells, and only of IPv4. Of other links nothing is known, and `unheard` leaves them out.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Collection
from contextlib import suppress

if sys.platform != "win32":
    import fcntl
    import termios

# From linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_MESSAGE_SIZE, _UNREAD_AT = 72, 56
_ATTRIBUTE = struct.Struct("=HH")
_WITH_INFO, _INFO = 1 << 1, 2
_ESTABLISHED = 1
# From linux/tcp.h: how many segments with data came in and went out.
_TCP_INFO, _SEGMENTS_AT, _SEGMENTS = 11, 152, struct.Struct("=II")
# And how many bytes: received, sent, and sent again.
_RECEIVED_AT, _RECEIVED = 128, struct.Struct("=Q")
_SENT_AT, _SENT = 200, struct.Struct("=QQ")

Address = tuple[str, int]


def unheard(loop: asyncio.AbstractEventLoop, sessions: Collection[int]) -> set[int]:
    """Return the local ports of this loop's connections whose peer has not read, or not answered, what was sent.

    Args:
        loop: The event loop.
        sessions: The local ports that the server knows as sessions. Another one is about to log in, and answers
            segment by segment.
    """
    if sys.platform != "linux":
        return set()
    links: list[tuple[socket.socket, Address, Address]] = []
    for transport in list(loop._transports.values()):  # type: ignore[attr-defined]  # noqa: SLF001
        found = transport.get_extra_info("socket")
        here, there = transport.get_extra_info("sockname"), transport.get_extra_info("peername")
        if found is not None and found.family == socket.AF_INET and there:
            links.append((found, here, there))
    # Where both ends are in this loop, it reads what it sent itself.
    own = {(here, there): found for found, here, there in links}
    servers = {there for _, here, there in links if here[1] in sessions}
    waiting: set[int] = set()
    for found, here, there in links:
        is_new = there in servers and here[1] not in sessions
        other = own.get((there, here))
        unread, info = _peer(there, here) if other is None else (0, _info(other))
        if unread or (is_new and _is_owed_an_answer(found)) or _is_in_flight(found, info):
            waiting.add(here[1])
    return waiting


def _is_in_flight(found: socket.socket, other: bytes) -> bool:
    """Tell whether what came has not been read, or what either end sent has not come to the other.

    That takes the kernel's time, which a busy machine lets wait for. What was not acknowledged may have come.
    """
    info = _info(found)
    # One that was reset keeps for ever what it could not send.
    if not info or info[0] != _ESTABLISHED:
        return False
    with suppress(OSError, ValueError):
        if any(fcntl.ioctl(found.fileno(), termios.FIONREAD, bytes(4))):
            return True
    return bool(other) and (_sent(info) > _received(other) or _sent(other) > _received(info))


def _info(found: socket.socket) -> bytes:
    """Return the kernel's tcp_info of a socket; an empty one if it is closed."""
    with suppress(OSError):
        return found.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 256)
    return b""


def _sent(info: bytes) -> int:
    sent, again = _SENT.unpack_from(info, _SENT_AT)
    return int(sent - again)


def _received(info: bytes) -> int:
    return int(_RECEIVED.unpack_from(info, _RECEIVED_AT)[0])


def _peer(here: Address, there: Address) -> tuple[int, bytes]:
    """Return how much the owner of the socket `here`, connected to `there`, has not read, and its tcp_info.

    Zero bytes and an empty one if that is not known.
    """
    ends = struct.pack("!HH", here[1], there[1])
    hosts = (socket.inet_aton(host).ljust(16, b"\0") for host in (here[0], there[0]))
    request = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, _WITH_INFO, 1 << _ESTABLISHED)
    body = b"".join([request, ends, *hosts, _NO_COOKIE])
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with suppress(OSError, struct.error), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as diag:
        # The kernel answers at once; and a call that cannot block is not looked at by blockbuster, which costs more.
        diag.setblocking(False)
        diag.send(header + body)
        answer = diag.recv(4096)
        message, attributes = answer[_HEADER.size :][:_MESSAGE_SIZE], answer[_HEADER.size + _MESSAGE_SIZE :]
        if _HEADER.unpack_from(answer)[1] == _SOCK_DIAG_BY_FAMILY and message[1] == _ESTABLISHED:
            return int.from_bytes(message[_UNREAD_AT : _UNREAD_AT + 4], sys.byteorder), _attribute(attributes, _INFO)
    return 0, b""


def _attribute(attributes: bytes, wanted: int) -> bytes:
    """Return the attribute of one kind in a netlink message."""
    while attributes:
        size, kind = _ATTRIBUTE.unpack_from(attributes)
        if kind == wanted:
            return attributes[_ATTRIBUTE.size : size]
        attributes = attributes[(size + 3) // 4 * 4 :]
    return b""


def _is_owed_an_answer(found: socket.socket) -> bool:
    """Tell whether more segments with data went out than came in, and the peer has not closed its end."""
    info = _info(found)
    if not info or info[0] != _ESTABLISHED:
        return False
    came, went = _SEGMENTS.unpack_from(info, _SEGMENTS_AT)
    return bool(went > came)
