"""A server that means harm, or a proxy that does: it may end an answer, and neither hold its reader nor rob it."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest

from streamguard.client import ReaderLimits, stream, stream_sync
from streamguard.client.answer import AnswerState
from streamguard.client.body import PIECE
from streamguard.core.dialect import Dialect, Native, OpenAI, Raw, Text
from streamguard.core.errors import CorruptStream, FirstByteLimitExceeded, TruncatedStream, UnexpectedResponse
from streamguard.core.items import Event, Finish
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Binary, Ndjson, Plain, Sse, Wire
from tests.client.reading import NO_TLS, Read, each_mode, read
from tests.client.server import LAST_CHUNK, Connection, Request, Script, Server, chunk, head, made

HELLO = made("Hello", " world")


def whole(connection: Connection, request: Request) -> None:
    connection.send(HELLO.head() + chunk(HELLO.body) + LAST_CHUNK)


def sends(data: bytes) -> Script:
    return lambda connection, request: connection.send(data)


# ---- the head of an answer ----------------------------------------------------------------------


def until_gone(piece: bytes, pause: float, first: bytes = b"HTTP/1.1 200 OK\r\nX-Long: ") -> Script:
    """A head that never ends: each piece comes long before any single read has taken too long."""

    def script(connection: Connection, request: Request) -> bool:
        try:
            connection.send(first)
            while not connection.gone.wait(pause):
                connection.send(piece)
        except ConnectionError:
            connection.gone.set()
        return False

    return script


EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


@each_mode
@pytest.mark.parametrize(
    "script", [until_gone(b"x", 0.02), until_gone(EARLY, 0.0005, EARLY)], ids=["dribbled", "early hints"]
)
def test_a_head_that_comes_piece_by_piece_is_limited_as_a_whole(mode: str, script: Script) -> None:
    """If each read were limited alone, it would go on until the head is too large, or for ever."""
    with Server(script) as server:
        assert isinstance(read(mode, server.url, limits=ReaderLimits(first_byte=0.3)).error, FirstByteLimitExceeded)
        server.wait_all_gone()


@each_mode
def test_the_limit_on_the_head_holds_on_a_connection_that_is_used_again(mode: str) -> None:
    limits = ReaderLimits(first_byte=0.3)

    async def twice(url: str) -> None:
        async with httpx.AsyncClient(verify=NO_TLS) as client:
            async with stream("GET", url, client=client) as got:
                assert await got.read() == "Hello world"
            with pytest.raises(FirstByteLimitExceeded):
                async with stream("GET", url, client=client, limits=limits):
                    pass

    with Server(whole, until_gone(b"x", 0.02)) as server:
        if mode != "sync":
            anyio.run(twice, server.url, backend=mode)
        else:
            with httpx.Client(verify=NO_TLS) as client:
                with stream_sync("GET", server.url, client=client) as got:
                    assert got.read() == "Hello world"
                with pytest.raises(FirstByteLimitExceeded):
                    with stream_sync("GET", server.url, client=client, limits=limits):
                        pass
        assert len(server.connections) == 1


@each_mode
def test_early_hints_before_an_answer_are_passed_over(mode: str) -> None:
    with Server(sends(EARLY * 3 + HELLO.head() + chunk(HELLO.body) + LAST_CHUNK)) as server:
        seen = read(mode, server.url, limits=ReaderLimits(first_byte=20))
    assert (seen.text, seen.error) == ("Hello world", None)


@each_mode
def test_the_limit_on_the_head_is_none_on_what_follows_it(mode: str) -> None:
    passed = threading.Event()

    def script(connection: Connection, request: Request) -> None:
        connection.send(HELLO.head() + chunk(HELLO.opening))
        passed.wait(2.3)  # longer than the limit, in whole seconds too
        connection.send(chunk(HELLO.body[len(HELLO.opening) :]) + LAST_CHUNK)

    with Server(script) as server:
        seen = read(mode, server.url, limits=ReaderLimits(first_byte=1.0, liveness=20))
    assert (seen.text, seen.error) == ("Hello world", None)


@pytest.mark.anyio
async def test_a_transport_that_tells_nothing_of_its_steps_is_limited_too() -> None:
    class Never(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await anyio.sleep_forever()
            raise AssertionError

    async with httpx.AsyncClient(transport=Never()) as client:
        with pytest.raises(FirstByteLimitExceeded):
            async with stream("GET", "http://app/", client=client, limits=ReaderLimits(connect=0.01, first_byte=0.02)):
                pass


@each_mode
def test_the_callers_own_trace_is_called(mode: str) -> None:
    names: list[str] = []

    async def anote(name: str, info: Any) -> None:
        names.append(name)

    trace: Callable[..., Any] = anote if mode != "sync" else lambda name, info: names.append(name)
    with Server(whole) as server:
        assert read(mode, server.url, extensions={"trace": trace}).error is None
    assert "http11.receive_response_headers.complete" in names


# ---- compressed bodies --------------------------------------------------------------------------


@each_mode
def test_a_request_asks_for_no_compression_unless_its_caller_does(mode: str) -> None:
    with Server(whole) as server:
        read(mode, server.url)
        read(mode, server.url, headers={"Accept-Encoding": "gzip"})
        read(mode, server.url, headers={"Accept-Encoding": "gzip", "Streamguard": "v=1, flush=token"})
        read(mode, server.url, headers={"Accept-Encoding": "br, gzip;q=0"})
        asked = [(request.headers["accept-encoding"], request.headers["streamguard"]) for request in server.requests]
    assert asked == [
        ("identity", "v=1"),
        ("gzip", "v=1, compress=gzip"),  # a server of ours asks for both
        ("gzip", "v=1, flush=token"),  # the caller's own
        ("br, gzip;q=0", "v=1"),
    ]


def test_a_compression_that_the_client_asks_for_stays() -> None:
    with Server(whole) as server, httpx.Client(verify=NO_TLS, headers={"Accept-Encoding": "gzip;q=0.5"}) as client:
        with stream_sync("GET", server.url, client=client) as got:
            got.read()
        assert server.requests[0].headers["accept-encoding"] == "gzip;q=0.5"
        assert server.requests[0].headers["streamguard"] == "v=1, compress=gzip"


@each_mode
@pytest.mark.parametrize("coding", ["gzip", "deflate", "x-gzip", "identity"])
def test_what_the_verifier_is_fed_at_once_is_bounded(mode: str, coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much one read decompresses to."""
    sizes: list[int] = []
    settled = AnswerState.feed

    def feed(state: Any, data: bytes, began: float, now: float) -> None:
        sizes.append(len(data))
        settled(state, data, began, now)

    monkeypatch.setattr(AnswerState, "feed", feed)
    padding = b":" + b"x" * 5_000_000 + b"\n\n"
    body = HELLO.opening + HELLO.pushes[0] + padding + HELLO.pushes[1] + HELLO.ending
    packed = body
    if coding != "identity":
        packed = zlib.compress(body) if coding == "deflate" else gzip.compress(body)
        assert len(packed) < PIECE
    with Server(sends(HELLO.head(content_encoding=coding) + chunk(packed) + LAST_CHUNK)) as server:
        seen = read(mode, server.url)
    assert (seen.text, seen.error) == ("Hello world", None)
    assert max(sizes) <= PIECE
    assert sum(sizes) == len(body)


