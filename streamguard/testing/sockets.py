"""Non-blocking sockets, awaited through anyio: exactly the bytes and exactly the ending that were asked for.

A stream object of a library ends every connection with its own FIN, and a reset that comes after a FIN is
a clean end to most readers. Every function here raises OSError for what the system says.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

if sys.platform == "linux":
    from fcntl import ioctl
    from termios import TIOCOUTQ

__all__ = [
    "accepted", "connected", "finish", "listening", "received", "reset", "reset_on_close", "send_all", "speaks",
]  # fmt: skip

_PIECE: Final = 16 * 1024  # bytes read at once

# anyio below 4.7 has them under the longer names.
_Wait = Callable[[socket.socket], Awaitable[None]]
_readable: Final[_Wait] = getattr(anyio, "wait_readable", None) or anyio.wait_socket_readable
_writable: Final[_Wait] = getattr(anyio, "wait_writable", None) or anyio.wait_socket_writable


async def speaks(sock: socket.socket) -> bool:
    """Wait until there is something to read, or the peer has left without a word (False). Nothing is taken."""
    while True:
        await _readable(sock)
        try:
            return bool(sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            continue


async def listening(host: str) -> socket.socket:
    """A listener on a free port of `host`."""
    family = (await anyio.getaddrinfo(host, 0, type=socket.SOCK_STREAM))[0][0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind((host, 0))
        listener.listen(512)
    except BaseException:
        listener.close()
        raise
    return listener


async def accepted(listener: socket.socket) -> socket.socket:
    while True:
        await _readable(listener)
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            continue  # the peer was gone before it was accepted
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client


async def connected(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    family, _, _, _, address = (await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
    server = socket.socket(family, socket.SOCK_STREAM)
    try:
        server.setblocking(False)
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        problem = server.connect_ex(address)
        if problem in (errno.EINPROGRESS, errno.EWOULDBLOCK):
            await _writable(server)
            problem = server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, "the target of the proxy refused the connection")
    except BaseException:
        server.close()
        raise
    return server


async def received(sock: socket.socket) -> bytes:
    """At most 16 KiB; nothing at the end."""
    while True:
        await _readable(sock)
        try:
            return sock.recv(_PIECE)
        except BlockingIOError:
            continue


async def send_all(sock: socket.socket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except BlockingIOError:
            await _writable(sock)


async def finish(sock: socket.socket) -> bool:
    """FIN, behind all that was sent. True, for an end that leaves the other direction open."""
    sock.shutdown(socket.SHUT_WR)
    return True


async def reset(sock: socket.socket) -> bool:
    """RST at the close that must follow. False, for an end of both directions.

    Waits, a second at most, until the peer's system has every byte: a reset discards what is still here.
    """
    if sys.platform == "linux":
        waiting = bytearray(4)
        with anyio.move_on_after(1.0):
            while True:
                ioctl(sock.fileno(), TIOCOUTQ, waiting, True)
                if not any(waiting):
                    break
                await anyio.sleep(0.001)
    else:  # pragma: no cover  (elsewhere a short wait is all there is)
        await anyio.sleep(0.05)
    reset_on_close(sock)
    return False


def reset_on_close(sock: socket.socket) -> None:
    """Closing sends RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
