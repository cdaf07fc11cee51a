"""A resume over real sockets: what is sent, to whom, and how it ends, in every mode of the client.

Behind `Server` every byte is the test's own. Behind uvicorn and a proxy that cuts at random bytes it is the
library's own server that goes on, over each carrier.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.to_thread
import attrs
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as Asked
from starlette.routing import Route

from streamguard.adapters.starlette import StreamGuard
from streamguard.app import anyone_with_the_id
from streamguard.client import ReaderLimits, ResumePolicy, stream, stream_sync
from streamguard.core.cursor import cursor_zero
from streamguard.core.errors import (
    FirstByteLimitExceeded,
    LivenessLimitExceeded,
    StreamClosed,
    StreamGap,
    TruncatedStream,
    UnexpectedResponse,
)
from streamguard.core.negotiate import Answer, write_answer
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Ndjson, Sse
from streamguard.log.memory import MemoryLog
from streamguard.testing.proxy import HEAD, End, Plan, RandomCut
from tests.adapters.servers import serving
from tests.client.reading import MODES, NO_TLS, Read, each_mode, read, read_through
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

HELLO = made("Hello", " wor", "ld")
NOW = ResumePolicy(attempts=2, base=0.0, max_wait=0.0)  # whatever the server wishes
LATER = ResumePolicy(base=1e6, max_wait=1e6)  # in no test
LONG_AGO = ReaderLimits(connect=PATIENCE, first_byte=PATIENCE, liveness=PATIENCE)  # passes in no test


class Watched(Server):
    """A server that knows when its client was handed a frame."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(*scripts)
        self.read = threading.Event()


def head_of(body: Made, resume: str | None, **headers: str | int) -> bytes:
    wire = {"application/x-ndjson": "ndjson"}.get(body.content_type, "sse")
    promise = write_answer(Answer(cursor_zero(SID), "native", wire, resume=resume))
    return head(200, body.content_type, streamguard=promise, **headers)


def cut_after(frames: int, *, reset: bool = False, resume: str | None = "/streams", **headers: str | int) -> Script:
    """An answer that ends after so many frames, by FIN or by RST once the client has them."""

    def script(connection: Connection, request: Request) -> bool:
        connection.send(head_of(HELLO, resume, **headers))
        connection.send(b"".join(map(chunk, [HELLO.opening, *HELLO.pushes[:frames]])))
        if reset:
            assert isinstance(connection.server, Watched)
            assert connection.server.read.wait(PATIENCE)
            connection.reset()
            return False
        connection.finish()
        connection.wait_gone()
        return False

    return script


def rest_from(frame: int, body: Made = HELLO, resume: str | None = "/streams") -> Script:
    """The rest of the stream, from the frame of that index on."""

    def script(connection: Connection, request: Request) -> bool:
        pieces = [body.opening, *body.pushes[frame:], body.ending]
        connection.send(head_of(body, resume) + b"".join(map(chunk, pieces)) + LAST_CHUNK)
        return True

    return script


def saying(status: int, body: bytes = b"", **headers: str | int) -> Script:
    def script(connection: Connection, request: Request) -> bool:
        connection.send(head(status, "application/problem+json", content_length=len(body), **headers) + body)
        return True

    return script


def hanging(connection: Connection, request: Request) -> bool:
    connection.wait_gone()
    return False


@contextmanager
def server_of(*scripts: Script) -> Iterator[Watched]:
    server = Watched(*scripts)
    with server:
        yield server
        server.wait_all_gone()


def reading(mode: str, server: Watched, **options: Any) -> Read:
    options = {"limits": LONG_AGO, "resume": NOW, **options}
    return read(mode, server.url, on_frame=lambda frame: server.read.set(), **options)


def is_whole(seen: Read) -> bool:
    return (seen.text, seen.error, seen.again) == ("Hello world", None, None)


