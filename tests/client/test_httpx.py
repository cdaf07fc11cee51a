"""The client over real sockets, against a server that can break an answer anywhere, in every mode.

What a server does next waits for what the client did (an event that `on_frame` sets), so that no test
depends on how fast either is. Where a limit must pass, it is short, and the wait for it has no end.
"""

from __future__ import annotations

import gc
import gzip
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx
import pytest

import streamguard.client.httpx as driver
from streamguard.client import Answer, ReaderLimits, SyncAnswer, stream, stream_sync
from streamguard.core.dialect import Dialect, OpenAI, Raw, Text
from streamguard.core.errors import (
    ConnectLimitExceeded,
    CorruptStream,
    FailedStream,
    Failure,
    FirstByteLimitExceeded,
    FrameTooLarge,
    LivenessLimitExceeded,
    LocalProtocolError,
    StallLimitExceeded,
    StreamClosed,
    StreamGap,
    TruncatedStream,
    UnexpectedResponse,
)
from streamguard.core.items import Block, Event, Finish, tool_call
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Binary, Ndjson, Plain, Sse, Wire
from tests.client.reading import NO_TLS, Read, each_mode, read
from tests.client.server import (
    LAST_CHUNK,
    PATIENCE,
    SID,
    Connection,
    Made,
    Request,
    Script,
    Server,
    chunk,
    head,
    made,
)
from tests.ports import nobody

HELLO = made("Hello", " wor", "ld", Finish("stop", {"total_tokens": 3}))
LONG_AGO = ReaderLimits(connect=PATIENCE, first_byte=PATIENCE, liveness=PATIENCE)  # passes in no test


def answer(body: Made, *, until: int | None = None) -> Script:
    """The whole answer, or its head and the first `until` pushes of it, left open."""

    def script(connection: Connection, request: Request) -> bool:
        if until is None:
            connection.send(body.head() + chunk(body.body) + LAST_CHUNK)
            return True
        connection.send(body.head() + b"".join(map(chunk, [body.opening, *body.pushes[:until]])))
        connection.wait_gone()
        return False

    return script


def raw(data: bytes) -> Script:
    """Bytes, then FIN."""

    def script(connection: Connection, request: Request) -> bool:
        connection.send(data)
        connection.finish()
        connection.wait_gone()
        return False

    return script


def reading(mode: str, script: Script, **options: Any) -> Read:
    with Server(script) as server:
        return read(mode, server.url, **{"limits": LONG_AGO, **options})


# ---- good answers -------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("wire", [Sse(ids="id"), Sse(ids="comment"), Ndjson(), Binary()], ids=repr)
@pytest.mark.parametrize("dialect", [None, OpenAI(id="x", created=1)], ids=["native", "openai"])
def test_a_whole_answer_is_complete_in_every_carrier(mode: str, wire: Wire, dialect: Dialect | None) -> None:
    body = made("Hel", "lo \U0001f600\u2028", Finish("length", {"total_tokens": 2}), wire=wire, dialect=dialect)
    seen = reading(mode, answer(body))
    assert seen.error is None
    assert seen.again is None
    assert seen.text == seen.received == "Hello \U0001f600\u2028"
    assert seen.receipt is not None
    assert seen.receipt.verdict is Verdict.COMPLETE
    assert seen.receipt.finish_reason == "length"
    assert seen.receipt.usage == {"total_tokens": 2}
    assert str(seen.receipt) == f"COMPLETE, {seen.receipt.frames} frames, crc {seen.receipt.crc:08x}"
    assert seen.receipt.first_frame is not None


@each_mode
def test_an_answer_that_comes_byte_by_byte_is_the_same(mode: str) -> None:
    pieces = b"".join(chunk(HELLO.body[at : at + 1]) for at in range(len(HELLO.body)))
    seen = reading(mode, lambda connection, request: connection.send(HELLO.head() + pieces + LAST_CHUNK))
    assert (seen.text, seen.error) == ("Hello world", None)


@each_mode
@pytest.mark.parametrize(("missing", "error"), [(0, type(None)), (1, TruncatedStream)])
def test_a_compressed_answer_is_verified_after_decompression(mode: str, missing: int, error: type[Any]) -> None:
    compressed = gzip.compress(HELLO.body[: len(HELLO.body) - missing])
    body = HELLO.head(content_encoding="gzip") + chunk(compressed) + LAST_CHUNK
    seen = reading(mode, lambda connection, request: connection.send(body))
    assert (seen.text, type(seen.error)) == ("Hello world", error)


# Where httpx fails to decode, and where there is no connection to close, its own generators are left
# to the garbage collector, of which trio warns.
LEAVES_GENERATORS = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@LEAVES_GENERATORS
@each_mode
@pytest.mark.parametrize("damage", [lambda data: data[:-12], lambda data: data[:40] + b"\xff" * 40 + data[80:]])
def test_a_damaged_compressed_answer_is_truncated(mode: str, damage: Any) -> None:
    body = HELLO.head(content_encoding="gzip") + chunk(damage(gzip.compress(HELLO.body))) + LAST_CHUNK
    assert isinstance(reading(mode, lambda connection, request: connection.send(body)).error, TruncatedStream)


