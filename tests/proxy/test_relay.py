"""What passes, to the byte, and what becomes of an answer that does not end."""

from __future__ import annotations

import gzip
import json
import logging
import socket
from typing import Any

import pytest

from streamguard.core.receipt import Verdict
from streamguard.proxy import relay
from tests.adapters.asgi_apps import exchange
from tests.adapters.middleware_apps import DONE, chunk, events, streaming
from tests.adapters.servers import Gate
from tests.asking import http
from tests.ports import nobody
from tests.proxy.fronted import CHUNKED, Wired, answered, fronted, in_front


def get(path: str = "/", *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", "Connection: close", *lines, "", ""]).encode()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nServer: odd\r\nX-CaSe: a\r\nx-case: b\r\nDate: never\r\nContent-Length: 3\r\n\r\n\xff\0a",
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 302 Found\r\nLocation: http://else.where/\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
        b"Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 4\r\n\r\n\x8b\0\x80a",
        b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nContent-Type: text/event-stream\r\n\r\n",  # to an EventSource: do not come back
        b"HTTP/1.1 304 Not Modified\r\nETag: a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 10\r\n\r\ndata: a\n\nd",
    ],
)
def test_an_answer_that_is_no_stream_comes_as_it_was_sent(answer: bytes) -> None:
    with Wired(answer) as wired, in_front(wired.port) as proxy:
        came = answered(proxy, get())
    assert came.replace(b"Connection: close\r\n", b"") == answer


def test_what_was_framed_by_chunks_or_by_the_end_is_the_same_body() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nX-Trailer: t\r\n\r\n"
    for answer in (chunked, b"HTTP/1.1 200 OK\r\n\r\nabc", b"HTTP/1.0 200 OK\r\n\r\nabc"):
        with Wired(answer) as wired, in_front(wired.port) as proxy:
            assert http.get(proxy.url).content == b"abc"


