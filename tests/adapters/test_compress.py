"""Compressed answers over sockets: who gets one, that each token can be read as it comes, and how one ends."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import attrs
import pytest
from starlette.middleware.gzip import GZipMiddleware

from streamguard import Gzip
from streamguard.adapters.asgi import GuardedAnswer, SealMiddleware
from streamguard.client import ResumePolicy, stream, stream_sync
from streamguard.core.errors import FailedStream, FrameTooLarge, SourceFailed, TruncatedStream
from streamguard.core.negotiate import Answer, parse_answer
from streamguard.core.receipt import Verdict
from streamguard.core.verify import StreamVerifier
from streamguard.runtime.timing import Timing
from streamguard.testing.proxy import HEAD, Plan, RandomCut
from tests.absence import absent
from tests.adapters.asgi_apps import Ends, Response, answering, exchange, tokens, unchunked
from tests.adapters.logged_apps import SSE, Site, cursors, reading, sid_of, text_of
from tests.adapters.servers import DEADLINE, Connection, Gate, serving
from tests.asking import http
from tests.client.reading import MODES, read_through

ASK: dict[str, Any] = {"streamguard": "v=1, compress=gzip", "accept_encoding": "gzip"}
HEADERS = {"Streamguard": "v=1, compress=gzip", "Accept-Encoding": "gzip"}
OURS = {"Accept-Encoding": "gzip"}  # our client asks for the key by itself


def promise(response: Response) -> Answer:
    found = parse_answer(response.header("streamguard"))
    assert found is not None
    return found


def opened(response: Response) -> Response:
    """The answer with its body decompressed; `clean` only if the body has its trailer, too."""
    assert response.header("content-encoding") == "gzip"
    decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
    body = decoder.decompress(response.body)
    assert not decoder.unused_data
    return attrs.evolve(response, body=body, clean=response.clean and decoder.eof)


class Unpacking:
    """What can be read of a compressed body that is not over."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def until(self, mark: bytes) -> bytes:
        """Read until what can be decompressed holds `mark`."""
        while True:
            head, _, rest = self._connection.received.partition(b"\r\n\r\n")
            text = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(_joined(rest)) if rest else b""
            if mark in text:
                return text
            piece = self._connection.socket.recv(65536)
            assert piece, (head, text)
            self._connection.received += piece


def _joined(chunks: bytes) -> bytes:
    """The whole chunks of a chunked body that is not over."""
    body = b""
    while chunks:
        size, found, rest = chunks.partition(b"\r\n")
        if not found or len(rest) < int(size, 16):
            break
        body, chunks = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


# ---- who gets one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "logged"])
@pytest.mark.parametrize(
    ("asking", "path"),
    [
        (ASK, ""),
        ({**ASK, "accept_encoding": "br, *;q=0.1"}, ""),
        ({**SSE, "accept_encoding": "gzip, deflate, br"}, "?sg=v%3D1%2Ccompress%3Dgzip"),
    ],
    ids=["header", "any coding", "EventSource"],
)
def test_who_asks_twice_gets_it_and_is_told(asking: dict[str, Any], path: str, direct: bool) -> None:
    app, at = (answering(tokens, compress="gzip"), "/") if direct else (Site("t0 ", compress="gzip").app, "/tokens")
    with serving(app) as server:
        answer = exchange(server.connect(), path=at + path, **asking)
    assert promise(answer).compress == "gzip"
    assert answer.header("vary") == "Origin, Streamguard, Last-Event-ID, Accept-Encoding"
    found = opened(answer)
    assert found.verdict is Verdict.COMPLETE
    assert found.clean


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "logged"])
@pytest.mark.parametrize(
    ("offered", "asking"),
    [
        (None, ASK),
        ("gzip", {}),
        ("gzip", {"accept_encoding": "gzip"}),
        ("gzip", {"streamguard": "v=1", "accept_encoding": "gzip"}),
        ("gzip", {"streamguard": "v=1, compress=gzip"}),
        ("gzip", {"streamguard": "v=1, compress=gzip", "accept_encoding": "gzip;q=0"}),
        ("gzip", {"streamguard": "v=1, compress=br", "accept_encoding": "gzip, br"}),
        ("gzip", {"streamguard": "v=1, compress=?1", "accept_encoding": "gzip"}),
        ("gzip", {"streamguard": "v=2, compress=gzip", "accept_encoding": "gzip"}),
    ],
    ids=["not offered", "nothing", "no key", "other keys", "no coding", "not gzip", "br", "malformed", "version 2"],
)
def test_who_does_not_ask_twice_or_is_not_offered_it_gets_none(
    offered: Any, asking: dict[str, Any], direct: bool
) -> None:
    app, path = (answering(tokens, compress=offered), "/") if direct else (Site("t0 ", compress=offered).app, "/tokens")
    with serving(app) as server:
        answer = exchange(server.connect(), path=path, **asking)
    assert answer.header("content-encoding") is None
    assert promise(answer).compress is None
    assert answer.verdict is Verdict.COMPLETE
    assert ("Accept-Encoding" in (answer.header("vary") or "")) is (offered is not None)