@each_mode
def test_an_answer_without_tokens_is_complete(mode: str) -> None:
    seen = reading(mode, answer(made()))
    assert (seen.text, seen.error, seen.frames) == ("", None, [])


BLOCKS = made("See ", Block("image", {"url": "a.png"}), "this", Block("tool_call", {"id": "1"}))


def test_text_blocks_and_the_whole() -> None:
    with Server(answer(BLOCKS)) as server:
        with stream_sync("GET", server.url) as got:
            assert isinstance(got, SyncAnswer)
            assert list(got.text()) == ["See ", "this"]
        with stream_sync("GET", server.url) as got:
            assert [block.type for block in got.blocks()] == ["image", "tool_call"]
            assert got.received == "See this"
        with stream_sync("GET", server.url) as got:
            assert next(got.text()) == "See "
            assert got.read() == "See this"
            assert got.read() == "See this"
            assert got.response.status_code == 200
        limits = ReaderLimits(max_received=4)
        with stream_sync("GET", server.url, limits=limits) as got, pytest.raises(LocalProtocolError):
            got.read()


@pytest.mark.anyio
async def test_text_blocks_and_the_whole_async() -> None:
    with Server(answer(BLOCKS)) as server:
        async with stream("GET", server.url) as got:
            assert isinstance(got, Answer)
            assert [text async for text in got.text()] == ["See ", "this"]
        async with stream("GET", server.url) as got:
            assert [block.type async for block in got.blocks()] == ["image", "tool_call"]
            assert got.received == "See this"
        async with stream("GET", server.url) as got:
            assert await got.text().__anext__() == "See "
            assert await got.read() == "See this"
            assert await got.read() == "See this"
            assert got.response.status_code == 200


# ---- answers that are cut -----------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("until", range(4))
def test_a_cut_stream_is_truncated_and_all_that_was_good_is_handed_out(mode: str, until: int) -> None:
    data = HELLO.opening + b"".join(HELLO.pushes[:until])
    cuts = {
        "an end in order": HELLO.head() + chunk(data) + LAST_CHUNK,
        "no final chunk": HELLO.head() + chunk(data),
        "inside a chunk": HELLO.head() + chunk(data + HELLO.ending)[: -len(HELLO.ending)],
        "short of its length": HELLO.head(content_length=len(HELLO.body)) + data,
        "no framing at all": HELLO.head(connection="close") + data,
    }
    for name, cut in cuts.items():
        seen = reading(mode, raw(cut))
        assert seen.text == "".join(["Hello", " wor", "ld"][:until]), name
        assert isinstance(seen.error, TruncatedStream), name
        assert seen.error.received == seen.text, name
        assert seen.error.cursor is not None
        assert seen.error.cursor.seq == until, name
        assert seen.again is seen.error, name
        broken = isinstance(seen.error.__cause__, httpx.RemoteProtocolError)
        assert broken is (name not in ("an end in order", "no framing at all")), name
        assert seen.receipt is not None
        assert seen.receipt.verdict is Verdict.TRUNCATED


@each_mode
def test_a_reset_connection_is_truncated(mode: str) -> None:
    got = threading.Event()

    def script(connection: Connection, request: Request) -> bool:
        connection.send(HELLO.head() + chunk(HELLO.opening + HELLO.pushes[0]))
        assert got.wait(PATIENCE)  # a reset takes along what its receiver has not read yet
        connection.reset()
        return False

    seen = reading(mode, script, on_frame=lambda frame: got.set())
    assert seen.text == "Hello"
    assert isinstance(seen.error, TruncatedStream)
    assert isinstance(seen.error.__cause__, httpx.ReadError)


@each_mode
def test_a_connection_that_ends_before_its_response_is_truncated(mode: str) -> None:
    for data in (b"", b"HTTP/1.1 200 OK\r\nContent-Ty"):
        seen = reading(mode, raw(data))
        assert isinstance(seen.error, TruncatedStream)
        assert isinstance(seen.error.__cause__, httpx.RemoteProtocolError)


@each_mode
def test_half_an_event_is_never_handed_out(mode: str) -> None:
    data = HELLO.opening + HELLO.pushes[0] + HELLO.pushes[1][:-2]
    for cut in (HELLO.head() + chunk(data), HELLO.head() + chunk(data) + LAST_CHUNK):
        seen = reading(mode, raw(cut))
        assert seen.text == "Hello"
        assert isinstance(seen.error, TruncatedStream)
        assert "unfinished" in seen.error.detail


@each_mode
def test_a_missing_last_line_end_is_truncated_unless_the_reader_is_lenient(mode: str) -> None:
    whole = HELLO.head() + chunk(HELLO.body[:-1]) + LAST_CHUNK
    strict = reading(mode, lambda connection, request: connection.send(whole))
    assert isinstance(strict.error, TruncatedStream)
    lenient = reading(mode, lambda connection, request: connection.send(whole), lenient=True)
    assert lenient.error is None
    assert lenient.receipt is not None
    assert lenient.receipt.usage == {"total_tokens": 3}