def test_a_request_comes_as_it_was_sent_below_the_upstreams_own_path() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    with Wired(answer) as wired, in_front(wired.port, base="/below/") as proxy:
        body = b"\0\xff" * 100
        head = b"PATCH /a%2Fb//c;d=%00?q=%20&&x=[1]? HTTP/1.1\r\nHost: x\r\nX-B: 1\r\nX-A: \xe9\r\nCookie: a=b\r\n"
        answered(proxy, head + b"Content-Length: 200\r\nConnection: close\r\n\r\n" + body)
        answered(proxy, head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nab\r\n0\r\n\r\n")
        answered(proxy, b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    sized, chunked, bare = wired.requests
    assert sized.startswith(b"PATCH /below/a%2Fb//c;d=%00?q=%20&&x=[1]? HTTP/1.1\r\n")
    assert b"\r\nx-b: 1\r\nx-a: \xe9\r\ncookie: a=b\r\ncontent-length: 200\r\n" in sized
    assert sized.endswith(b"\r\n\r\n" + body)
    assert chunked.endswith(b"\r\n\r\n2\r\nab\r\n0\r\n\r\n")
    assert bare.startswith(b"HEAD /below/ HTTP/1.1\r\n")


def test_the_head_of_a_stream_keeps_the_upstreams_own_headers() -> None:
    with Wired(CHUNKED.replace(b"\r\n\r\n", b"\r\nX-Request-Id: r7\r\n\r\n") + b"0\r\n\r\n") as wired:
        with in_front(wired.port) as proxy:
            headers = http.get(proxy.url).headers
    assert (headers["x-request-id"], headers["content-type"]) == ("r7", "text/event-stream")
    assert "resume=" in headers["streamguard"]


@pytest.mark.parametrize(
    ("answer", "code", "status"),
    [
        (b"", "upstream_broke", 502),
        (b"HTTP/1.1 200", "upstream_broke", 502),
        (b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", "upstream_broke", 502),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "upstream_broke", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "upstream_broke", 502),
        (b"HTTP/1.1 600 Odd\r\nContent-Length: 0\r\n\r\n", "upstream_broke", 502),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "upstream_broke", 502),
    ],
)
def test_an_upstream_that_does_not_answer_is_a_bad_gateway(answer: bytes, code: str, status: int) -> None:
    with Wired(answer) as wired, in_front(wired.port) as proxy:
        came = http.get(proxy.url)
    assert (came.status_code, came.json()["code"]) == (status, code)


def test_an_upstream_that_is_not_there_or_says_nothing_is_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with in_front(silent.getsockname()[1], stall=0.05) as proxy:
            came = http.get(proxy.url)
    assert (came.status_code, came.json()["code"]) == (504, "upstream_silent")
    assert came.json()["error"] == {"message": came.json()["detail"], "type": "server_error", "code": "upstream_silent"}
    with nobody() as port, in_front(port) as proxy:
        came = http.post(f"{proxy.url}/a%0AINFO:%20b", content=b"a")
    assert (came.status_code, came.json()["code"]) == (502, "upstream_unreachable")
    assert "cannot be reached" in caplog.text
    assert not any(line.startswith("INFO") for line in caplog.text.splitlines())


def test_a_header_with_an_underscore_does_not_reach_the_upstream_and_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Wired(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as wired:
        with in_front(wired.port, principal_header="X-User") as proxy:
            for _ in range(2):
                answered(
                    proxy,
                    b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX_User: eve\r\nX-User: ann\r\n"
                    b"Content_Length: 9\r\nContent-Length: 1\r\n\r\na",
                )
    assert all(b"x-user: ann\r\n" in asked.lower() and b"_" not in asked for asked in wired.requests)
    assert caplog.text.count("the header x_user, which does not go on") == 1


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize(
    "framed", [b"Content-Length: 100\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"]
)
def test_an_answer_that_breaks_off_breaks_off(framed: bytes, resets: bool) -> None:
    with Wired(b"HTTP/1.1 200 OK\r\n" + framed, resets=resets) as wired, in_front(wired.port) as proxy:
        response = exchange(proxy.connect(), path="/")
    assert not response.clean


def test_a_stream_that_breaks_off_fails_in_the_form_of_its_api(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "streamguard")
    cut = CHUNKED + b"%x\r\n%b\r\n" % (len(chunk("a")), chunk("a"))
    with Wired(cut) as wired, in_front(wired.port) as proxy:
        response = exchange(proxy.connect(), path="/")
    assert (response.clean, response.verdict) == (False, Verdict.FAILED)
    assert b"upstream_broke" in response.body
    assert b"[DONE]" not in response.body


def test_a_stream_that_the_upstream_compressed_is_guarded_and_comes_plain() -> None:
    whole = chunk("a") + chunk(reason="stop") + DONE
    packed = gzip.compress(whole)
    members = b"".join(map(gzip.compress, (chunk("a"), chunk(reason="stop"), DONE)))  # each flush by itself
    for data, verdict, came in (
        (packed, Verdict.COMPLETE, events(whole)),
        (members, Verdict.COMPLETE, events(whole)),
        (members[:-9], Verdict.FAILED, None),
        (packed[:-9], Verdict.FAILED, None),
        (b"\0" * 20, Verdict.FAILED, None),
    ):
        app = streaming([data[:9], data[9:]], headers=[(b"content-encoding", b"gzip")])
        with fronted(app) as (proxy, _):
            response = exchange(proxy.connect(), path="/")
        assert (response.verdict, "content-encoding" in response.headers) == (verdict, False)
        assert came is None or events(response.body) == came


def test_a_stream_in_a_coding_that_cannot_be_taken_apart_passes_and_is_told_of(caplog: Any) -> None:
    app = streaming([b"\x8b\0\x80a"], headers=[(b"content-encoding", b"br")])
    with fronted(app) as (proxy, _), http.stream("GET", proxy.url) as response:
        assert b"".join(response.iter_raw()) == b"\x8b\0\x80a"
    assert "compresses its event streams (br)" in caplog.text


def test_a_stream_that_ends_with_its_connection_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with Wired(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: a\n\n") as wired:
        with in_front(wired.port) as proxy:
            assert exchange(proxy.connect(), path="/").verdict is Verdict.COMPLETE
        assert "--end provider" in caplog.text
        with in_front(wired.port, end="provider") as proxy:
            assert exchange(proxy.connect(), path="/").verdict is Verdict.FAILED


class Hanging:
    """An application that is reached, and then waits until its reader leaves: before its answer, or within it."""

    def __init__(self, within: bool, kind: bytes = b"text/event-stream") -> None:
        self.reached, self.left = Gate(), Gate()
        self._within = within
        self._kind = kind

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        if self._within:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", self._kind)]})
            await send({"type": "http.response.body", "body": b"data: a\n\n", "more_body": True})
        self.reached.open()
        assert (await receive())["type"] == "http.disconnect"
        self.left.open()


@pytest.mark.parametrize("app", [Hanging(False), Hanging(True), Hanging(True, b"text/plain")])
@pytest.mark.parametrize("body", [b"", b'{"stream": true}'])
def test_who_leaves_ends_the_upstreams_work_at_once(app: Hanging, body: bytes) -> None:
    app.reached, app.left = Gate(), Gate()
    with fronted(app) as (proxy, _):
        with proxy.connect() as connection:
            connection.request("POST", "/", body=body, content_type="application/json")
            app.reached.wait()
        app.left.wait()


def test_who_leaves_in_the_middle_of_a_request_ends_it() -> None:
    with Wired(b"") as wired, in_front(wired.port) as proxy:
        with proxy.connect() as connection:
            connection.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
            while not (wired.requests and wired.requests[0].endswith(b"abc")):
                assert not wired.left.wait(0.005)
        assert wired.left.wait(10)


def test_who_hangs_up_behind_what_nobody_reads_ends_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_LOOK", 0.01)
    monkeypatch.setattr(relay, "hung_up", lambda connection: connection.fileno() > 0)
    with Wired(b"") as wired, in_front(wired.port) as proxy, proxy.connect() as connection:
        connection.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        assert wired.left.wait(10)


def test_a_reader_of_http_1_0_gets_the_streams_own_events() -> None:
    whole = chunk("a") + chunk(reason="stop") + DONE
    with fronted(streaming([whole])) as (proxy, _), proxy.connect() as connection:
        connection.get(version="1.0")
        assert events(connection.rest().partition(b"\r\n\r\n")[2]) == events(whole)


def test_a_body_that_is_large_arrives_in_pieces_while_it_is_sent() -> None:
    sizes: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            sizes.append(len(message["body"]))
            more = message["more_body"]
        body = json.dumps({"total": sum(sizes)}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    with fronted(app) as (proxy, _):
        assert http.post(proxy.url, content=b"x" * 3_000_000).json() == {"total": 3_000_000}
    assert max(sizes) < 1_000_000