def test_a_confidential_stream_is_never_compressed() -> None:
    site = Site("t0 ", confidential=True, compress="gzip")
    with serving(site.app) as server:
        answer = exchange(server.connect(), path="/tokens", **ASK)
        again = exchange(server.connect(), path="/streams", streamguard_stream=sid_of(answer), **ASK)
        head = exchange(server.connect(), "HEAD", "/streams", streamguard_stream=sid_of(answer), **ASK)
    for found in (answer, again):
        assert (promise(found).compress, found.verdict) == (None, Verdict.COMPLETE)
    assert {found.header("content-encoding") for found in (answer, again, head)} == {"identity"}


def test_head_says_what_get_would_do() -> None:
    site = Site("t0 ", compress="gzip")
    with serving(answering(tokens, compress="gzip")) as direct, serving(site.app) as logged:
        sid = sid_of(exchange(logged.connect(), path="/tokens"))
        heads = [
            exchange(direct.connect(), "HEAD", **ASK),
            exchange(logged.connect(), "HEAD", "/streams", streamguard_stream=sid, **ASK),
        ]
    assert [(head.header("content-encoding"), head.body) for head in heads] == [("gzip", b"")] * 2


@pytest.mark.parametrize("coding", ["identity", "br"])
def test_a_body_that_the_application_names_a_coding_of_is_left_alone(coding: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await GuardedAnswer(tokens(), headers=[("Content-Encoding", coding)], compress="gzip")(scope, receive, send)

    with serving(app) as server:
        answer = exchange(server.connect(), **ASK)
    assert (answer.header("content-encoding"), promise(answer).compress) == (coding, None)
    assert answer.verdict is Verdict.COMPLETE


@pytest.mark.parametrize("asking", [ASK, {"accept_encoding": "gzip"}], ids=["ours", "theirs"])
def test_no_body_is_compressed_twice(asking: dict[str, Any]) -> None:
    site = Site("t0 ", compress="gzip", wire="ndjson")  # server-sent events are none of that layer's
    site.app.add_middleware(GZipMiddleware, minimum_size=1)
    with serving(site.app) as server:
        answer = exchange(server.connect(), path="/tokens", **asking)
    assert (opened(answer).body.splitlines()[0][:7], answer.header("content-encoding")) == (b'{"open"', "gzip")


def test_a_refusal_is_not_compressed() -> None:
    at = "AAAAAAAAAAAAAAAAAAAAAA.3.21.0badcafe"
    with serving(answering(tokens, compress="gzip")) as server:
        refused = exchange(server.connect(), last_event_id=at, **ASK)
    assert (refused.status, refused.header("content-encoding")) == (404, None)
    assert b'"code":"unknown_stream"' in refused.body


# ---- each token as it comes --------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [("h11", "asyncio"), ("httptools", "uvloop")], ids="+".join)
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "logged"])
def test_a_token_can_be_read_before_the_next_is_made(direct: bool, stack: tuple[str, str]) -> None:
    missing = [tool for tool in stack if tool != "asyncio" and absent(tool)]
    if missing:
        pytest.skip(f"absent: {missing} (install it with: pip install {' '.join(missing)})")
    gates = [Gate() for _ in range(4)]
    site = Site("t0 ", gates[0], "t1 ", gates[1], "t2 ", gates[2], "t3 ", gates[3], compress="gzip")
    app, path = (answering(site.source, compress="gzip"), "/") if direct else (site.app, "/tokens")
    with serving(app, http=stack[0], loop=stack[1]) as server, reading(server, path, **ASK) as connection:
        body = Unpacking(connection)
        body.until(b": streamguard 1 ")
        for number, gate in enumerate(gates):
            assert b't%d "' % (number + 1) not in body.until(b'data: "t%d "\n\n' % number)
            gate.open()
        assert b'"status":"complete"' in body.until(b"event: end")