# ---- what is sent ---------------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize("reset", [False, True])
def test_a_post_that_was_cut_goes_on_by_a_get(mode: str, reset: bool) -> None:
    with server_of(cut_after(1, reset=reset), rest_from(1)) as server:
        seen = reading(mode, server, json={"prompt": "secret"}, headers={"X-Key": "k", "Accept-Language": "eo"})
    assert is_whole(seen)
    assert seen.receipt is not None
    assert (seen.receipt.verdict, seen.receipt.resumes) == (Verdict.COMPLETE, 1)
    assert str(seen.receipt).endswith(", 1 resume")
    post, get = server.requests
    assert (post.method, post.path, get.method, get.path) == ("POST", "/stream", "GET", "/streams")
    assert get.body == b""
    assert get.headers["last-event-id"].startswith(f"{SID}.1.")
    own = ["streamguard", "accept", "accept-encoding", "accept-language", "cache-control", "user-agent", "x-key"]
    assert {name: get.headers[name] for name in own} == {name: post.headers[name] for name in own}
    assert not [name for name in get.headers if name.startswith("content-")]


@each_mode
def test_a_stream_goes_on_as_often_as_it_is_cut(mode: str) -> None:
    with server_of(cut_after(0), cut_after(0), rest_from(0)) as server:
        seen = reading(mode, server)
    assert is_whole(seen)
    assert [request.headers.get("last-event-id") for request in server.requests[1:]] == [str(cursor_zero(SID))] * 2


@each_mode
def test_a_get_goes_on_at_its_own_address_where_it_is_told_to(mode: str) -> None:
    with server_of(cut_after(1, resume=None), rest_from(1, resume=None)) as server:
        seen = reading(mode, server, method="GET", params={"q": "1"}, resume=NOW)
    assert is_whole(seen)
    assert [request.path for request in server.requests] == ["/stream?q=1"] * 2


@each_mode
@pytest.mark.parametrize(
    ("method", "resume", "address"),
    [("POST", NOW, None), ("POST", True, "http://there.example/"), ("GET", None, None), ("GET", False, "/streams")],
)
def test_what_cannot_go_on_is_truncated_as_ever(mode: str, method: str, resume: Any, address: str | None) -> None:
    with server_of(cut_after(1, resume=address)) as server:
        seen = reading(mode, server, method=method, resume=resume)
    assert type(seen.error) is TruncatedStream
    assert len(server.requests) == 1
    assert seen.receipt is not None
    assert seen.receipt.resumes == 0


@each_mode
def test_cookies_and_credentials_go_along(mode: str) -> None:
    """Those that the answer set too: one of them may choose the worker."""
    with server_of(cut_after(1, set_cookie="worker=7"), rest_from(1)) as server:
        seen = reading(mode, server, auth=("ann", "secret"), cookies={"session": "s"})
    assert is_whole(seen)
    post, get = server.requests
    assert post.headers["cookie"] == "session=s"
    assert sorted(get.headers["cookie"].split("; ")) == ["session=s", "worker=7"]
    assert get.headers["authorization"] == post.headers["authorization"]


@each_mode
def test_a_cookie_that_the_caller_wrote_stays_as_it_is(mode: str) -> None:
    with server_of(cut_after(1, set_cookie="worker=7"), rest_from(1)) as server:
        seen = reading(mode, server, headers={"Cookie": "mine=1"})
    assert is_whole(seen)
    assert [request.headers["cookie"] for request in server.requests] == ["mine=1"] * 2


@each_mode
def test_of_one_request_alone_is_its_key(mode: str) -> None:
    headers = {"Idempotency-Key": "k" * 22, "Content-Type": "text/x", "If-Match": "x", "Range": "bytes=0-"}
    with server_of(cut_after(1), rest_from(1)) as server:
        seen = reading(mode, server, content=b"body", headers=headers)
    assert is_whole(seen)
    of_one = {"idempotency-key", "content-type", "content-length", "if-match", "range"}
    assert not of_one & server.requests[1].headers.keys()


@each_mode
def test_where_a_redirect_led_the_stream_goes_on_with_what_was_sent_there(mode: str) -> None:
    """Nothing that is secret went to the other origin, and nothing does when the stream goes on there."""
    with server_of(cut_after(1, set_cookie="worker=7"), rest_from(1)) as there:
        location = there.url.replace("127.0.0.1", "localhost")
        with server_of(saying(307, location=location)) as here:
            seen = reading(
                mode, here, auth=("ann", "secret"), cookies={"session": "s"}, headers={"X-Key": "k"}, resume=NOW
            )
    assert is_whole(seen)
    for request in there.requests:
        assert not {"authorization", "cookie", "x-key"} & request.headers.keys()
    assert there.requests[1].path == "/streams"
    assert there.requests[1].headers["host"] == there.requests[0].headers["host"]


