"""Requests as they leave, and what becomes of servers that do not answer, over bare sockets."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import pytest

from streamguard.check.request import Request, request_from
from streamguard.check.transport import Broken, Silent, Transport, Unreachable

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nX-Two: 1\r\n\r\n"


def received(connection: socket.socket) -> bytes:
    """A whole request: its body may come behind its head."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := connection.recv(65536)):
            return data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length: *(\d+)", head)
    while length is not None and len(body) < int(length[1]):
        if not (piece := connection.recv(65536)):
            break
        body += piece
    return head + b"\r\n\r\n" + body


@contextmanager
def answering(*replies: bytes | None, keep: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each connection with one of these bytes and closes it, unless `keep`; None: it keeps it,
    and is silent."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(10)  # a client that stays on its first connection leaves this thread waiting
    requests: list[bytes] = []
    kept: list[socket.socket] = []

    def serve() -> None:
        for reply in replies:
            connection = listener.accept()[0]
            requests.append(received(connection))
            if reply is not None:
                connection.sendall(reply)
            if reply is None or keep:
                kept.append(connection)
            else:
                connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/", requests
    finally:
        thread.join(10)
        for connection in kept:
            connection.close()
        listener.close()


def read(request: Request, transport: Transport, leaving: Callable[[], object] = bool) -> tuple[int, str, bytes]:
    """Status, version and body."""

    async def run() -> tuple[int, str, bytes]:
        async with transport.ask(request, leaving) as incoming:
            assert incoming.headers["x-two"] == "1"
            return incoming.status, incoming.version, b"".join([piece async for piece in incoming.pieces()])

    return anyio.run(run)


def test_a_request_leaves_with_its_own_headers_and_no_others() -> None:
    left: list[None] = []
    with answering(HEAD + b"2\r\nhi\r\n0\r\n\r\n") as (url, requests):
        request = request_from(url, headers=["User-Agent:", "X-Own: ü", "Accept-Encoding:"], data=["{}"])
        assert read(request, Transport(), lambda: left.append(None)) == (200, "HTTP/1.1", b"hi")
    head, _, body = requests[0].partition(b"\r\n\r\n")
    names = {line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
    assert names == {b"host", b"connection", b"accept", b"content-type", b"content-length", b"x-own"}
    assert "X-Own: ü".encode() in head
    assert body == b"{}"
    assert len(left) == 1


@pytest.mark.parametrize("reply", [b"", b"nonsense\r\n\r\n", HEAD + b"5\r\nhi", HEAD[:20]])
def test_what_breaks_off_is_broken(reply: bytes) -> None:
    with answering(reply) as (url, _), pytest.raises(Broken):
        read(request_from(url), Transport())


def test_what_is_silent_is_silent() -> None:
    with answering(None) as (url, _), pytest.raises(Silent):
        read(request_from(url), Transport(silence=0.3))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://host:99999/"])
def test_where_nobody_is_there_is_no_connection(url: str) -> None:
    with pytest.raises(Unreachable, match="no connection to"):
        read(request_from(url), Transport())


def test_redirects_are_followed_where_that_is_asked_for() -> None:
    away = b"HTTP/1.1 307 Away\r\nlocation: /next\r\ncontent-length: 0\r\nX-Two: 1\r\n\r\n"
    with answering(away) as (url, _):
        assert read(request_from(url), Transport())[0] == 307
    with answering(away, HEAD + b"0\r\n\r\n") as (url, requests):
        assert read(request_from(url), Transport(follow=True))[0] == 200
    assert requests[1].startswith(b"GET /next ")
    with answering(*[away] * 21) as (url, _), pytest.raises(Broken):
        read(request_from(url), Transport(follow=True))


def test_a_request_after_a_redirect_has_a_connection_of_its_own() -> None:
    """On the former one it would meet a server that closes it in this very moment."""
    away = b"HTTP/1.1 307 Away\r\nlocation: /next\r\ncontent-length: 0\r\n\r\n"
    with answering(away, HEAD + b"0\r\n\r\n", keep=True) as (url, requests):
        assert read(request_from(url), Transport(follow=True, silence=3))[0] == 200
    assert len(requests) == 2


def test_http2_is_offered_where_its_library_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Transport().http2
    monkeypatch.setattr("streamguard.check.transport.find_spec", lambda name: None)
    assert not Transport().http2
    assert Transport("1.1").http2  # nobody wants it