# ---- answers that are wrong -----------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize(
    ("order", "kind", "good"),
    [
        ((0, 2), StreamGap, "Hello"),
        ((0, 0), CorruptStream, "Hello"),
        ((1, 0), StreamGap, ""),
        ((0, 1, 0), CorruptStream, "Hello wor"),
    ],
)
def test_lost_doubled_and_swapped_frames_are_refused(
    mode: str, order: tuple[int, ...], kind: type[Exception], good: str
) -> None:
    data = HELLO.opening + b"".join(HELLO.pushes[at] for at in order) + HELLO.ending
    seen = reading(mode, raw(HELLO.head() + chunk(data) + LAST_CHUNK))
    assert (type(seen.error), seen.text) == (kind, good)
    assert seen.again is seen.error
    assert isinstance(seen.error, (StreamGap, CorruptStream))
    assert seen.error.received == good


@each_mode
def test_a_changed_byte_is_corrupt(mode: str) -> None:
    data = HELLO.body.replace(b'" wor"', b'" war"')
    seen = reading(mode, raw(HELLO.head() + chunk(data) + LAST_CHUNK))
    assert isinstance(seen.error, CorruptStream)
    assert (seen.error.code, seen.text) == ("checksum", "Hello")


@each_mode
def test_a_promised_guard_that_was_stripped_is_corrupt(mode: str) -> None:
    seen = reading(mode, raw(HELLO.head() + chunk(b'data: "Hello"\n\n') + LAST_CHUNK))
    assert isinstance(seen.error, CorruptStream)
    assert (seen.error.code, seen.text) == ("guard_stripped", "")


@each_mode
def test_a_corrupt_answer_is_left_at_once(mode: str) -> None:
    def script(connection: Connection, request: Request) -> bool:
        connection.send(HELLO.head() + chunk(HELLO.opening + HELLO.pushes[1]))
        connection.wait_gone()
        return False

    assert isinstance(reading(mode, script).error, StreamGap)


@each_mode
def test_a_failed_answer_is_failed_and_not_truncated(mode: str) -> None:
    body = made("Hel", failure=Failure("overloaded", "no room", retryable=True))
    for end in (LAST_CHUNK, b""):
        seen = reading(mode, raw(body.head() + chunk(body.body) + end))
        assert seen.text == "Hel"
        assert isinstance(seen.error, FailedStream)
        assert seen.error.failure == Failure("overloaded", "no room", retryable=True)
        assert seen.error.received == "Hel"


@each_mode
def test_a_frame_above_the_limit_is_refused_and_never_complete(mode: str) -> None:
    body = made("small", "large" * 100)
    seen = reading(mode, answer(body), max_frame=300)
    assert isinstance(seen.error, FrameTooLarge)
    assert (seen.error.limit, seen.text) == (300, "small")


@each_mode
def test_a_frame_after_the_terminal_is_refused(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LINGER", PATIENCE)
    got = threading.Event()

    def script(connection: Connection, request: Request) -> bool:
        connection.send(HELLO.head() + chunk(HELLO.body))
        assert got.wait(PATIENCE)
        connection.send(chunk(HELLO.pushes[0]))
        connection.wait_gone()
        return False

    seen = reading(mode, script, on_frame=lambda frame: got.set())
    assert isinstance(seen.error, CorruptStream)
    assert seen.text == "Hello world"


# ---- streams of others ----------------------------------------------------------------------------

CHUNK = 'data: {{"choices":[{{"index":0,"delta":{{"content":"{0}"}},"finish_reason":{1}}}]}}\n\n'
EVENTS = [CHUNK.format("Hel", "null"), CHUNK.format("lo", "null"), CHUNK.format("", '"stop"'), "data: [DONE]\n\n"]


@each_mode
@pytest.mark.parametrize(
    ("events", "verdict", "error"),
    [
        (EVENTS, Verdict.UNVERIFIED, None),
        (EVENTS[:3], Verdict.TRUNCATED, TruncatedStream),
        (EVENTS[:1], Verdict.TRUNCATED, TruncatedStream),
        ([*EVENTS[:2], EVENTS[3]], Verdict.FAILED, FailedStream),
        ([*EVENTS[:2], 'data: {"error":{"message":"out of memory"}}\n\n', EVENTS[3]], Verdict.FAILED, FailedStream),
    ],
)
def test_a_provider_stream_is_checked_by_its_own_end(
    mode: str, events: list[str], verdict: Verdict, error: type[Exception] | None
) -> None:
    body = head() + chunk("".join(events).encode()) + LAST_CHUNK
    seen = reading(mode, lambda connection, request: connection.send(body))
    assert type(seen.error) is (error or type(None))
    assert seen.receipt is not None
    assert seen.receipt.verdict is verdict
    assert seen.text == ("Hel" if len(events) == 1 else "Hello")


@each_mode
def test_a_profile_says_how_a_server_departs_from_its_api(mode: str) -> None:
    body = head() + chunk("".join(EVENTS[:3]).encode()) + LAST_CHUNK
    seen = reading(mode, lambda connection, request: connection.send(body), dialect=Raw(profile="transformers"))
    assert seen.error is None


@each_mode
def test_a_guarded_provider_stream_is_verified(mode: str) -> None:
    events = [Event(event.removeprefix("data: ").strip()) for event in EVENTS]
    seen = reading(mode, answer(made(*events, dialect=Raw())))
    assert (seen.text, seen.error) == ("Hello", None)
    assert seen.receipt is not None
    assert seen.receipt.verdict is Verdict.COMPLETE


@each_mode
def test_plain_text_is_read_if_asked_for_and_proved_by_its_framing_alone(mode: str) -> None:
    body = made("Hel", "lo", dialect=Text(), wire=Plain())
    whole = reading(mode, answer(body))
    assert (whole.text, whole.error) == ("Hello", None)
    assert whole.receipt is not None
    assert whole.receipt.proved_by == "framing"
    unasked = reading(mode, raw(head(200, "text/plain") + chunk(b"Internal error") + LAST_CHUNK))
    assert isinstance(unasked.error, UnexpectedResponse)
    for cut in (head(200, "text/plain") + chunk(b"Hel"), head(200, "text/plain", connection="close") + b"Hel"):
        seen = reading(mode, raw(cut), dialect="text")
        assert seen.text == "Hel"
        assert isinstance(seen.error, TruncatedStream)


# ---- answers that are no stream -------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (401, "text/html", b"<h1>Who are you?</h1>"),
        (200, "text/html", b"<h1>Please log in</h1>"),
        (200, "application/json", b'{"error": "no such model"}'),
        (400, "application/json", b'{"detail": "prompt is missing"}'),
        (429, None, b"slow down"),
        (503, "text/event-stream", b"data: {}\n\n"),
    ],
)
def test_an_answer_that_is_no_stream_raises_with_status_and_body(
    mode: str, status: int, content_type: str | None, body: bytes
) -> None:
    framed = head(status, content_type, content_length=len(body)) + body
    for data in (framed, head(status, content_type) + chunk(body)):
        seen = reading(mode, raw(data))
        assert isinstance(seen.error, UnexpectedResponse)
        assert (seen.error.status, seen.error.content_type, seen.error.body) == (status, content_type or "", body)
        assert str(status) in str(seen.error)