def test_a_heartbeat_can_be_read_as_it_comes() -> None:
    gate = Gate()
    site = Site("t0 ", gate)
    app = answering(site.source, compress="gzip", timing=Timing(heartbeat=0.02))
    with serving(app) as server, reading(server, "/", **ASK) as connection:
        text = Unpacking(connection).until(b": hb ")
        gate.open()
    assert text.rstrip(b"\n").rpartition(b"\n")[2].startswith(b": hb ")


def test_the_first_bytes_wait_for_nothing() -> None:
    """The opening is flushed, too: who waits for a slow model knows that the stream is there."""
    gate = Gate()
    with serving(answering(Site(gate, "t0 ").source, compress="gzip")) as server:
        with reading(server, "/", **ASK) as connection:
            assert b"event: open" in Unpacking(connection).until(b"\n\n")
            gate.open()


# ---- how it ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "logged"])
def test_a_stream_that_failed_has_its_terminal_and_no_trailer(direct: bool) -> None:
    script = ["t0 ", RuntimeError("broke")]
    options: dict[str, Any] = {"compress": "gzip", "timing": Timing(linger=0.01)}
    site = Site(*script, **options)
    app, path = (answering(site.source, **options), "/") if direct else (site.app, "/tokens")
    with serving(app) as server:
        answer = exchange(server.connect(), path=path, **ASK)
    decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
    assert b'"status":"failed"' in decoder.decompress(answer.body)
    assert (answer.clean, decoder.eof) == (False, False)


def test_a_failure_that_may_end_cleanly_has_its_trailer() -> None:
    options: dict[str, Any] = {"abort": "unless-negotiated", "timing": Timing(linger=0.01)}
    app = answering(Site("t0 ", RuntimeError("broke")).source, compress="gzip", **options)
    with serving(app) as server:
        answer = opened(exchange(server.connect(), **ASK))
    assert (answer.clean, answer.verdict) == (True, Verdict.FAILED)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "logged"])
def test_a_failure_that_keeps_its_status_is_not_compressed_and_a_stream_that_waited_for_it_is(direct: bool) -> None:
    for script, status in ([[SourceFailed("full", "no room", retryable=True)], 503], [["t0 ", "t1 "], 200]):
        options: dict[str, Any] = {"compress": "gzip", "timing": Timing(peek=DEADLINE)}
        site = Site(*script, **options)
        app, path = (answering(site.source, **options), "/") if direct else (site.app, "/tokens")
        with serving(app) as server:
            answer = exchange(server.connect(), path=path, **ASK)
        assert answer.status == status
        if status == 200:
            assert text_of(opened(answer).body) == "t0 t1 "
        else:
            assert (answer.header("content-encoding"), b'"code":"full"' in answer.body) == (None, True)


def test_a_reader_whose_own_cancel_ends_the_stream_has_its_trailer() -> None:
    gate = Gate()
    site = Site("t0 ", gate, compress="gzip")
    with serving(site.app) as server, reading(server, **ASK, connection="close") as connection:
        Unpacking(connection).until(b't0 "')
        sid = sid_of(connection.received)
        assert exchange(server.connect(), "DELETE", "/streams", streamguard_stream=sid).status == 204
        body, clean = unchunked(connection.rest().partition(b"\r\n\r\n")[2])
        gate.open()
    assert b'"status":"cancelled"' in gzip.decompress(body)
    assert clean


