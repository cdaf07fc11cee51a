"""A proxy that runs in front of something: an application on uvicorn, or a server that answers with set bytes.

    with fronted(app) as (proxy, behind): ...
    with Wired(b"HTTP/1.1 200 OK\\r\\n...") as wired, in_front(wired.port) as proxy: ...
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from typing_extensions import Self

from streamguard.log.memory import MemoryLog
from streamguard.proxy.app import ProxySettings, proxy_app
from streamguard.proxy.upstream import Upstream
from tests.adapters.servers import DEADLINE, Server, serving

__all__ = ["CHUNKED", "Wired", "answered", "fronted", "in_front"]

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def in_front(
    port: int, *, log: Any = None, base: str = "", observe: Any = None, **settings: Any
) -> Iterator[Server]:
    """A proxy in front of a port, as the command makes it."""
    chosen = ProxySettings(on_sigterm=False, **settings)
    upstream = Upstream.parse(f"http://127.0.0.1:{port}{base}")
    app = proxy_app(upstream, log or MemoryLog(), chosen, observe=observe)
    options: dict[str, Any] = {"ws": "none", "server_header": False, "date_header": False, "proxy_headers": False}
    options["h11_max_incomplete_event_size"] = chosen.max_head
    with serving(app, lifespan="on", **options) as server:
        yield server


@contextmanager
def fronted(app: Any, **settings: Any) -> Iterator[tuple[Server, Server]]:
    """A proxy in front of an application; both servers."""
    with serving(app) as behind, in_front(behind.port, **settings) as proxy:
        yield proxy, behind


def answered(server: Server, request: bytes) -> bytes:
    """All that comes back for these bytes, up to the end of the connection."""
    with server.connect() as connection:
        connection.send(request)
        try:
            return connection.rest()
        except ConnectionResetError:
            return connection.received


class Wired:
    """A server that answers each request with the same bytes and, with `closes`, closes behind them; `resets` does so
    by a reset; behind so many `answers` it closes a connection that asks again. `requests` are the bytes that came, one
    for each connection; `left` is set when one is over."""

    def __init__(self, answer: bytes, *, closes: bool = True, resets: bool = False, answers: int = 99) -> None:
        self.answer = answer
        self._answers = answers
        self.requests: list[bytes] = []
        self.left = threading.Event()
        self._closes = closes or resets
        self._resets = resets
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._threads = ExitStack()
        self._run(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._threads.close()

    def _run(self, function: Any, *args: Any) -> None:
        thread = threading.Thread(target=function, args=args, daemon=True)
        thread.start()
        self._threads.callback(thread.join, DEADLINE)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(DEADLINE)
            number = len(self.requests)
            self.requests.append(b"")
            while piece := _received(connection):
                self.requests[number] += piece
                if not _whole(self.requests[number]):
                    continue
                if self.requests[number].count(b" HTTP/1.1\r\n") > self._answers:
                    break
                connection.sendall(self.answer)
                if self._closes:
                    break
            if self._resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            self.left.set()


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def _whole(request: bytes) -> bool:
    head, found, body = request.partition(b"\r\n\r\n")
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        return request.endswith(b"0\r\n\r\n")
    length = lower.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return bool(found) and len(body) >= int(length or b"0")