@each_mode
def test_an_answer_without_content_is_no_stream(mode: str) -> None:
    seen = reading(mode, lambda connection, request: connection.send(b"HTTP/1.1 204 No Content\r\n\r\n"))
    assert isinstance(seen.error, UnexpectedResponse)
    assert (seen.error.status, seen.error.body) == (204, b"")


@each_mode
def test_a_large_refusal_is_read_in_part(mode: str) -> None:
    def script(connection: Connection, request: Request) -> bool:
        try:
            connection.send(head(500, "text/html", content_length=100_000_000))
            while True:
                connection.send(b"x" * 100_000)
        except ConnectionError:
            connection.gone.set()
        return False

    seen = reading(mode, script)
    assert isinstance(seen.error, UnexpectedResponse)
    assert len(seen.error.body) == 65536


# ---- requests -------------------------------------------------------------------------------------


@each_mode
def test_a_request_asks_for_verification_and_never_for_a_resume(mode: str) -> None:
    with Server(answer(HELLO)) as server:
        read(mode, server.url, json={"prompt": "Hi"}, params={"a": "b"}, cookies=None)
        request = server.requests[0]
    assert (request.method, request.path, json.loads(request.body)) == ("POST", "/stream?a=b", {"prompt": "Hi"})
    assert request.headers["streamguard"] == "v=1"
    assert request.headers["accept"] == "text/event-stream, application/x-ndjson, application/vnd.streamguard.v1"
    assert request.headers["cache-control"] == "no-cache"
    assert "last-event-id" not in request.headers


@each_mode
def test_what_the_caller_set_stays(mode: str) -> None:
    own = {"Accept": "text/event-stream", "streamguard": "v=1, flush=token", "X-Own": "1"}
    extensions = {"note": "kept"}
    with Server(answer(HELLO)) as server:
        assert read(mode, server.url, headers=own, auth=("me", "secret"), extensions=extensions).error is None
        headers = server.requests[0].headers
    assert {name: headers[name.lower()] for name in own} == own
    assert headers["authorization"].startswith("Basic ")
    assert (own["Accept"], extensions) == ("text/event-stream", {"note": "kept"})


def test_what_the_client_set_stays() -> None:
    with Server(answer(HELLO)) as server, httpx.Client(headers={"Accept": "text/x-own"}) as client:
        with stream_sync("GET", server.url, client=client) as got:
            got.read()
        assert server.requests[0].headers["accept"] == "text/x-own"
        assert not client.is_closed


CURSOR = f"{SID}.3.20.0000abcd"


@each_mode
@pytest.mark.parametrize("options", [
    {"headers": {"last-event-id": CURSOR}}, {"headers": {"Last-Event-ID": f"x, {CURSOR}.complete"}},
    {"params": {"after": CURSOR}},
])  # fmt: skip
def test_a_request_that_begins_behind_a_cursor_is_refused_before_it_is_sent(
    mode: str, options: dict[str, Any]
) -> None:
    with Server(answer(HELLO)) as server:
        seen = read(mode, server.url, "GET", **options)
    assert type(seen.error) is LocalProtocolError
    assert "cannot begin behind a cursor: ask without" in str(seen.error)
    assert server.requests == []


