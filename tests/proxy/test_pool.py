"""Connections to the upstream: which are used again, and who is believed."""

from __future__ import annotations

import socket
import threading
from typing import Any

import anyio
import httpcore
import pytest

from streamguard.proxy import network
from streamguard.proxy import pool as module
from streamguard.proxy.pool import Pool, told
from streamguard.proxy.upstream import Upstream, UpstreamFailed
from tests.adapters.servers import DEADLINE, serving
from tests.proxy.fronted import Wired
from tests.stacks.proxies import certificate

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def fetched(pool: Pool, method: bytes = b"GET", *fields: tuple[bytes, bytes], content: Any = None) -> bytes:
    answer = await pool.ask(method, b"/", [(b"host", pool.upstream.authority), *fields], content)
    try:
        with told():
            return b"".join([piece async for piece in answer.body])
    finally:
        await answer.aclose()


async def closed(pool: Pool) -> None:
    """Wait for the upstream's close of what is idle, which comes at some time behind its answer."""
    with anyio.fail_after(DEADLINE):
        idle: Any = pool._idle
        while not all(connection._connection.has_expired() for connection in idle):  # noqa: ASYNC110  # it tells nobody
            await anyio.sleep(0.001)


def at(port: int, scheme: str = "http") -> Upstream:
    return Upstream.parse(f"{scheme}://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("url", "authority", "base"),
    [
        ("http://model", b"model", b""),
        ("http://model:80/", b"model:80", b""),
        ("https://[::1]:8443/a/b/", b"[::1]:8443", b"/a/b"),
    ],
)
def test_an_upstream_is_an_address_and_perhaps_a_path(url: str, authority: bytes, base: bytes) -> None:
    upstream = Upstream.parse(url)
    assert (upstream.authority, upstream.base) == (authority, base)


def test_a_connection_is_used_again_and_one_that_was_left_in_the_middle_is_not() -> None:
    async def run(port: int) -> None:
        pool = Pool(at(port))
        assert [await fetched(pool) for _ in range(2)] == [b"ok", b"ok"]
        answer = await pool.ask(b"GET", b"/", [(b"host", b"x")])
        await answer.aclose()  # unread
        assert await fetched(pool) == b"ok"
        await pool.aclose()

    with Wired(OK, closes=False) as wired:
        anyio.run(run, wired.port)
    assert [request.count(b"GET ") for request in wired.requests] == [3, 1]


def test_a_connection_that_the_upstream_closed_is_not_used_again() -> None:
    async def run(port: int) -> None:
        pool = Pool(at(port))
        for _ in range(3):
            assert await fetched(pool, b"POST", (b"content-length", b"0")) == b"ok"
            await closed(pool)
        await pool.aclose()

    with Wired(OK) as wired:
        anyio.run(run, wired.port)
    assert len(wired.requests) == 3


@pytest.mark.parametrize("method", [b"GET", b"POST", b"HEAD"])
def test_what_an_upstream_says_behind_its_answer_is_nobody_elses(method: bytes) -> None:
    async def run(port: int) -> list[bytes]:
        pool = Pool(at(port))
        try:
            return [await fetched(pool, method), await fetched(pool, b"POST", (b"content-length", b"0"))]
        finally:
            await pool.aclose()

    behind = OK.replace(b"ok", b"no") if method != b"HEAD" else b""  # the body that a HEAD has none of is enough
    with Wired(OK + behind, closes=False) as wired:
        assert anyio.run(run, wired.port) == [b"" if method == b"HEAD" else b"ok", b"ok"]
    assert len(wired.requests) == 2


def test_a_request_of_which_nothing_was_sent_is_sent_whatever_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpcore.AsyncHTTPConnection, "has_expired", lambda self: False)  # the close comes behind it

    async def run(port: int) -> None:
        pool = Pool(at(port))
        for _ in range(2):
            assert await fetched(pool, b"POST", (b"content-length", b"0")) == b"ok"
            await closed(pool)
        await pool.aclose()

    with Wired(OK) as wired:
        anyio.run(run, wired.port)
    assert len(wired.requests) == 2