@pytest.mark.anyio
async def test_other_tasks_run_while_a_large_piece_is_taken_apart() -> None:
    body = HELLO.opening + b":\n" * 200_000 + HELLO.pushes[0] + HELLO.pushes[1] + HELLO.ending
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    def in_memory(request: httpx.Request) -> httpx.Response:
        headers = {"Content-Type": HELLO.content_type, "Streamguard": HELLO.header}
        return httpx.Response(200, headers=headers, content=body)

    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(in_memory)) as client,
        anyio.create_task_group() as group,
    ):
        async with stream("GET", "http://app/", client=client) as got:
            group.start_soon(turn)
            await anyio.lowlevel.checkpoint()
            turns = 0
            assert await got.read() == "Hello world"
            assert turns >= len(body) // PIECE - 1
        group.cancel_scope.cancel()


@each_mode
@pytest.mark.parametrize("content_type", ["text/event-stream", "text/html"])
def test_a_coding_that_was_not_asked_for_and_cannot_be_bounded_is_refused(mode: str, content_type: str) -> None:
    with Server(sends(head(200, content_type, content_encoding="br") + chunk(b"\x0b\x02\x80") + LAST_CHUNK)) as server:
        error = read(mode, server.url).error
    assert isinstance(error, UnexpectedResponse)
    assert "'br'" in str(error)
    assert error.body == b"\x0b\x02\x80"