@each_mode
def test_the_carrier_of_the_rest_may_be_another(mode: str) -> None:
    with server_of(cut_after(1), rest_from(1, made("Hello", " wor", "ld", wire=Ndjson()))) as server:
        assert is_whole(reading(mode, server))


# ---- what may come back ---------------------------------------------------------------------------


@each_mode
def test_a_stream_that_is_gone_is_a_gap(mode: str) -> None:
    with server_of(cut_after(1), saying(404, b'{"code": "unknown_stream"}')) as server:
        seen = reading(mode, server)
    assert seen.text == "Hello"
    assert isinstance(seen.error, StreamGap)
    assert (seen.error.code, seen.error.received) == ("unknown_stream", "Hello")
    assert seen.again is seen.error


@each_mode
def test_a_server_in_trouble_is_asked_again(mode: str) -> None:
    with server_of(cut_after(1), saying(503, b"x" * 5000), saying(429, retry_after=0), rest_from(1)) as server:
        seen = reading(mode, server, resume=attrs.evolve(NOW, attempts=3))
    assert is_whole(seen)
    assert len(server.requests) == 4


@each_mode
@pytest.mark.parametrize("status", [204, 302, 403])
def test_a_server_that_does_not_go_on_leaves_the_answer_truncated(mode: str, status: int) -> None:
    with server_of(cut_after(1), saying(status, location="/stream")) as server:
        seen = reading(mode, server)
    assert isinstance(seen.error, TruncatedStream)
    assert isinstance(seen.error.__cause__, UnexpectedResponse)
    assert seen.error.__cause__.status == status
    assert len(server.requests) == 2


@each_mode
@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (401, "text/html", b"<h1>Sign in</h1>"),
        (200, "text/html", b"<h1>Sign in</h1>"),
        (200, "application/json", b'{"error": {"message": "no quota is left"}}'),
    ],
)
def test_what_came_in_place_of_the_rest_is_in_the_error(mode: str, status: int, content_type: str, body: bytes) -> None:
    def other(connection: Connection, request: Request) -> bool:
        connection.send(head(status, content_type, content_length=len(body)) + body)
        return True

    with server_of(cut_after(1), other) as server:
        seen = reading(mode, server)
    assert isinstance(seen.error, TruncatedStream)
    cause = seen.error.__cause__
    assert isinstance(cause, UnexpectedResponse)
    assert (cause.status, cause.content_type, cause.body) == (status, content_type, body)
    assert (seen.text, len(server.requests)) == ("Hello", 2)


@each_mode
def test_the_limit_on_the_first_byte_is_each_attempts_own(mode: str) -> None:
    limits = attrs.evolve(LONG_AGO, first_byte=1.0)  # which the first answer keeps on a busy machine too
    with server_of(cut_after(1), hanging) as server:
        seen = reading(mode, server, limits=limits)
    assert isinstance(seen.error, TruncatedStream)
    assert isinstance(seen.error.__cause__, FirstByteLimitExceeded)
    assert "2 attempts" in str(seen.error)
    assert len(server.requests) == 3


@each_mode
def test_a_server_that_went_away_leaves_the_answer_truncated(mode: str) -> None:
    server = Watched()  # that listens, and serves one connection

    def serve() -> None:
        sock, _ = server._listener.accept()
        server._listener.close()
        sock.settimeout(PATIENCE)
        connection = Connection(server, sock)
        request = connection.request()
        assert request is not None
        cut_after(1)(connection, request)
        connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    seen = reading(mode, server)
    thread.join(PATIENCE)
    assert seen.text == "Hello"
    assert isinstance(seen.error, TruncatedStream)
    assert isinstance(seen.error.__cause__, httpx.ConnectError)


def silent(connection: Connection, request: Request) -> bool:
    """The first frame, and then nothing, in the middle of the next chunk."""
    connection.send(head_of(HELLO, "/streams") + chunk(HELLO.opening) + chunk(HELLO.pushes[0]) + b"5\r\nid")
    connection.wait_gone()
    return False