def test_a_reader_that_is_replaced_is_told_goodbye_and_has_no_trailer() -> None:
    gate = Gate()
    site = Site("t0 ", gate, compress="gzip", max_readers=1)
    with serving(site.app) as server, reading(server, **ASK) as first:
        Unpacking(first).until(b't0 "')
        at = str(cursors(Unpacking(first).until(b't0 "'))[-1])
        with reading(server, "/streams", last_event_id=at, **ASK) as second:
            text = Unpacking(first).until(b"event: bye\n")
            gate.open()
            Unpacking(second).until(b'"status":"complete"')
        packed = _joined(first.rest().partition(b"\r\n\r\n")[2])
    assert b"event: end" not in text
    with pytest.raises(EOFError):
        gzip.decompress(packed)


def test_over_http_1_0_the_trailer_is_what_shows_a_whole_answer() -> None:
    bodies = []
    for script in (["t0 "], ["t0 ", RuntimeError("broke")]):
        app = answering(Site(*script).source, compress="gzip", timing=Timing(linger=0.01))
        with serving(app) as server, server.connect() as connection:
            connection.request("GET", "/", version="1.0", **ASK)
            bodies.append(connection.rest().partition(b"\r\n\r\n")[2])
    assert b'"status":"complete"' in gzip.decompress(bodies[0])
    with pytest.raises(EOFError):
        gzip.decompress(bodies[1])


def test_a_buffered_answer_has_the_length_of_its_compressed_body() -> None:
    app = answering(tokens, compress="gzip", http10="buffer")
    with serving(app) as server, server.connect() as connection:
        connection.request("GET", "/", version="1.0", **ASK)
        head, _, body = connection.rest().partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert b'"status":"complete"' in gzip.decompress(body)


def test_an_outcome_counts_what_was_sent() -> None:
    ends = Ends()
    with serving(answering(tokens, compress="gzip", on_end=ends)) as server:
        answer = exchange(server.connect(), **ASK)
    assert ends.wait().sent == len(answer.body)


# ---- a stream that is resumed ---------------------------------------------------------------------------


def test_a_resumed_stream_is_compressed_anew_for_who_asks_for_it_then() -> None:
    site = Site("t0 ", "t1 ", "t2 ", compress="gzip")
    with serving(site.app) as server:
        first = opened(exchange(server.connect(), path="/tokens", **ASK))
        at = next(str(cursor) for cursor in cursors(first.body) if cursor.seq == 1)
        packed = exchange(server.connect(), path="/streams", last_event_id=at, **ASK)
        plain = exchange(server.connect(), path="/streams", last_event_id=at, streamguard="v=1")
    assert text_of(opened(packed).body) == text_of(plain.body) == "t1 t2 "
    assert (plain.header("content-encoding"), promise(plain).compress) == (None, None)


def test_where_streams_are_resumed_may_compress_what_began_without() -> None:
    site = Site("t0 ", installed=False)
    site.guard.install(site.app, "/streams", compress=Gzip(level=1))
    with serving(site.app) as server:
        first = exchange(server.connect(), path="/tokens", **ASK)
        again = exchange(server.connect(), path="/streams", streamguard_stream=sid_of(first), **ASK)
    assert promise(first).compress is None
    assert text_of(opened(again).body) == "t0 "


# ---- libraries ----------------------------------------------------------------------------------------


def served(**options: Any) -> Any:
    return SealMiddleware(answering(lambda: tokens(50), compress="gzip", **options))


TEXT = "".join(f"t{number} " for number in range(50))


def verified(body: bytes) -> str:
    verifier = StreamVerifier()
    verifier.feed(body)
    verifier.end(clean=True)
    assert verifier.verdict is Verdict.COMPLETE
    return text_of(body)


def test_httpx_reads_it() -> None:
    with serving(served()) as server:
        response = http.get(server.url, headers=HEADERS)
    assert (response.headers["content-encoding"], verified(response.content)) == ("gzip", TEXT)


@pytest.mark.skipif(absent("curl"), reason="absent: curl (install it with: apt-get install curl)")
def test_curl_reads_it() -> None:
    with serving(served()) as server:
        command = ["curl", "-sS", "--compressed", "-H", "Streamguard: v=1, compress=gzip", server.url]
        done = subprocess.run(command, check=True, capture_output=True, timeout=30)
    assert verified(done.stdout) == TEXT


