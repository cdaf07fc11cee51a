"""A server made of sockets and nothing else: it can break a response in every way in which they break.

A test gives it a *script*, a function that answers one request over its `Connection` by the raw bytes
that it wants on the wire. Every request runs in its connection's thread; waiting is for events or for
the peer, never for time. A wait that lasts `PATIENCE` seconds fails the test.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

import attrs

from streamguard.core.dialect import Dialect, Native
from streamguard.core.errors import Failure
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Item
from streamguard.core.negotiate import Answer, write_answer
from streamguard.core.pipeline import Pipeline
from streamguard.core.wire import Sse, Wire

__all__ = ["LAST_CHUNK", "PATIENCE", "Connection", "Made", "Request", "Script", "Server", "chunk", "head", "made"]

PATIENCE = 20.0
LAST_CHUNK = b"0\r\n\r\n"
SID = "AAAAAAAAAAAAAAAAAAAAAA"


def head(status: int = 200, content_type: str | None = "text/event-stream", **headers: str | int) -> bytes:
    """The head of a response; chunked unless `content_length`, `location` or `connection` says otherwise."""
    lines = [f"HTTP/1.1 {status} Reason"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if not {"content_length", "connection"} & headers.keys():
        lines.append("Transfer-Encoding: chunked")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


@attrs.frozen
class Made:
    """A stream as our own server writes it: the promise in its header, and its bytes push by push."""

    header: str
    content_type: str
    opening: bytes
    pushes: list[bytes]
    ending: bytes
    heartbeat: bytes

    @property
    def body(self) -> bytes:
        return self.opening + b"".join(self.pushes) + self.ending

    def head(self, **headers: str | int) -> bytes:
        return head(200, self.content_type, streamguard=self.header, **headers)


def made(
    *items: Item,
    dialect: Dialect | None = None,
    wire: Wire | None = None,
    failure: Failure | None = None,
    negotiated: bool = True,
) -> Made:
    """A stream of `items`, complete or failed."""
    dialect = dialect or Native()
    wire = wire or Sse(ids="id")
    encoder = FramedEncoder(dialect, sid=SID, negotiated=negotiated)
    pipeline = Pipeline(Immediate(), encoder, CompletionGuard(wire))
    opening = pipeline.open()
    pushes = [pipeline.push(item, 0.0) for item in items]
    beat = pipeline.heartbeat()
    ending = pipeline.fail(failure, 0.0) if failure else pipeline.finish(0.0)
    header = write_answer(Answer(encoder.zero, dialect.name, wire.name))
    return Made(header, wire.content_type, opening, pushes, ending, beat)


@attrs.frozen
class Request:
    """One request as it came: header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Connection:
    """One accepted socket. `gone` is set once the peer has closed it."""

    def __init__(self, server: Server, sock: socket.socket) -> None:
        self.server = server
        self.gone = threading.Event()
        self._sock = sock
        self._rest = b""

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def finish(self) -> None:
        """FIN: the end of bytes, in order as far as TCP can tell."""
        self._sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """RST: the end of bytes, not in order."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()
        self.gone.set()

    def wait_gone(self) -> None:
        """Wait for the peer to close; nothing more is expected of it."""
        try:
            while self._sock.recv(65536):
                pass
        except ConnectionError:
            pass
        self.gone.set()

    def request(self) -> Request | None:
        """The next request, or None if the peer closed instead."""
        while b"\r\n\r\n" not in self._rest:
            if not self._receive():
                return None
        top, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = top.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        while len(self._rest) < length:
            if not self._receive():
                return None
        body, self._rest = self._rest[:length], self._rest[length:]
        return Request(method, path, headers, body)

    def close(self) -> None:
        self._sock.close()

    def _receive(self) -> bool:
        try:
            data = self._sock.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self.gone.set()
        self._rest += data
        return bool(data)


Script = Callable[[Connection, Request], object]


class Server:
    """Serves `scripts` in the order of the requests, the last one for all that follow."""

    def __init__(self, *scripts: Script) -> None:
        self.requests: list[Request] = []
        self.connections: list[Connection] = []
        self.errors: list[BaseException] = []
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/stream"

    def __enter__(self) -> Server:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        # A listener blocked in accept() does not notice being closed: a last connection wakes it.
        self._scripts = ()
        socket.create_connection(self._listener.getsockname()).close()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a connection was left open"
        self._listener.close()
        for connection in self.connections:
            connection.close()
        if kind is None and self.errors:
            raise self.errors[0]

    def wait_all_gone(self) -> None:
        """Wait until the peers have closed every connection."""
        for connection in self.connections:
            assert connection.gone.wait(PATIENCE), "the client left its socket open"

    def _accept(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            if not self._scripts:
                sock.close()
                return
            sock.settimeout(PATIENCE)
            connection = Connection(self, sock)
            self.connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: Connection) -> None:
        try:
            while not connection.gone.is_set() and (request := connection.request()) is not None:
                with self._lock:
                    script = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
                    self.requests.append(request)
                if script(connection, request) is False:  # the script ended the connection
                    return
        except BaseException as exc:
            self.errors.append(exc)