@each_mode
def test_a_silent_connection_is_left_for_another(mode: str) -> None:
    with server_of(silent, rest_from(1)) as server:
        seen = reading(mode, server, limits=attrs.evolve(LONG_AGO, liveness=0.05))
    assert is_whole(seen)
    with server_of(silent) as server:
        seen = reading(mode, server, limits=attrs.evolve(LONG_AGO, liveness=0.05))
    assert isinstance(seen.error, LivenessLimitExceeded)
    assert seen.text == "Hello"
    assert seen.receipt is not None
    assert (seen.receipt.resumes, seen.receipt.duplicates) == (2, 2)


def parting(connection: Connection, request: Request) -> bool:
    """The first frame and a bye, on a connection that stays open."""
    bye = Sse().encoder(cursor_zero(SID), own_ids=True).bye(cursor_zero(SID), "rotate")
    pieces = [HELLO.opening, HELLO.pushes[0], bye]
    connection.send(head_of(HELLO, "/streams") + b"".join(map(chunk, pieces)))
    connection.wait_gone()
    return False


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_no_connection_is_kept_through_a_wait(backend: str) -> None:
    async def main(server: Watched) -> None:
        client = httpx.AsyncClient(verify=NO_TLS)
        async with client, stream("POST", server.url, client=client, resume=LATER, limits=LONG_AGO) as answer:
            texts = answer.text()
            assert await texts.__anext__() == "Hello"
            async def go_on() -> None:
                await texts.__anext__()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(go_on)
                assert await anyio.to_thread.run_sync(server.connections[0].gone.wait, PATIENCE)
                tasks.cancel_scope.cancel()

    with server_of(parting) as server:
        anyio.run(main, server, backend=backend)


def test_without_a_loop_no_connection_is_kept_through_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with server_of(parting, rest_from(1)) as server, httpx.Client(verify=NO_TLS) as client:
        closed = []
        monkeypatch.setattr(
            "streamguard.client.httpx.sleep", lambda wait: closed.append(server.connections[0].gone.wait(PATIENCE))
        )
        with stream_sync("POST", server.url, client=client, resume=LATER, limits=LONG_AGO) as answer:
            assert answer.read() == "Hello world"
        assert closed == [True]


# ---- leaving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_wait_can_be_cancelled_and_everything_is_closed(backend: str) -> None:
    async def main(url: str) -> None:
        async with httpx.AsyncClient(verify=NO_TLS) as client:
            async with stream("POST", url, client=client, resume=LATER, limits=LONG_AGO) as answer:
                texts = answer.text()
                assert await texts.__anext__() == "Hello"
                with anyio.move_on_after(0.05) as scope:
                    await texts.__anext__()
                assert scope.cancelled_caught
                assert answer.received == "Hello"
            with pytest.raises(StreamClosed):
                await texts.__anext__()

    with server_of(cut_after(1)) as server:
        anyio.run(main, server.url, backend=backend)
        assert len(server.requests) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_answer_that_is_closed_by_another_task_asks_no_more(backend: str) -> None:
    async def main(url: str) -> None:
        client = httpx.AsyncClient(verify=NO_TLS)
        policy = ResumePolicy(base=0.0, max_wait=1.0)
        async with client, stream("POST", url, client=client, resume=policy, limits=LONG_AGO) as answer:
            texts = answer.text()
            assert await texts.__anext__() == "Hello"

            async def go_on() -> None:
                with pytest.raises(StreamClosed):
                    await texts.__anext__()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(go_on)
                while answer._state.attempt is None:  # noqa: ASYNC110  (nothing tells that it waits)
                    await anyio.sleep(0.001)
                await answer.aclose()

    with server_of(cut_after(1)) as server:
        anyio.run(main, server.url, backend=backend)
        assert len(server.requests) == 1


def test_a_wait_without_a_loop_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("streamguard.client.httpx.sleep", interrupt)
    with server_of(cut_after(1)) as server, httpx.Client(verify=NO_TLS) as client:
        with stream_sync("POST", server.url, client=client, resume=LATER) as answer:
            texts = answer.text()
            assert next(texts) == "Hello"
            with pytest.raises(KeyboardInterrupt):
                next(texts)
        with pytest.raises(StreamClosed):
            next(texts)
        assert len(server.requests) == 1


def test_without_a_loop_an_answer_closed_in_a_wait_asks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with server_of(cut_after(1)) as server, httpx.Client(verify=NO_TLS) as client:
        with stream_sync("POST", server.url, client=client, resume=LATER) as answer:
            monkeypatch.setattr("streamguard.client.httpx.sleep", lambda seconds: answer.close())
            texts = answer.text()
            assert next(texts) == "Hello"
            with pytest.raises(StreamClosed):
                next(texts)
        assert len(server.requests) == 1