@each_mode
def test_a_coding_that_was_asked_for_is_the_http_librarys_business(mode: str) -> None:
    """A name that it does not know, it passes on as it came."""
    answer = HELLO.head(content_encoding="own") + chunk(HELLO.body) + LAST_CHUNK
    with Server(sends(answer)) as server:
        seen = read(mode, server.url, headers={"Accept-Encoding": "own"})
    assert (seen.text, seen.error) == ("Hello world", None)


@each_mode
def test_compressed_text_without_its_own_end_is_truncated(mode: str) -> None:
    """Plain text has no other end than that of its framing, and gzip's is part of that."""
    packed = gzip.compress(b"Hello")[:-8]
    with Server(sends(head(200, "text/plain", content_encoding="gzip") + chunk(packed) + LAST_CHUNK)) as server:
        seen = read(mode, server.url, dialect="text")
    assert (seen.text, type(seen.error)) == ("Hello", TruncatedStream)


# ---- redirects ----------------------------------------------------------------------------------


def to(location: Callable[[], str], status: int = 307) -> Script:
    return lambda connection, request: connection.send(head(status, None, location=location(), content_length=0))


SECRETS = {"X-Api-Key": "1", "api-key": "2", "Authorization": "Bearer 3", "Cookie": "a=4", "X-Own": "5"}
SAFE = {"Accept-Language": "de", "User-Agent": "mine"}


@each_mode
@pytest.mark.parametrize(("method", "status"), [("GET", 307), ("GET", 302), ("POST", 303), ("POST", 307)])
def test_a_redirect_to_another_origin_carries_nothing_that_could_be_a_secret(
    mode: str, method: str, status: int
) -> None:
    with Server(to(lambda: "/here"), whole) as other, Server(to(lambda: other.url, status)) as server:
        options: dict[str, Any] = {"json": {"prompt": "secret"}} if status == 303 else {}
        assert read(mode, server.url, method, headers={**SECRETS, **SAFE}, **options).error is None
        assert len(other.requests) == 2
        for request in other.requests:
            assert not {name.lower() for name in SECRETS} & request.headers.keys()
            assert request.body == b""
            assert request.headers["streamguard"] == "v=1"
            assert request.headers["accept-language"] == "de"
            assert request.headers["user-agent"] == "mine"


@each_mode
@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("body", [{"json": {"prompt": "secret"}}, {"content": [b"secret"]}], ids=["sized", "chunked"])
def test_a_body_is_never_sent_to_another_origin(mode: str, status: int, body: dict[str, Any]) -> None:
    if "content" in body and mode != "sync":

        async def pieces() -> Any:
            yield b"secret"

        body = {"content": pieces()}

    def away(connection: Connection, request: Request) -> bool:
        connection.send(head(status, None, location=other.url, content_length=0))
        connection.wait_gone()
        return False

    with Server(whole) as other, Server(away) as server:
        error = read(mode, server.url, **body).error
        assert other.requests == []
    assert isinstance(error, UnexpectedResponse)
    assert error.status == status
    assert "another origin" in str(error)


@each_mode
def test_the_clients_own_choice_about_redirects_is_kept(mode: str) -> None:
    async def unfollowed(url: str) -> None:
        async with httpx.AsyncClient(verify=NO_TLS, follow_redirects=False) as client:
            async with stream("GET", url, client=client):
                pass

    with Server(to(lambda: "/elsewhere"), whole) as server:
        with pytest.raises(UnexpectedResponse, match="follow_redirects") as caught:
            if mode != "sync":
                anyio.run(unfollowed, server.url, backend=mode)
            else:
                with httpx.Client(verify=NO_TLS, follow_redirects=False) as client:
                    with stream_sync("GET", server.url, client=client):
                        pass
        assert caught.value.status == 307
        assert len(server.requests) == 1


def test_a_call_may_choose_otherwise_and_a_client_of_our_own_follows() -> None:
    with Server(to(lambda: "/elsewhere"), whole) as server, httpx.Client(verify=NO_TLS) as client:
        with stream_sync("GET", server.url, client=client, follow_redirects=True) as got:
            assert got.read() == "Hello world"
    with Server(to(lambda: "/elsewhere"), whole) as server, stream_sync("GET", server.url) as got:
        assert got.read() == "Hello world"


