"""What an ASGI application can reach of the server's transport, which ASGI has no word for.

uvicorn's `receive` is a method of the request's cycle, which knows the transport. Layers in between may wrap it, so
the outermost seal, which is called by the server, leaves what it found in the scope. Other servers (hypercorn,
granian, daphne) show nothing; there only the operating system can end a connection whose reader takes nothing, by
TCP_USER_TIMEOUT on the listening socket. Which of the two holds is said once.

Over HTTP/2 a transport would be that of other requests too, and is left alone.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import struct
from collections.abc import Callable
from typing import Any, Final

import attrs

__all__ = ["Transport", "keep_transport", "say_who_drops", "transport_of"]

logger = logging.getLogger("streamguard")

_KEY: Final = "streamguard.transport"


@attrs.frozen
class Transport:
    """One connection's transport.

    `unsent`: how many bytes it took and its socket has not taken. `close` ends it behind those, `abort` at once, by
    a reset, together with what the system holds for it.
    """

    unsent: Callable[[], int]
    close: Callable[[], None]
    abort: Callable[[], None]


def keep_transport(scope: Any, receive: Any) -> None:
    """Called with the server's own `receive`: note its transport in the scope, for those who only see a wrapped one."""
    found = _reached(scope, receive)
    if found is not None:
        scope[_KEY] = found


def transport_of(scope: Any, receive: Any) -> Transport | None:
    """The transport of a request, or None where the server shows none."""
    return scope.get(_KEY) or _reached(scope, receive)


def _reached(scope: Any, receive: Any) -> Transport | None:
    transport = getattr(getattr(receive, "__self__", None), "transport", None)
    names = ("get_write_buffer_size", "close", "abort", "get_extra_info")
    unsent, close, abort, extra = [getattr(transport, name, None) for name in names]
    if not (callable(unsent) and callable(close) and callable(abort) and callable(extra)):
        return None
    if scope.get("http_version") not in ("1.0", "1.1"):
        return None

    def reset() -> None:
        _no_linger(extra("socket"))
        abort()

    return Transport(unsent, close, reset)


def _no_linger(connection: Any) -> None:
    """Let the close be a reset. Without it the system would go on to hold what the reader does not take, some
    megabytes a connection, long after the process has forgotten it."""
    if connection is None or connection.fileno() < 0:
        return
    with socket.socket(fileno=os.dup(connection.fileno())) as same:  # uvloop's own object has no `setsockopt`
        same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@functools.cache
def say_who_drops(reached: bool, limit: float) -> None:
    """Once a process and kind of server: what happens to a reader that does not read."""
    if reached:
        logger.info("a reader that takes nothing for %g s is dropped: this server's transport can be reached", limit)
        return
    logger.warning(
        "this server does not let an application drop a reader that takes nothing: its stream ends after %g s, its "
        "connection stays until the system gives it up. Set TCP_USER_TIMEOUT on the listening socket",
        limit,
    )