# ---- the library's own server ---------------------------------------------------------------------

TOKENS = [f"tok{number} é\u2028\n " for number in range(80)]
TEXT = "".join(TOKENS)
CARRIERS = ["sse", "ndjson", "binary"]


class Site:
    """A resumable endpoint, and the endpoints to resume at. `starts` counts generations."""

    def __init__(self, wire: str, dialect: str, *, installed: bool = True) -> None:
        self.starts = 0
        guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

        @guard.stream(wire=wire, dialect=dialect)
        async def tokens(request: Asked) -> AsyncIterator[str]:
            self.starts += 1
            for token in TOKENS:
                yield token

        self.app = Starlette(routes=[Route("/stream", tokens, methods=["GET", "POST"])])
        if installed:
            guard.install(self.app, "/streams")


def size_of(url: str, method: str = "POST") -> int:
    """How many bytes the whole body has."""
    return len(httpx.request(method, url, headers={"Streamguard": "v=1"}, verify=NO_TLS).content)


def ten_cuts(seed: int, size: int, end: End) -> Callable[[int], Plan]:
    cuts = RandomCut(seed=seed, low=0, high=size // 11, base=Plan(after=HEAD, end=end))
    return lambda index: cuts(index) if index < 10 else Plan()


@pytest.mark.parametrize("dialect", ["native", "openai"])
@pytest.mark.parametrize("wire", CARRIERS)
@pytest.mark.parametrize(("mode", "end"), [("sync", "fin"), ("asyncio", "reset"), ("trio", "fin")])
def test_a_stream_cut_ten_times_at_random_bytes_is_read_whole(mode: str, end: End, wire: str, dialect: str) -> None:
    site = Site(wire, dialect)
    with serving(site.app) as server:
        size = size_of(f"{server.url}/stream")
        for seed in range(3):
            plan = ten_cuts(seed, size, end)
            policy = ResumePolicy(attempts=10, base=0.0, max_wait=0.0)
            seen, proxy = read_through(mode, server.port, "/stream", plan, limits=LONG_AGO, resume=policy)
            assert seen.error is None
            assert seen.text == TEXT
            assert [passage.ended for passage in proxy.history][:10] == ["cut"] * 10
            assert proxy.connections == 11
            assert seen.receipt is not None
            assert seen.receipt.verdict is Verdict.COMPLETE
            assert seen.receipt.duplicates == 0
            # A reset may overtake the head of its answer, and then nothing went on.
            assert seen.receipt.resumes == 10 if end == "fin" else 0 < seen.receipt.resumes <= 10
        assert site.starts == 4


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_that_stalls_is_read_whole(mode: str) -> None:
    site = Site("sse", "native")
    with serving(site.app) as server:
        size = size_of(f"{server.url}/stream")

        def plan(index: int) -> Plan:
            return Plan(after=HEAD, stall_at=size // 5 + index) if index < 2 else Plan()

        limits = attrs.evolve(LONG_AGO, liveness=1.0)  # long: a busy machine is no silent one
        seen, proxy = read_through(mode, server.port, "/stream", plan, resume=NOW, limits=limits)
    assert seen.error is None
    assert seen.text == TEXT
    assert proxy.connections == 3
    assert seen.receipt is not None
    assert seen.receipt.resumes == 2
    assert site.starts == 2


@pytest.mark.parametrize("dialect", ["native", "openai"])
@pytest.mark.parametrize(("mode", "wire"), list(zip(MODES, CARRIERS, strict=True)))
def test_a_get_that_has_no_address_to_come_back_to_goes_on_at_its_own(mode: str, wire: str, dialect: str) -> None:
    site = Site(wire, dialect, installed=False)
    with serving(site.app) as server:
        size = size_of(f"{server.url}/stream", "GET")
        plan = ten_cuts(7, size, "fin")
        policy = ResumePolicy(attempts=10, base=0.0, max_wait=0.0)
        seen, _ = read_through(mode, server.port, "/stream", plan, limits=LONG_AGO, method="GET", resume=policy)
    assert seen.error is None
    assert seen.text == TEXT
    assert site.starts == 2