@pytest.mark.parametrize("interim", [b"", b"HTTP/1.1 102 Processing\r\n\r\n"])
def test_an_answer_is_read_though_no_more_of_the_request_is_taken(
    monkeypatch: pytest.MonkeyPatch, interim: bytes
) -> None:
    monkeypatch.setattr(network, "_UNTAKEN", 0.02)
    over = threading.Event()

    async def body() -> Any:
        while True:
            yield b"x" * 100_000

    async def run(port: int) -> bytes:
        pool = Pool(at(port), silence=0.5 if interim else 20)
        return await fetched(pool, b"POST", (b"transfer-encoding", b"chunked"), content=body())

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(interim or OK)
            over.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        try:
            if not interim:
                assert anyio.run(run, server.getsockname()[1]) == b"ok"
            else:
                with pytest.raises(UpstreamFailed, match="said nothing"):
                    anyio.run(run, server.getsockname()[1])
        finally:
            over.set()
            thread.join()


def test_connections_that_are_idle_for_long_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDLE", 0.0)

    async def run(port: int) -> None:
        pool = Pool(at(port))
        assert [await fetched(pool) for _ in range(3)] == [b"ok"] * 3
        await pool.aclose()

    with Wired(OK, closes=False) as wired:
        anyio.run(run, wired.port)
    assert len(wired.requests) == 3


@pytest.mark.parametrize(("method", "asked"), [(b"GET", 2), (b"POST", 1)])
def test_a_request_that_met_the_close_is_sent_again_only_if_nothing_can_be_done_twice(
    method: bytes, asked: int
) -> None:
    async def run(port: int) -> bytes:
        pool = Pool(at(port))
        await fetched(pool)
        try:
            return await fetched(pool, method)
        finally:
            await pool.aclose()

    with Wired(OK, closes=False, answers=1) as wired:
        if asked == 2:
            assert anyio.run(run, wired.port) == b"ok"
        else:
            with pytest.raises(UpstreamFailed) as failed:
                anyio.run(run, wired.port)
            assert (failed.value.code, failed.value.status) == ("upstream_broke", 502)
    assert len(wired.requests) == asked


def test_an_upstream_of_tls_is_believed_by_its_authority_alone() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": scope["scheme"][-2:].encode()})

    async def run(port: int) -> bytes:
        pool = Pool(at(port, "https"), cacert=certificate().authority)
        try:
            return await fetched(pool) + await fetched(pool)
        finally:
            await pool.aclose()

    async def strange(port: int) -> None:
        await fetched(Pool(at(port, "https")))

    with serving(app, ssl_certfile=certificate().path) as server:
        assert anyio.run(run, server.port) == b"psps"
        with pytest.raises(UpstreamFailed) as failed:
            anyio.run(strange, server.port)
    assert failed.value.code == "upstream_unreachable"


def test_a_header_that_is_none_does_not_leave() -> None:
    async def run(port: int) -> None:
        await fetched(Pool(at(port)), b"GET", (b"x", b"a\r\ny: b"))

    with Wired(OK) as wired, pytest.raises(UpstreamFailed) as failed:
        anyio.run(run, wired.port)
    assert (failed.value.status, wired.requests) in ((400, []), (400, [b""]))


@pytest.mark.parametrize("way", ["read", "connect", "write"])
def test_each_wait_has_its_limit(way: str) -> None:
    async def body() -> Any:
        while True:
            yield b"x" * 100_000

    async def run(port: int) -> None:
        pool = Pool(at(port), connect=0.05 if way == "connect" else 20.0, silence=0.05)
        if way == "write":
            await fetched(pool, b"POST", (b"transfer-encoding", b"chunked"), content=body())
        else:
            await fetched(pool)

    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        port = silent.getsockname()[1]
        filled = [socket.socket() for _ in range(3)] if way == "connect" else []
        for one in filled:  # its queue is full: nobody else gets a connection
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        with pytest.raises(UpstreamFailed) as failed:
            anyio.run(run, port)
        for one in filled:
            one.close()
    assert failed.value.code == ("upstream_unreachable" if way == "connect" else "upstream_silent")
