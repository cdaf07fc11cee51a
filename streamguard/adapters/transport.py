"""What an ASGI application can reach of the server's transport, which ASGI has no word for.

    uvicorn              `receive` is a method of the request's cycle, which knows the transport
    aiohttp              the same: the bridge to it was made so
    hypercorn, HTTP/2    `send` is a method of the stream, which knows its connection: one stream can be reset
    daphne               `send` is a partial of the request, which knows its channel

Two things need it: to drop a reader that takes nothing, and to end an answer that did not complete on those servers
that otherwise leave it open (the last two). Layers in between may wrap `receive` and `send`, so the outermost seal,
which is called by the server, leaves what it found in the scope. Nothing of a server is changed, and what a later
version of it does not have is not used: then, as on hypercorn's HTTP/1.1 and granian, only the operating system can
drop such a reader, by TCP_USER_TIMEOUT on the listening socket. Which of the two holds is said once, as information;
a reader that could not be dropped is a warning, once too.

Over HTTP/2 a transport would be that of other requests too, and is left alone.
"""

from __future__ import annotations

import functools
import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

import anyio
import attrs

try:
    import termios
    from fcntl import ioctl

    _OUTQ = termios.TIOCOUTQ
except ImportError:  # a system that has no such call
    ioctl = None  # type: ignore[assignment]
    _OUTQ = 0

__all__ = [
    "SEES_QUEUES", "Transport", "closing_by", "give_transport", "hung_up", "keep_transport", "of_asyncio", "queued",
    "say_who_drops", "transport_of", "warn_of_kept",
]  # fmt: skip

logger = logging.getLogger("streamguard")

SEES_QUEUES: Final = ioctl is not None
"""Whether this system says what it holds of a connection."""
_HANGUP: Final[int | None] = getattr(select, "POLLRDHUP", None)  # Linux
_KEY: Final = "streamguard.transport"
_PAGE: Final = "in streamguard's documentation: how-to/drop-a-reader-that-does-not-read.md"


@attrs.frozen
class Transport:
    """One connection's transport.

    `unsent`: how many bytes it took and its socket has not taken; None where nobody sees it. `close` ends it behind
    those, `abort` at once, by a reset, together with what the system holds for it. `waits`: whether the server's `send`
    waits while there are many. `held` and `socket` are for who looks at the connection itself: the bytes without what
    the system holds, and what has its number; None where that is not to be had.
    """

    unsent: Callable[[], int | None]
    close: Callable[[], None]
    abort: Callable[[], None]
    waits: bool = True
    held: Callable[[], int] = lambda: 0
    socket: Callable[[], Any] = lambda: None


def keep_transport(scope: Any, receive: Any, send: Any = None) -> None:
    """Called with the server's own: note its transport in the scope, for those who only see wrapped ones."""
    found = _reached(scope, receive, send)
    if found is not None:
        scope[_KEY] = found


def give_transport(scope: Any, transport: Transport) -> None:
    """Note a transport that an adapter has made itself."""
    scope[_KEY] = transport


def closing_by(scope: Any, close: Callable[[Callable[[], None]], None]) -> Any:
    """`scope` for who sends its answer through another: `close` is called with what closes the transport, which is not
    to happen before that other one has sent what it was given."""
    found: Transport | None = scope.get(_KEY)
    return scope if found is None else {**scope, _KEY: attrs.evolve(found, close=lambda: close(found.close))}


def transport_of(scope: Any, receive: Any, send: Any = None) -> Transport | None:
    """The transport of a request, or None where the server shows none."""
    return scope.get(_KEY) or _reached(scope, receive, send)


def _reached(scope: Any, receive: Any, send: Any) -> Transport | None:
    found = _uvicorn(scope, _unwrapped(receive, "receive"))
    if found is None:
        send = _unwrapped(send, "send")
        found = _hypercorn(scope, send) or _daphne(scope, send)
    return found


def _unwrapped(call: Any, name: str) -> Any:
    """What is outside every middleware hands on closures round the server's `receive` and `send`: Starlette's outermost
    layer, the spans of FastAPI and of OpenTelemetry's instrumentation."""
    for _ in range(8):
        code, cells = getattr(call, "__code__", None), getattr(call, "__closure__", None)
        if code is None or cells is None or name not in code.co_freevars:
            break
        call = cells[code.co_freevars.index(name)].cell_contents
    return call


