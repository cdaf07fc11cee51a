"""Readers that can do what no client library lets one do: leave in mid stream, not read, reset one stream.

    with connected(process) as reader:
        reader.get("/stream/…")
        reader.until(b"t19 ")

One class for each protocol, with the same verbs. `body` is what came of the body, without its framing.
"""

from __future__ import annotations

import socket
import time
from typing import Protocol

import h2.config
import h2.connection
import h2.events

from tests.adapters.asgi_apps import unchunked
from tests.adapters.servers import DEADLINE, Connection
from tests.stacks.processes import Process

__all__ = ["Http1", "Http2", "Reader", "connected"]

_SMALL = 4096  # bytes that the socket of a reader takes that is not going to read


class Reader(Protocol):
    """What both have."""

    @property
    def body(self) -> bytes: ...
    @property
    def end(self) -> str | None:
        """How the answer ended: `clean`, `cut`, or None while it is open."""
        ...

    def get(self, path: str, method: str = "GET") -> None: ...
    def until(self, mark: bytes) -> bytes:
        """Read until `mark` came. Raises AssertionError if the answer ends before it does."""
        ...

    def rest(self, seconds: float) -> bytes:
        """Read to the end of the answer, but no longer than `seconds`."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Reader: ...
    def __exit__(self, *exc: object) -> None: ...


class _Reading:
    """The verbs, over `_more`."""

    socket: socket.socket
    end: str | None = None
    body: bytes = b""

    def _take(self, data: bytes) -> None:
        raise NotImplementedError

    def until(self, mark: bytes) -> bytes:
        self.socket.settimeout(DEADLINE)
        while mark not in self.body:
            assert self.end is None, f"the answer ended as {self.end} before {mark!r} came: {self.body[-500:]!r}"
            self._take(self.socket.recv(65_536))
        return self.body

    def rest(self, seconds: float) -> bytes:
        until = time.monotonic() + seconds
        while self.end is None and (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                self._take(self.socket.recv(65_536))
            except TimeoutError:
                break
            except ConnectionResetError:
                self.end = "cut"
        return self.body

    def close(self) -> None:
        self.socket.close()


class Http1(_Reading):
    """HTTP/1.1. `reading` False leaves the kernel next to no room for what is not read."""

    def __init__(self, process: Process, *, reading: bool = True) -> None:
        self._connection = Connection(process.port, receive_buffer=None if reading else _SMALL)
        self.socket = self._connection.socket
        self.head = b""
        self._received = b""

    def get(self, path: str, method: str = "GET") -> None:
        self._connection.request(method, path)

    def _take(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            self.end = "cut" if not data else None
            return
        self.head = head
        self.body, clean = unchunked(rest) if b"chunked" in head.lower() else (rest, True)
        if clean or not data:
            self.end = "clean" if clean else "cut"

    def __enter__(self) -> Http1:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Http2(_Reading):
    """HTTP/2 with prior knowledge. `reading` False never renews the 65,535 bytes of its first window."""

    def __init__(self, process: Process, *, reading: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", process.port), DEADLINE)
        self._reading = reading
        self._received = b""
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._stream = self._h2.get_next_available_stream_id()
        self._send()

    def get(self, path: str, method: str = "GET") -> None:
        headers = [(":method", method), (":scheme", "http"), (":authority", "test"), (":path", path)]
        self._h2.send_headers(self._stream, headers, end_stream=True)
        self._send()

    def reset(self) -> None:
        """Give up this stream; the connection stays."""
        self._h2.reset_stream(self._stream, 8)  # CANCEL
        self._send()

    def _take(self, data: bytes) -> None:
        if not data:
            self.end = self.end or "cut"
            return
        self._received += data
        while (frame := self._frame()) and self.end is None:
            self._handle(frame)
        self._send()

    def _frame(self) -> bytes:
        """The next whole frame. The library gets one at a time, or a GOAWAY would end those behind it."""
        size = 9 + int.from_bytes(self._received[:3], "big")
        if len(self._received) < size:
            return b""
        frame, self._received = self._received[:size], self._received[size:]
        return frame

    def _handle(self, frame: bytes) -> None:
        for event in self._h2.receive_data(frame):
            if isinstance(event, h2.events.DataReceived):
                self.body += event.data
                if self._reading:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.end = "clean"
            elif isinstance(event, h2.events.StreamReset):
                self.end = "cut"
            elif isinstance(event, h2.events.ConnectionTerminated) and not event.error_code:
                # A server that stops goes on with the streams that it has; the library takes its word for the end.
                self._h2.state_machine.state = h2.connection.ConnectionState.CLIENT_OPEN

    def _send(self) -> None:
        if data := self._h2.data_to_send():
            self.socket.sendall(data)

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def connected(process: Process, *, reading: bool = True) -> Reader:
    """A reader for the protocol of this server."""
    return Http2(process, reading=reading) if process.http2 else Http1(process, reading=reading)