@pytest.mark.parametrize("options", [
    {"headers": {"last-event-id": "17"}}, {"params": {"after": "17"}},
    {"headers": {"last-event-id": f"{SID}.0.0.00000000"}},
])  # fmt: skip
def test_a_place_in_anothers_stream_and_the_start_of_ours_are_asked_for(options: dict[str, Any]) -> None:
    with Server(answer(HELLO)) as server:
        assert read("sync", server.url, "GET", **options).text == "Hello world"


def test_an_unknown_dialect_fails_before_the_request() -> None:
    with Server(answer(HELLO)) as server:
        with pytest.raises(ValueError, match="unknown dialect"), stream_sync("GET", server.url, dialect="esperanto"):
            pass
        assert server.requests == []


@each_mode
def test_redirects_are_followed_and_end(mode: str) -> None:
    def again(connection: Connection, request: Request) -> None:
        connection.send(head(307, None, location=f"{request.path}x", content_length=0))

    with Server(again, again, answer(HELLO)) as server:
        seen = read(mode, server.url, json={"prompt": "Hi"})
        assert (seen.text, seen.error) == ("Hello world", None)
        assert [request.path for request in server.requests] == ["/stream", "/streamx", "/streamxx"]
        assert [json.loads(request.body) for request in server.requests] == [{"prompt": "Hi"}] * 3
        assert {request.headers["streamguard"] for request in server.requests} == {"v=1"}
    with Server(again) as server:
        seen = read(mode, server.url)
        assert isinstance(seen.error, UnexpectedResponse)
        assert "too many redirects" in str(seen.error)
        assert len(server.requests) == 21


@each_mode
def test_credentials_do_not_follow_a_redirect_to_another_origin(mode: str) -> None:
    def away(connection: Connection, request: Request) -> None:
        connection.send(head(307, None, location=other.url, content_length=0))

    def within(connection: Connection, request: Request) -> None:
        connection.send(head(307, None, location="/within", content_length=0))

    with Server(answer(HELLO)) as other, Server(within, away) as server:
        assert read(mode, server.url, auth=("me", "secret")).error is None
        assert ["authorization" in request.headers for request in server.requests] == [True, True]
        assert "authorization" not in other.requests[0].headers


# ---- limits ---------------------------------------------------------------------------------------


@each_mode
def test_no_response_is_the_first_byte_limit(mode: str) -> None:
    def script(connection: Connection, request: Request) -> bool:
        connection.wait_gone()
        return False

    seen = reading(mode, script, limits=ReaderLimits(first_byte=0.05))
    assert isinstance(seen.error, FirstByteLimitExceeded)
    assert seen.error.seconds == 0.05
    assert isinstance(seen.error.__cause__, httpx.ReadTimeout if mode == "sync" else type(None))


@each_mode
def test_silence_is_the_liveness_limit(mode: str) -> None:
    seen = reading(mode, answer(HELLO, until=1), limits=ReaderLimits(liveness=0.05))
    assert isinstance(seen.error, LivenessLimitExceeded)
    assert seen.text == seen.received == "Hello"
    assert seen.error.cursor is not None
    assert seen.error.cursor.seq == 1
    assert seen.again is seen.error


@each_mode
def test_heartbeats_without_frames_are_the_stall_limit(mode: str) -> None:
    def script(connection: Connection, request: Request) -> bool:
        connection.send(HELLO.head() + chunk(HELLO.opening + HELLO.pushes[0]))
        try:
            while not connection.gone.wait(0.01):
                connection.send(chunk(HELLO.heartbeat))
        except ConnectionError:
            connection.gone.set()
        return False

    # The heartbeats here are those of the first frame's cursor or later: a reader takes any.
    seen = reading(mode, script, limits=ReaderLimits(liveness=PATIENCE, stall=0.2))
    assert isinstance(seen.error, StallLimitExceeded)
    assert seen.text == "Hello"


@each_mode
def test_no_place_in_the_pool_is_the_connect_limit(mode: str) -> None:
    with Server(answer(HELLO, until=1)) as server:
        if mode == "sync":
            _full_pool_sync(server.url)
        else:
            anyio.run(_full_pool, server.url, backend=mode)


def _full_pool_sync(url: str) -> None:
    limits = ReaderLimits(connect=0.05)
    with httpx.Client(limits=httpx.Limits(max_connections=1)) as client, stream_sync("GET", url, client=client):
        with pytest.raises(ConnectLimitExceeded) as caught, stream_sync("GET", url, client=client, limits=limits):
            pass
        assert isinstance(caught.value.__cause__, httpx.PoolTimeout)


async def _full_pool(url: str) -> None:
    limits = ReaderLimits(connect=0.05)
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=1)) as client, stream("GET", url, client=client):
        with pytest.raises(ConnectLimitExceeded) as caught:
            async with stream("GET", url, client=client, limits=limits):
                pass
        assert isinstance(caught.value.__cause__, httpx.PoolTimeout)