def _hypercorn(scope: Any, send: Any) -> Transport | None:
    """Over HTTP/2, one stream: `send` is a method of its, and `stream.send` one of the connection's protocol, which
    by itself does not reset the stream of an answer that its application did not finish."""
    stream: Any = getattr(send, "__self__", None)
    protocol: Any = getattr(getattr(stream, "send", None), "__self__", None)
    number: Any = getattr(stream, "stream_id", None)
    connection: Any = getattr(protocol, "connection", None)
    buffers: Any = getattr(protocol, "stream_buffers", None)
    if scope.get("http_version") != "2" or buffers is None or not hasattr(connection, "reset_stream"):
        return None

    def unsent() -> int:
        # What a stream holds that is over is never sent.
        return len(buffers[number].buffer) if number in protocol.streams and number in buffers else 0

    async def reset(drained: bool) -> None:
        if drained and number in buffers:
            with anyio.move_on_after(_DRAIN):
                await buffers[number].drain()
        try:
            connection.reset_stream(number, 2)  # INTERNAL_ERROR
        except Exception:  # the stream is over already
            return
        await protocol._flush()

    def spawn(drained: bool) -> None:
        protocol.task_group.spawn(reset, drained)

    return Transport(unsent, functools.partial(spawn, True), functools.partial(spawn, False), waits=False)


_DRAIN: Final = 5.0  # seconds for what a stream still holds, behind which it is reset


def _daphne(scope: Any, send: Any) -> Transport | None:
    """Its `send` is a partial of the request, whose channel ends the connection behind what it took. Its own way
    to end an answer that its application did not finish is to leave it open."""
    request: Any = send.args[0] if isinstance(send, functools.partial) and send.args else None
    transport: Any = getattr(request, "transport", None)
    close: Any = getattr(getattr(request, "channel", None), "loseConnection", None)
    abort: Any = getattr(transport, "abortConnection", None)
    if not all(map(callable, (close, abort))) or scope.get("http_version") not in ("1.0", "1.1"):
        return None

    def unsent() -> int:
        if not transport.connected:  # what it holds then is never sent
            return 0
        return int(len(transport.dataBuffer) - transport.offset + transport._tempDataLen)

    handle: Any = getattr(transport, "getHandle", lambda: None)
    return Transport(unsent, close, abort, waits=False, held=unsent, socket=handle)


def _uvicorn(scope: Any, receive: Any) -> Transport | None:
    if scope.get("http_version") not in ("1.0", "1.1"):
        return None
    return of_asyncio(getattr(getattr(receive, "__self__", None), "transport", None))


def of_asyncio(transport: Any) -> Transport | None:
    """What can be done with a transport of asyncio's, or of uvloop's; None for what is none."""
    names = ("get_write_buffer_size", "close", "abort", "get_extra_info")
    methods: list[Any] = [getattr(transport, name, None) for name in names]
    unsent, close, abort, extra = methods
    if not all(map(callable, methods)):
        return None

    def reset() -> None:
        _no_linger(extra("socket"))
        abort()

    def left() -> int:
        size = unsent()
        return size + queued(extra("socket")) if size else 0

    return Transport(left, close, reset, held=unsent, socket=lambda: extra("socket"))


def queued(connection: Any) -> int:
    """What the system holds of a connection, in bytes; 0 where it does not say.

    It lets a transport write again only when a third of some megabytes is free: without this a reader that takes
    forty kilobytes a second would seem to take nothing for half a minute.
    """
    if ioctl is None or connection is None:
        return 0
    try:
        found: int = struct.unpack("i", ioctl(connection.fileno(), _OUTQ, bytes(4)))[0]
    except OSError:
        return 0
    return found


def hung_up(connection: Any) -> bool:
    """Whether the other side has closed, or half closed, though not all that it sent was read: then the close is behind
    what waits, and whoever does not read on is not told. False where the system does not say."""
    if _HANGUP is None or connection is None or connection.fileno() < 0:
        return False
    looked = select.poll()
    looked.register(connection.fileno(), _HANGUP)
    return bool(looked.poll(0))


def _no_linger(connection: Any) -> None:
    """Let the close be a reset. Without it the system would go on to hold what the reader does not take, some
    megabytes a connection, long after the process has forgotten it."""
    if connection is None or connection.fileno() < 0:
        return
    with socket.socket(fileno=os.dup(connection.fileno())) as same:  # uvloop's own object has no `setsockopt`
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@functools.cache
def say_who_drops(reached: bool) -> None:
    """Once a process and kind of server: what happens to a reader that does not read. No warning, since nothing has
    happened yet, and whether the system was told to drop such readers cannot be seen from here."""
    if reached:
        logger.info("readers that take nothing for too long will be dropped: this kind of server allows it (%s)", _PAGE)
    else:
        logger.info(
            "readers that take nothing will be dropped by the system, if TCP_USER_TIMEOUT is set: this kind of server "
            "does not let an application do it (%s)",
            _PAGE,
        )


@functools.cache
def warn_of_kept() -> None:
    """Once a process: there was such a reader, and its connection could not be ended."""
    logger.warning(
        "a reader took nothing for too long and its stream ended, but this server does not let an application drop "
        "the connection: it stays until the system gives it up, which TCP_USER_TIMEOUT on the listening socket "
        "makes it do, if that is not set already (%s)",
        _PAGE,
    )
