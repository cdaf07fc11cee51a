"""A WSGI request as the library sees it, and what can be done with the connection that some servers show."""

from __future__ import annotations

import errno
import io
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from streamguard.adapters import environ as module
from streamguard.adapters.environ import aborted_by, cut_off, facts_of, gone_by, keep_body, limit_writes, scope_of
from streamguard.runtime.blocking import BodyAborted


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection: the server's end, which the environ shows, and the reader's."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname(), 20) as reader, listening.accept()[0] as server:
            yield server, reader


def shown(server: Any, **more: Any) -> dict[str, Any]:
    return {"REQUEST_METHOD": "GET", "SERVER_PROTOCOL": "HTTP/1.1", "gunicorn.socket": server, **more}


def test_facts_have_the_headers_by_their_names_and_the_version() -> None:
    facts = facts_of(
        {
            "REQUEST_METHOD": "POST",
            "HTTP_LAST_EVENT_ID": "1",
            "CONTENT_TYPE": "text/plain",
            "CONTENT_LENGTH": "",
            "QUERY_STRING": "after=2",
            "SERVER_PROTOCOL": "HTTP/1.0",
        }
    )
    assert dict(facts.headers) == {"last-event-id": "1", "content-type": "text/plain"}
    assert (facts.method, facts.query, facts.http_version) == ("POST", "after=2", "1.0")
    assert facts_of({"REQUEST_METHOD": "GET"}).http_version == "1.1"


def test_a_scope_has_the_path_as_text_and_the_environ_itself() -> None:
    asked = {"REQUEST_METHOD": "GET", "SCRIPT_NAME": "/a", "PATH_INFO": "/\xe6\x88\x96", "wsgi.url_scheme": "https"}
    scope = scope_of(asked, facts_of(asked))
    assert (scope["root_path"], scope["path"], scope["scheme"]) == ("/a", "/a/或", "https")
    assert scope["environ"] is asked


@pytest.mark.parametrize(
    ("more", "body"),
    [
        ({"CONTENT_LENGTH": "3"}, b"one"),
        ({}, b""),
        ({"CONTENT_LENGTH": "three"}, b""),
        ({"wsgi.input_terminated": True}, b"one, and the next request"),
    ],
)
def test_a_body_is_read_as_far_as_it_goes_and_stays_readable(more: dict[str, Any], body: bytes) -> None:
    asked: dict[str, Any] = {"wsgi.input": io.BufferedReader(io.BytesIO(b"one, and the next request")), **more}  # type: ignore[arg-type]
    assert keep_body(asked) == keep_body(asked) == body
    assert asked["wsgi.input"].read() == body
    assert keep_body({}) == b""


def test_a_reader_that_left_is_seen_and_one_that_sends_on_is_none() -> None:
    for leave in ("close", "reset"):
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            with socket.create_connection(listening.getsockname(), 20) as reader, listening.accept()[0] as server:
                gone = gone_by(shown(server))
                assert gone is not None
                assert not gone()
                reader.sendall(b"the next request")
                server.recv(1, socket.MSG_PEEK)
                assert not gone()
                assert server.recv(100) == b"the next request"  # which is there for the server
                if leave == "reset":
                    reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                reader.close()
                try:
                    server.recv(1)  # until it has come
                except ConnectionResetError:
                    pass
                assert gone()


def test_what_cannot_be_looked_at_is_no_reader_that_left() -> None:
    class Tls:
        def recv(self, size: int, flags: int) -> bytes:
            raise ValueError("non-zero flags not allowed")

        def cipher(self) -> None: ...

    gone = gone_by(shown(Tls()))
    assert gone is not None
    assert not gone()
    assert gone_by(shown(Tls(), SERVER_PROTOCOL="HTTP/2")) is None  # it is that of other requests too
    assert gone_by({"REQUEST_METHOD": "GET"}) is None
    known = gone_by({"waitress.client_disconnected": lambda: 1})
    assert known is not None
    assert known() is True


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="absent: TCP_USER_TIMEOUT (it is of Linux)")
def test_writes_are_limited_by_the_system_and_at_least_by_a_millisecond(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    server, _ = pair
    for seconds, limit in (None, 0), (30.0, 30_000), (0.0001, 1), (1e12, 2**31 - 1):
        limit_writes(shown(server), seconds)
        assert server.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == limit
    one, other = socket.socketpair()  # of the file system's kind, which has no such limit
    with one, other:
        limit_writes(shown(one), 30.0)


def test_an_abort_ends_the_connection_at_once_and_is_a_broken_pipe(pair: tuple[socket.socket, socket.socket]) -> None:
    server, reader = pair
    raised = aborted_by(shown(server))()
    assert isinstance(raised, BodyAborted)
    assert raised.errno == errno.EPIPE
    assert reader.recv(1) == b""
    server.close()
    assert isinstance(aborted_by(shown(server))(), BodyAborted)  # it is closed already
    assert aborted_by({}) is BodyAborted


def test_on_waitress_an_abort_is_what_that_server_takes_for_a_reader_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    from waitress.channel import ClientDisconnected

    asked = {"waitress.client_disconnected": lambda: False}
    module._waitress.cache_clear()
    raised = aborted_by(asked)()
    assert isinstance(raised, ClientDisconnected)
    assert isinstance(raised, BodyAborted)
    monkeypatch.setattr("waitress.channel.ClientDisconnected", None)
    module._waitress.cache_clear()
    assert aborted_by(asked) is BodyAborted  # a later version may have no such class
    module._waitress.cache_clear()


def test_a_cut_makes_a_write_fail_that_waits(pair: tuple[socket.socket, socket.socket]) -> None:
    server, reader = pair
    cut_off(shown(server))
    assert reader.recv(1) == b""
    with pytest.raises(BrokenPipeError):
        server.send(b"x")
    server.close()
    cut_off(shown(server))
    cut_off({})