def test_no_connection_in_time_is_the_connect_limit() -> None:
    def never(request: httpx.Request) -> httpx.Response:
        assert request.extensions["timeout"]["connect"] == 3
        raise httpx.ConnectTimeout("no answer")

    client = httpx.Client(transport=httpx.MockTransport(never))
    opening = stream_sync("GET", "http://nowhere", client=client, limits=ReaderLimits(connect=3))
    with client, pytest.raises(ConnectLimitExceeded), opening:
        pass


@each_mode
def test_no_server_is_an_error_of_httpx(mode: str) -> None:
    with nobody() as port:
        assert isinstance(read(mode, f"http://127.0.0.1:{port}/").error, httpx.ConnectError)


def test_each_part_of_a_request_has_its_own_limit_and_the_body_of_the_answer_another() -> None:
    limits = ReaderLimits(connect=11, first_byte=12, liveness=13)
    before: list[dict[str, float | None]] = []

    def note(request: httpx.Request) -> None:
        before.append(dict(request.extensions["timeout"]))

    client = httpx.Client(event_hooks={"request": [note]}, timeout=1)
    with Server(answer(HELLO)) as server, client, stream_sync("GET", server.url, client=client, limits=limits) as got:
        assert before == [{"connect": 11, "pool": 11, "write": 12, "read": 12}]
        assert got.response.request.extensions["timeout"]["read"] == 13
        got.read()


# ---- connections ------------------------------------------------------------------------------------


class Left(Exception):
    """Raised in the body of a test's context."""


def _leave_sync(how: str, url: str, client: httpx.Client | None) -> None:
    with stream_sync("POST", url, client=client) as got:
        if how == "nothing":
            return
        for text in got.text():
            assert text == "Hello"
            if how == "raise":
                raise Left
            break


async def _leave(how: str, url: str, client: httpx.AsyncClient | None) -> None:
    with anyio.CancelScope() as scope:
        async with stream("POST", url, client=client) as got:
            if how == "nothing":
                return
            async for text in got.text():
                assert text == "Hello"
                if how == "raise":
                    raise Left
                if how == "cancel":
                    scope.cancel()
                else:
                    break


@pytest.mark.parametrize("own", [True, False], ids=["own client", "given client"])
@pytest.mark.parametrize("how", ["nothing", "break", "raise"])
def test_all_sockets_are_closed_when_the_context_ends(how: str, own: bool) -> None:
    with Server(answer(HELLO, until=1)) as server, httpx.Client() as client:
        try:
            _leave_sync(how, server.url, None if own else client)
        except Left:
            assert how == "raise"
        server.wait_all_gone()
        gc.collect()


@pytest.mark.anyio
@pytest.mark.parametrize("own", [True, False], ids=["own client", "given client"])
@pytest.mark.parametrize("how", ["nothing", "break", "raise", "cancel"])
async def test_all_sockets_are_closed_when_the_context_ends_async(how: str, own: bool) -> None:
    """And no generator is left to the garbage collector: trio would warn, and a warning is an error here."""
    with Server(answer(HELLO, until=2)) as server:
        async with httpx.AsyncClient() as client:
            try:
                await _leave(how, server.url, None if own else client)
            except Left:
                assert how == "raise"
            await anyio.to_thread.run_sync(server.wait_all_gone)
            gc.collect()


@pytest.mark.anyio
async def test_a_cancelled_read_never_ends_as_if_in_order() -> None:
    body = made("Hello", dialect=Text(), wire=Plain())
    with Server(answer(body, until=1)) as server:
        async with stream("GET", server.url) as got:
            pieces = got.text()
            assert await pieces.__anext__() == "Hello"
            with anyio.move_on_after(0.05):
                await pieces.__anext__()
            with pytest.raises(StreamClosed):
                await got.read()


@each_mode
def test_an_answer_that_is_iterated_after_its_context_raises(mode: str) -> None:
    async def late(url: str) -> None:
        async with stream("GET", url) as got:
            pass
        with pytest.raises(StreamClosed, match=r"before its end: read it inside the `async with`$"):
            await got.read()

    with Server(answer(HELLO, until=1)) as server:
        if mode == "sync":
            with stream_sync("GET", server.url) as got:
                pass
            with pytest.raises(StreamClosed, match=r"before its end: read it inside the `with`$"):
                got.read()
        else:
            anyio.run(late, server.url, backend=mode)


async def _twice(url: str) -> list[type[BaseException] | None]:
    ends: list[type[BaseException] | None] = []
    async with httpx.AsyncClient() as client:
        for _ in range(2):
            try:
                async with stream("GET", url, client=client) as got:
                    await got.read()
                ends.append(None)
            except FailedStream as exc:
                ends.append(type(exc))
    return ends


def _twice_sync(url: str) -> list[type[BaseException] | None]:
    ends: list[type[BaseException] | None] = []
    with httpx.Client() as client:
        for _ in range(2):
            try:
                with stream_sync("GET", url, client=client) as got:
                    got.read()
                ends.append(None)
            except FailedStream as exc:
                ends.append(type(exc))
    return ends


