"""What is refused before it gets anywhere: over sockets, with the upstream's books open."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest

from streamguard.proxy.front import Front
from tests.adapters.servers import Server
from tests.proxy.fronted import Wired, answered, in_front

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
POST = b"POST /v1 HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def behind() -> Any:
    with Wired(OK) as wired:
        yield wired


@pytest.fixture(scope="module")
def proxy(behind: Wired) -> Any:
    with in_front(behind.port, max_body=1000) as server:
        yield server


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def get(target: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: x", *lines, "", ""]).encode("latin-1")


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        # two lengths, or a length and chunks: two servers may see two requests here
        (POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 30\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n", 400),
        (POST + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde", 400),
        (POST + b"Content-Length: 4, 5\r\n\r\nabcde", 400),
        (POST + b"Content-Length: +4\r\n\r\nabcd", 400),
        (POST + b"Content-Length: 0x4\r\n\r\nabcd", 400),
        (POST + b"Content-Length: -4\r\n\r\n", 400),
        (POST + b"Content-Length : 4\r\n\r\nabcd", 400),
        (POST + b"Transfer-Encoding: xchunked\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding\r\n : chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v1 HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        # what would end one header and begin another
        (get("/", "X: a\rY: b"), 400),
        (get("/", "X: a\0b"), 400),
        (get("/", "X Y: a"), 400),
        (get("/", ": a"), 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        # another server's address as a target
        (get("http://evil.example/"), 400),
        (get("https://127.0.0.1:22/"), 400),
        (get("evil.example:80"), 400),
        (get("@evil.example/"), 400),
        (get("?x"), 400),
        (get("*"), 400),
        (get("/a b"), 400),
        (get("/a#b"), 400),
        (get("/\xe9"), 400),
        # out of the upstream's own path
        (get("/v1/../admin"), 400),
        (get("/v1/%2e%2E/admin"), 400),
        (get("/v1/..%2fadmin"), 400),
        (get("/v1/..%5cadmin"), 400),
        (get("/./v1"), 400),
        # other protocols
        (get("/", "Connection: Upgrade", "Upgrade: websocket"), 501),
        (get("/", "Upgrade: h2c, websocket"), 501),
        (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", 501),
        (b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        # too much
        (get("/" + "a" * 70_000), 431),
        (get("/", "X: " + "a" * 70_000), 431),
        (get("/", *[f"X-{number}: a" for number in range(9_000)]), 431),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 300_000, 400),  # which would never end
        (POST + b"Content-Length: 1001\r\n\r\n", 413),
    ],
)
def test_it_is_refused_and_the_upstream_never_hears_of_it(
    proxy: Server, behind: Wired, request_bytes: bytes, expected: int
) -> None:
    before = len(behind.requests)
    answer = answered(proxy, request_bytes)  # to the end: what follows in such a connection is not answered
    assert status(answer) == expected
    assert answer.count(b"HTTP/1.1 ") == 1
    assert len(behind.requests) == before


@pytest.mark.parametrize(
    "body",
    [b"G\r\nabc\r\n0\r\n\r\n", b"-1\r\n\r\n", b"0x3\r\nabc\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n",
     b"fffffffffffffffffffffff\r\n", b"3\nabc\n0\n\n"],
)  # fmt: skip
def test_chunks_that_are_none_end_the_connection_and_no_whole_request_leaves(body: bytes) -> None:
    with Wired(OK) as wired, in_front(wired.port) as proxy:
        answer = answered(proxy, POST + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"GET /evil HTTP/1.1\r\n\r\n")
        assert answer == b"" or status(answer) == 400
    for request in wired.requests:
        assert not request.endswith(b"0\r\n\r\n")
        assert b"evil" not in request


@pytest.mark.parametrize(
    "lines",
    [["X-Forwarded-Host: evil.example"], ["Forwarded: host=evil.example"], ["X-Original-URL: /admin"],
     ["Host: 127.0.0.1:22"], ["Host: evil.example"]],
)  # fmt: skip
def test_no_header_says_where_a_request_goes(lines: list[str]) -> None:
    host = [] if lines[0].startswith("Host") else ["Host: x"]
    with Wired(OK) as wired, in_front(wired.port) as proxy:
        request = "\r\n".join(["GET //evil.example/@a:b HTTP/1.1", *host, *lines, "Connection: close", "", ""])
        assert status(answered(proxy, request.encode())) == 200
    [received] = wired.requests
    assert received.startswith(b"GET //evil.example/@a:b HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n" % wired.port)


def test_a_folded_line_is_one_header_behind_it() -> None:
    with Wired(OK) as wired, in_front(wired.port) as proxy:
        folded = b"GET / HTTP/1.1\r\nHost: x\r\nX-A: a\r\n X-B: b\r\nConnection: close\r\n\r\n"
        assert status(answered(proxy, folded)) == 200
    assert b"\r\nx-a: a X-B: b\r\n" in wired.requests[0]


def test_an_offer_of_http2_that_is_not_taken_is_no_change_of_protocol(proxy: Server) -> None:
    lines = ("Connection: close, Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
    assert status(answered(proxy, get("/", *lines))) == 200


def test_options_of_the_whole_server_pass(proxy: Server, behind: Wired) -> None:
    assert status(answered(proxy, b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")) == 200
    assert behind.requests[-1].startswith(b"OPTIONS * HTTP/1.1\r\n")


def test_a_chunked_body_that_grows_too_large_is_refused_and_breaks_off_behind() -> None:
    with Wired(OK) as wired, in_front(wired.port, max_body=1000) as proxy:
        chunk = b"1f4\r\n" + b"a" * 500 + b"\r\n"
        answer = answered(proxy, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3)
        assert status(answer) == 413
        assert b"body_too_large" in answer
        wired.left.wait(10)
    assert not any(request.endswith(b"0\r\n\r\n") for request in wired.requests)


def test_a_body_that_stands_still_is_given_up() -> None:
    with Wired(OK) as wired, in_front(wired.port, body_silence=0.05) as proxy:
        answer = answered(proxy, POST + b"Content-Length: 10\r\n\r\nabc")
        assert (status(answer), b"body_too_slow" in answer) == (408, True)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"Content-Length: 10\r\n\r\nabc", 408),
        (b"Transfer-Encoding: chunked\r\n\r\n1f4\r\n" + b"a" * 500 + b"\r\n", 413),
    ],
    ids=["too slow", "too large"],
)
def test_a_body_for_the_proxy_itself_is_refused_by_the_same_words(body: bytes, code: int) -> None:
    """And not as one that broke off, by whoever was told so."""
    own = b"POST /streams HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with Wired(OK) as wired, in_front(wired.port, body_silence=0.05, max_body=100) as proxy:
        answer = answered(proxy, own + body)
        assert (status(answer), b"connection: close" in answer) == (code, True)


def test_headers_above_the_bound_are_told_of_where_the_server_let_them_pass() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read of a request that is refused")

    front = Front(receive, max_head=100)  # type: ignore[arg-type]  # nobody calls the application
    scope = {"type": "http", "method": "GET", "raw_path": b"/", "query_string": b"", "http_version": "1.1"}
    anyio.run(front, {**scope, "headers": [(b"x", b"a" * 96)]}, receive, send)
    assert sent[0]["status"] == 431
    sent.clear()
    anyio.run(front, {"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close"}]


def test_every_refusal_of_the_list_is_in_the_modules_table() -> None:
    doc = Front.__init__.__globals__["__doc__"]
    assert set(re.findall(r" ([0-9]{3}) [a-z_]+$", doc, re.MULTILINE)) == {"400", "431", "413", "408", "501"}
