"""A WSGI request as the rest of the library knows requests, and what can be reached of the server that has it.

    gunicorn, werkzeug     the connection's socket is in the environ: it shows that the reader left, and the system can
                           be told to drop a reader that takes nothing
    waitress               a function that says whether a write has failed; it shows no more
    others                 nothing: a reader that left is met by a write that fails
"""

from __future__ import annotations

import functools
import io
import logging
import socket
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from streamguard.core.exchange import RequestFacts
from streamguard.runtime.blocking import BodyAborted

__all__ = [
    "Environ",
    "aborted_by",
    "cut_off",
    "facts_of",
    "gone_by",
    "keep_body",
    "limit_writes",
    "scope_of",
    "warn_of_lone",
]

logger = logging.getLogger("streamguard")

Environ = MutableMapping[str, Any]

_SOCKETS: Final = ("gunicorn.socket", "werkzeug.socket")
_PEEK: Final = getattr(socket, "MSG_PEEK", 0) | getattr(socket, "MSG_DONTWAIT", 0)
_USER_TIMEOUT: Final = getattr(socket, "TCP_USER_TIMEOUT", None)


def facts_of(environ: Environ) -> RequestFacts:
    """The facts of a WSGI request."""
    headers = {
        name[5:].replace("_", "-").lower(): str(value) for name, value in environ.items() if name.startswith("HTTP_")
    }
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = str(environ[name])
    version = str(environ.get("SERVER_PROTOCOL", "HTTP/1.1")).rpartition("/")[2]
    path = _decoded(environ.get("SCRIPT_NAME", "")) + _decoded(environ.get("PATH_INFO", ""))
    return RequestFacts(environ["REQUEST_METHOD"], headers, environ.get("QUERY_STRING", ""), version, path)


def scope_of(environ: Environ, facts: RequestFacts) -> dict[str, Any]:
    """The request as an ASGI scope, for what is written for those. The environ itself is in it."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": facts.http_version,
        "method": facts.method,
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "path": facts.path,
        "root_path": _decoded(environ.get("SCRIPT_NAME", "")),
        "query_string": facts.query.encode("latin-1"),
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in facts.headers.items()],
        "environ": environ,
    }


def _decoded(path: str) -> str:
    """A part of a path: PEP 3333 has its bytes, as Latin-1."""
    return path.encode("latin-1").decode("utf-8", "replace")


def keep_body(environ: Environ) -> bytes:
    """The request's body, which can still be read afterwards, on another thread too.

    A body that is not read to its end turns a cut connection into a reset, which can tear the terminal off.
    """
    body: Any = environ.get("wsgi.input")
    if body is None:
        return b""
    if not isinstance(body, io.BytesIO):
        length = environ.get("CONTENT_LENGTH") or "0"
        if environ.get("wsgi.input_terminated"):
            data = body.read()
        else:  # to read on would wait for what never comes
            data = body.read(int(length)) if str(length).isdigit() else b""
        body = environ["wsgi.input"] = io.BytesIO(data)
    return body.getvalue()  # type: ignore[no-any-return]


def gone_by(environ: Environ) -> Callable[[], bool] | None:
    """What answers whether the reader has left; None where that cannot be seen."""
    if (known := environ.get("waitress.client_disconnected")) is not None:
        return lambda: bool(known())
    connection = _socket(environ)
    if connection is None or not _PEEK:
        return None

    def gone() -> bool:
        try:
            return not connection.recv(1, _PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except (OSError, ValueError):  # a reset, or closed by the server; TLS knows no such look
            return not hasattr(connection, "cipher")

    return gone


def limit_writes(environ: Environ, seconds: float | None) -> None:
    """Have the system drop the connection of a reader that takes nothing for so long: the thread that writes to it
    cannot be called back."""
    connection = _socket(environ)
    if seconds is None or connection is None or _USER_TIMEOUT is None:
        return
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, max(1, min(int(seconds * 1000), 2**31 - 1)))
    except (OSError, ValueError):
        pass  # a socket of the file system's has no such limit


def _socket(environ: Environ) -> Any:
    if environ.get("SERVER_PROTOCOL") == "HTTP/2":
        return None  # it is that of other requests too
    return next((environ[name] for name in _SOCKETS if environ.get(name) is not None), None)


def warn_of_lone(environ: Environ) -> None:
    """Say once where a worker of gunicorn's has one request at a time: a stream keeps others out, and is killed."""
    if environ.get("wsgi.multithread") is False and str(environ.get("SERVER_SOFTWARE", "")).startswith("gunicorn"):
        _warn_of_lone()


@functools.cache
def _warn_of_lone() -> None:
    logger.warning(
        "a stream is served by a worker that has one request at a time, and that gunicorn kills after its --timeout, "
        "30 s by default: start it with `-k gthread --threads 100`, or with `--timeout 0` and a worker for each stream"
    )


def aborted_by(environ: Environ) -> Callable[[], BaseException]:
    """What makes the exception at which this server cuts the connection, without a traceback in its log."""
    if environ.get("waitress.client_disconnected") is not None:
        return _waitress()
    connection = _socket(environ)
    return BodyAborted if connection is None else functools.partial(_cut, connection)


def cut_off(environ: Environ) -> None:
    """End the connection, where it can be reached: a write to it that waits then fails."""
    connection = _socket(environ)
    try:
        if connection is not None:
            connection.shutdown(socket.SHUT_RDWR)
    except (OSError, ValueError):
        pass  # it is closed already


def _cut(connection: Any) -> BaseException:
    """The reader is told at once: a server that goes away may close its connections at its own end only."""
    try:
        connection.shutdown(socket.SHUT_WR)
    except (OSError, ValueError):
        pass  # it is closed already
    return BodyAborted()


@functools.cache
def _waitress() -> Callable[[], BaseException]:
    known: Any = getattr(sys.modules.get("waitress.channel"), "ClientDisconnected", None)
    if known is None:
        return BodyAborted
    kind: Callable[[], BaseException] = type("BodyAborted", (BodyAborted, known), {"__doc__": BodyAborted.__doc__})
    return kind