def test_aiohttp_reads_it() -> None:
    async def read(url: str) -> tuple[str, bytes]:
        async with aiohttp.ClientSession() as session, session.get(url, headers=HEADERS) as response:
            return response.headers["Content-Encoding"], await response.read()

    with serving(served()) as server:
        coding, body = asyncio.run(read(server.url))
    assert (coding, verified(body)) == ("gzip", TEXT)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "logged"])
def test_our_client_asks_by_one_header_and_verifies(direct: bool) -> None:
    site = Site(*[f"t{number} " for number in range(50)], compress="gzip")
    app, path = (served(), "/") if direct else (site.app, "/tokens")
    with serving(app) as server:
        with stream_sync("GET", server.url + path, headers=OURS) as answer:
            assert "".join(answer.text()) == TEXT
        with stream_sync("GET", server.url + path) as plain:
            plain.read()
    assert answer.response.headers["content-encoding"] == "gzip"
    assert answer.receipt.verdict is Verdict.COMPLETE
    assert "content-encoding" not in plain.response.headers


@pytest.mark.anyio
async def test_our_client_has_each_token_as_it_comes() -> None:
    gate = Gate()
    site = Site("t0 ", gate, "t1 ")
    with serving(answering(site.source, compress="gzip")) as server:
        async with stream("GET", server.url, headers=OURS) as answer:
            had = []
            async for text in answer.text():
                had.append(text)
                gate.open()
    assert had == ["t0 ", "t1 "]


def test_our_client_is_told_of_a_failure() -> None:
    app = answering(Site("t0 ", RuntimeError("broke")).source, compress="gzip", timing=Timing(linger=0.01))
    with serving(app) as server, stream_sync("GET", server.url, headers=OURS) as answer:
        with pytest.raises(FailedStream) as caught:
            answer.read()
    assert caught.value.received == "t0 "


def test_text_that_a_layer_cut_and_ended_cleanly_is_seen_to_lack_its_trailer() -> None:
    """Plain text has no terminal: its end is that of its bytes, which only the trailer vouches for here."""

    async def cut(scope: Any, receive: Any, send: Any) -> None:
        parts = 0

        async def first_two(message: Any) -> None:
            nonlocal parts
            if message["type"] == "http.response.start":
                await send(message)
                return
            parts += 1
            if parts <= 3:
                await send({**message, "more_body": parts < 3, "body": message["body"] if parts < 3 else b""})

        await GuardedAnswer(tokens(), dialect="text", compress="gzip")(scope, receive, first_two)

    with serving(cut) as server:
        raw = exchange(server.connect(), **ASK)
        with stream_sync("GET", server.url, headers=OURS, dialect="text") as answer:
            with pytest.raises(TruncatedStream) as caught:
                answer.read()
    assert (raw.clean, opened(raw).clean, opened(raw).body) == (True, False, b"t0 t1 ")
    assert caught.value.received == "t0 t1 "


@pytest.mark.parametrize("mode", MODES)
def test_a_compressed_stream_that_is_cut_at_random_bytes_is_read_whole(mode: str) -> None:
    site = Site(*[f"t{number} " for number in range(50)], compress="gzip")
    with serving(site.app) as server:
        size = len(exchange(server.connect(), path="/tokens", **ASK).body)
        cuts = RandomCut(seed=1, low=0, high=size // 6, base=Plan(after=HEAD))
        policy = ResumePolicy(attempts=5, base=0.0, max_wait=0.0)
        seen, proxy = read_through(
            mode, server.port, "/tokens", lambda index: cuts(index) if index < 5 else Plan(), "GET",
            headers=OURS, resume=policy,
        )  # fmt: skip
    assert seen.error is None
    assert (seen.text, proxy.connections) == (TEXT, 6)
    assert seen.receipt is not None
    assert (seen.receipt.verdict, seen.receipt.duplicates) == (Verdict.COMPLETE, 0)


def test_a_bomb_is_held_to_our_clients_limits() -> None:
    """8 MiB of one character in a frame are 8 kB on the wire."""

    async def bomb() -> AsyncIterator[str]:
        yield "0" * (8 * 1024 * 1024)

    ends = Ends()
    with serving(answering(bomb, compress=Gzip(window=15), on_end=ends)) as server:
        with stream_sync("GET", server.url, headers=OURS, max_frame=64 * 1024) as answer:
            with pytest.raises(FrameTooLarge):
                answer.read()