def twice(mode: str, url: str) -> list[type[BaseException] | None]:
    """Two requests over one pool, and how they ended."""
    return _twice_sync(url) if mode == "sync" else anyio.run(_twice, url, backend=mode)


@each_mode
@pytest.mark.parametrize("failure", [None, Failure("overloaded", "no room")], ids=["complete", "failed"])
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_the_end_after_a_terminal_is_read_so_that_the_connection_serves_again(
    mode: str, failure: Failure | None, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it comes apart from the terminal: the server sends it when the client has read that."""
    monkeypatch.setattr(driver, "LINGER", PATIENCE)
    body = made("Hello", failure=failure)
    data = body.body if encoding == "identity" else gzip.compress(body.body)
    read_so_far = threading.Event()
    settled = driver.AnswerState.feed

    def feed(state: Any, data: bytes, began: float, now: float) -> None:
        settled(state, data, began, now)
        if state.needs == "end":
            read_so_far.set()

    monkeypatch.setattr(driver.AnswerState, "feed", feed)

    def script(connection: Connection, request: Request) -> None:
        read_so_far.clear()
        connection.send(body.head(content_encoding=encoding) + chunk(data))
        assert read_so_far.wait(PATIENCE)
        # After the end of what was compressed nothing is decoded, and nothing may be taken for a frame.
        connection.send((chunk(body.pushes[0]) if encoding == "gzip" else b"") + LAST_CHUNK)

    with Server(script) as server:
        assert twice(mode, server.url) == [FailedStream if failure else None] * 2
        assert len(server.connections) == 1


@each_mode
def test_a_server_that_does_not_end_is_not_waited_for(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LINGER", 0.02)

    def script(connection: Connection, request: Request) -> bool:
        connection.send(HELLO.head() + chunk(HELLO.body))
        connection.wait_gone()
        return False

    with Server(script) as server:
        assert twice(mode, server.url) == [None, None]
        assert len(server.connections) == 2
        server.wait_all_gone()


@each_mode
def test_a_server_that_goes_on_after_its_terminal_is_not_waited_for(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LINGER", 0.05)

    def script(connection: Connection, request: Request) -> bool:
        connection.send(HELLO.head() + chunk(HELLO.body))
        try:
            while not connection.gone.wait(0.005):
                connection.send(chunk(b"x\n"))  # an unknown field: nothing that a reader must refuse
        except ConnectionError:
            connection.gone.set()
        return False

    seen = reading(mode, script)
    assert (seen.text, seen.error) == ("Hello world", None)


# ---- transports without a connection -------------------------------------------------------------------


class _InPieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in memory, one push at a time."""

    def __iter__(self) -> Iterator[bytes]:
        yield from [HELLO.opening, *HELLO.pushes, HELLO.ending]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def in_memory(request: httpx.Request) -> httpx.Response:
    headers = {"Content-Type": HELLO.content_type, "Streamguard": HELLO.header}
    extensions = {"http_version": b"HTTP/2", "network_stream": None} if request.url.path == "/http2" else {}
    return httpx.Response(200, headers=headers, stream=_InPieces(), extensions=extensions)


@LEAVES_GENERATORS
@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/", "/http2"])
async def test_an_answer_is_read_from_memory_and_from_a_shared_connection(path: str) -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(in_memory)) as client:
        async with stream("GET", f"http://app{path}", client=client) as got:
            assert await got.read() == "Hello world"
            assert got.receipt.verdict is Verdict.COMPLETE
        async with stream("GET", f"http://app{path}", client=client) as got:
            async for text in got.text():
                assert text == "Hello"
                break
    sync_client = httpx.Client(transport=httpx.MockTransport(in_memory))
    with sync_client, stream_sync("GET", f"http://app{path}", client=sync_client) as sync_got:
        assert sync_got.read() == "Hello world"
        assert sync_got.receipt.verdict is Verdict.COMPLETE


# ---- an iteration never begins in mid answer ------------------------------------------------------

GONE = "text that was handed out already is not repeated: .*read"


def test_a_second_iteration_is_refused_and_never_looks_like_a_whole_answer() -> None:
    with Server(answer(HELLO)) as server:
        with stream_sync("GET", server.url) as got:
            assert list(got.text()) == ["Hello", " wor", "ld"]
            for again in (got.text(), got.frames(), got.blocks()):
                with pytest.raises(StreamClosed, match=GONE):
                    list(again)
            assert got.read() == got.received == "Hello world"
        with pytest.raises(StreamClosed, match=GONE):
            list(got.text())
        with stream_sync("GET", server.url) as got:
            first = got.text()
            assert next(first) == "Hello"
            with pytest.raises(StreamClosed, match=GONE):
                next(got.text())
            assert list(first) == [" wor", "ld"]  # the one that was begun goes on
        with stream_sync("GET", server.url) as got:
            first = got.text()
            next(first)
            assert got.read() == "Hello world"
            with pytest.raises(StreamClosed, match=GONE):  # what `read` took is missing here
                next(first)