# ---- names that do not fit ------------------------------------------------------------------------

CUT = b'data: {"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}\n\n'


@each_mode
def test_plain_text_is_no_way_to_prove_the_end_of_another_carrier(mode: str) -> None:
    promise = HELLO.header.replace("dialect=native", "dialect=text")
    assert promise != HELLO.header
    for carrier in (Sse(), Ndjson(), Binary()):
        named = promise.replace("wire=sse", f"wire={carrier.name}")
        tries: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"streamguard": named}, {}),
            ({}, {"dialect": "text"}),
            ({}, {"dialect": Text()}),
        ]
        for headers, options in tries:
            with Server(sends(head(200, carrier.content_type, **headers) + chunk(CUT) + LAST_CHUNK)) as server:
                seen = read(mode, server.url, **options)
            assert isinstance(seen.error, UnexpectedResponse), (carrier, headers, options)
            assert "text" in str(seen.error)
            assert seen.frames == []


STREAMS: list[tuple[Dialect, tuple[Any, ...]]] = [
    (Native(), ("Hel", "lo", Finish("stop"))),
    (OpenAI(id="x", created=1), ("Hel", "lo", Finish("stop"))),
    (
        Raw(),
        (
            Event('{"choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":"stop"}]}'),
            Event("[DONE]"),
        ),
    ),
]


@pytest.mark.parametrize("asked", [None, "native", "openai", "raw", Raw(end="asgi")], ids=repr)
@pytest.mark.parametrize("wire", [Sse(ids="id"), Sse(ids="comment"), Ndjson(), Binary()], ids=repr)
@pytest.mark.parametrize(("dialect", "items"), STREAMS, ids=["native", "openai", "raw"])
def test_without_its_promise_a_stream_read_by_a_wrong_name_loses_no_text_in_silence(
    dialect: Dialect, items: tuple[Any, ...], wire: Wire, asked: Any
) -> None:
    body = made(*items, dialect=dialect, wire=wire)
    with Server(sends(head(200, body.content_type) + chunk(body.body) + LAST_CHUNK)) as server:
        seen = read("sync", server.url, dialect=asked)
    if seen.error is None:
        assert seen.text == "Hello"
    else:
        assert isinstance(seen.error, CorruptStream)
    if asked == dialect.name:
        assert seen.error is None
        assert seen.receipt is not None
        assert seen.receipt.verdict is Verdict.COMPLETE


@pytest.mark.parametrize("wire", [Ndjson(), Binary()], ids=repr)
@pytest.mark.parametrize("asked", ["openai", "raw"])
def test_native_text_where_a_providers_events_were_asked_for_is_corrupt_at_once(wire: Wire, asked: str) -> None:
    body = made("Hello", wire=wire)
    with Server(sends(head(200, body.content_type) + chunk(body.body) + LAST_CHUNK)) as server:
        seen = read("sync", server.url, dialect=asked)
    assert isinstance(seen.error, CorruptStream)
    assert (seen.error.code, seen.frames) == ("grammar", [])


def test_plain_text_is_still_read_where_it_was_promised() -> None:
    body = made("Hello", dialect=Text(), wire=Plain())
    with Server(sends(body.head() + chunk(body.body) + LAST_CHUNK)) as server:
        seen: Read = read("sync", server.url)
    assert (seen.text, seen.error) == ("Hello", None)


# ---- the wrong kind of `with` -----------------------------------------------------------------------


def test_the_wrong_kind_of_with_names_the_right_function() -> None:
    opening: Any = stream("GET", "http://nowhere")
    with pytest.raises(TypeError, match="stream_sync"):
        with opening:
            pass


def test_nothing_of_a_request_is_lost_on_the_way_within_one_origin() -> None:
    with Server(to(lambda: "/elsewhere"), whole) as server:
        with stream_sync("POST", server.url, json={"a": 1}, headers=SECRETS) as got:
            got.read()
        assert [json.loads(request.body) for request in server.requests] == [{"a": 1}] * 2
        assert [request.headers["x-api-key"] for request in server.requests] == ["1", "1"]