@pytest.mark.anyio
async def test_a_second_iteration_is_refused_async() -> None:
    with Server(answer(HELLO)) as server:
        async with stream("GET", server.url) as got:
            assert [text async for text in got.text()] == ["Hello", " wor", "ld"]
            with pytest.raises(StreamClosed, match=GONE):
                await got.text().__anext__()
            assert await got.read() == "Hello world"
        async with stream("GET", server.url) as got:
            first = got.frames()
            await first.__anext__()
            with pytest.raises(StreamClosed, match=GONE):
                await got.text().__anext__()
            assert [frame.text async for frame in first] == [" wor", "ld"]


@each_mode
def test_a_second_iteration_of_an_answer_that_failed_raises_what_the_first_did(mode: str) -> None:
    def sync(url: str) -> None:
        with stream_sync("GET", url) as got:
            for _ in range(2):
                with pytest.raises(FailedStream):
                    list(got.text())

    async def asynchronous(url: str) -> None:
        async with stream("GET", url) as got:
            for _ in range(2):
                with pytest.raises(FailedStream):
                    [text async for text in got.text()]

    failed = made("Hello", failure=Failure("overloaded", "later"))
    with Server(answer(failed)) as server:
        if mode == "sync":
            sync(server.url)
        else:
            anyio.run(asynchronous, server.url, backend=mode)


def test_an_answer_without_a_frame_may_be_iterated_again() -> None:
    with Server(answer(made())) as server, stream_sync("GET", server.url) as got:
        assert list(got.text()) == list(got.text()) == []


# ---- a server that does not guard -----------------------------------------------------------------


@each_mode
def test_an_endpoint_that_nobody_guarded_is_named_as_that(mode: str) -> None:
    body = head() + chunk(b'data: "Hello"\n\ndata: "world"\n\n') + LAST_CHUNK
    seen = reading(mode, raw(body))
    assert isinstance(seen.error, TruncatedStream)
    assert "no Streamguard header): is @guarded on its endpoint?" in str(seen.error)
    assert "dialect=" in str(seen.error)
    assert seen.again is seen.error


# ---- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limits": 5}, r"limits is a ReaderLimits, for example ReaderLimits\(first_byte=30\), not 5$"),
        ({"limits": {"stall": 5}}, r"limits is a ReaderLimits, .*, not \{'stall': 5\}$"),
        ({"limits": ReaderLimits}, r"limits is a ReaderLimits, .*, not the class ReaderLimits$"),
        ({"resume": 3}, r"resume is True, False or ResumePolicy\(attempts=5\), not 3$"),
        ({"max_frame": "1"}, r"max_frame is a whole number of at least 1, not '1'$"),
        ({"dialect": OpenAI}, r"dialect is the class OpenAI: give an instance, OpenAI\(\)$"),
        ({"jsn": {}}, "unknown option 'jsn': did you mean 'json'? "),
        ({"http_client": None}, "unknown option 'http_client': did you mean 'client'? "),
        ({"wire": "sse"}, "unknown option 'wire': the server's answer says which carrier it is; "),
        ({"timeout": 5}, r"unknown option 'timeout': write limits=ReaderLimits\(stall=…\); "),
        ({"liveness": 5}, r"unknown option 'liveness': write limits=ReaderLimits\(liveness=…\); "),
        (
            {"zzz": 5},
            "unknown option 'zzz'; its own are client, dialect, lenient, limits, max_frame, resume, credit; to httpx ",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.anyio
async def test_a_wrong_argument_is_refused_before_a_request(options: dict[str, Any], said: str) -> None:
    pattern = "^" + said.replace("? ", r"\? ")
    with pytest.raises(TypeError, match=pattern):
        async with stream("GET", "http://127.0.0.1:1/", **options):
            pass
    with pytest.raises(TypeError, match=pattern), stream_sync("GET", "http://127.0.0.1:1/", **options):
        pass


@pytest.mark.anyio
async def test_the_wrong_kind_of_client_is_told_the_right_one() -> None:
    wrong: Any
    for wrong in (httpx.Client(verify=NO_TLS), httpx.AsyncClient, "client"):
        with pytest.raises(TypeError, match=r"^`stream` needs an httpx\.AsyncClient as its client, not "):
            async with stream("GET", "http://127.0.0.1:1/", client=wrong):
                pass
    for wrong in (httpx.AsyncClient(verify=NO_TLS), httpx.Client, "client"):
        with pytest.raises(TypeError, match=r"^`stream_sync` needs an httpx\.Client as its client, not "):
            with stream_sync("GET", "http://127.0.0.1:1/", client=wrong):
                pass


def test_a_frame_may_make_several_blocks_whole() -> None:
    calls = [tool_call("a", "f", "{}"), tool_call("b", "g", "{}")]
    thought = Block("reasoning", {"text": "so"})
    body = made(thought, *calls, dialect=OpenAI())
    with Server(answer(body)) as server:
        with stream_sync("GET", server.url) as got:
            assert list(got.blocks()) == [thought, *calls]
        with stream_sync("GET", server.url) as got:
            blocks = got.blocks()
            assert [next(blocks), next(blocks)] == [thought, calls[0]]
            assert got.read() == ""

        async def main() -> None:
            async with stream("GET", server.url) as got:
                assert [block async for block in got.blocks()] == [thought, *calls]

        anyio.run(main)
