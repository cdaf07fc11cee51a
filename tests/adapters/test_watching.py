"""What observers are told by the adapters: who asked, who was refused, and what a hop hides."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.routing import Route

from streamguard import anyone_with_the_id
from streamguard.adapters.asgi import GuardedAnswer, SealMiddleware
from streamguard.adapters.endpoints import Endpoints
from streamguard.adapters.middleware import GuardMiddleware
from streamguard.adapters.options import AnswerOptions, StreamOptions
from streamguard.adapters.starlette import guarded
from streamguard.adapters.wsgi import GuardedResponse as WsgiResponse
from streamguard.app import StreamGuard
from streamguard.core.flush import Immediate
from streamguard.core.framing import FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.wire import Sse
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import (
    AbortNotCarried,
    Acknowledged,
    Blocked,
    Closed,
    Observer,
    Opened,
    ReaderGone,
    Refused,
    Sampled,
)
from streamguard.runtime.admission import Admission
from streamguard.runtime.slots import Limits
from streamguard.runtime.stages import GuardedStream
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import Site, cursors, reading, sid_of, wait_until
from tests.adapters.servers import Gate, serving
from tests.adapters.test_credit import CREDIT, TOKENS, tell
from tests.adapters.wsgi_calls import called
from tests.observe.mixed import Request as Asked
from tests.observe.noted import Noted

TRACE = "0af7651916cd43dd8448eb211c80319c"
QUICK = Timing(linger=0.0)


async def two() -> AsyncIterator[str]:
    yield "one "
    yield "two"


async def failing() -> AsyncIterator[str]:
    yield "one "
    raise ValueError


def told(noted: Noted, *names: str) -> None:
    """Wait until the last event of each of these parts came: an answer is over before its stream is."""
    wait_until(lambda: all(noted.all(Closed, part) for part in names))


def test_a_stream_bears_what_its_request_is_called_and_its_route_but_not_its_address() -> None:
    noted = Noted()

    @guarded(observe=noted, timing=QUICK)
    async def chat(request: Request) -> AsyncIterator[str]:
        yield request.path_params["secret"]

    app = SealMiddleware(Starlette(routes=[Route("/chat/{secret}", chat)]))
    with serving(app) as server:
        traceparent = f"00-{TRACE}-b7ad6b7169203331-01"
        exchange(server.connect(), path="/chat/hidden", x_request_id="r-1", traceparent=traceparent)
    labels = noted.one(Opened).stream.labels
    assert (labels.request_id, labels.trace_id) == ("r-1", TRACE)
    assert "hidden" not in repr(noted.events)


def test_the_reader_and_the_producer_of_a_request_are_told_apart_and_acknowledgements_are_measured() -> None:
    noted, gate = Noted(), Gate()
    noted.every = 1
    site = Site(*TOKENS[:4], gate, *TOKENS[4:], observe=noted)
    with serving(site.app) as server, reading(server, **CREDIT) as connection:
        connection.until(b't3 "')
        assert tell(server, connection, ack=str(cursors(connection.received)[-1])).status == 204
        gate.open()
        (reader,) = site.guard.readers
        assert reader.flow is not None
        wait_until(lambda: reader.flow.blocked)  # type: ignore[union-attr]
        assert tell(server, connection, credit=[99, 65536]).status == 204
        connection.until(b"event: end")
        told(noted, "producer", "reader")
        assert tell(server, connection, credit=[200, 65536]).status in (204, 409)
    acknowledged = noted.one(Acknowledged)
    assert (acknowledged.frame, acknowledged.stream.part) == (4, "reader")
    assert acknowledged.rtt is not None
    assert acknowledged.rtt > 0
    blocked = noted.all(Blocked)
    assert [(event.by, event.stream.part) for event in blocked] == [("credit", "reader")]
    pages = [event.legs for event in noted.all(Sampled, "reader")]
    assert {name for legs in pages for name in legs} == {"read", "credit", "encoded", "sent"}
    assert max(legs["credit"] for legs in pages) == pytest.approx(blocked[0].seconds)
    assert sorted(event.stream.part for event in noted.all(Opened)) == ["producer", "reader"]
    assert len({event.stream.name for event in noted.all(Opened)}) == 1
    assert sid_of(connection.received) not in repr([event.stream for event in noted.all(Opened)])


def test_a_reader_that_is_sent_elsewhere_is_told_with_its_reason() -> None:
    noted, gate = Noted(), Gate()
    site = Site("one ", gate, observe=noted, max_readers=1)
    with serving(site.app) as server, reading(server) as connection:
        connection.until(b"one ")
        newer = {"streamguard": "v=1", "last_event_id": str(cursors(connection.received)[0])}
        with server.connect() as other:
            other.request("GET", "/streams", connection="close", **newer)
            wait_until(lambda: bool(noted.all(ReaderGone)))
            gate.open()
            other.rest()
        told(noted, "producer")
    assert noted.one(ReaderGone).cause == "replaced"


def test_a_request_that_is_refused_is_told_with_the_code_of_its_answer() -> None:
    noted, cursor = Noted(), "AAAAAAAAAAAAAAAAAAAAAA.3.21.0badcafe"
    site = Site("one ", observe=noted)
    with serving(site.app) as server:
        assert exchange(server.connect(), path="/streams", streamguard="v=1", last_event_id=cursor).status == 404
        assert exchange(server.connect(), path="/tokens", user="nobody", x_request_id="r-2").status == 403
        assert exchange(server.connect(), "PUT", "/streams").status == 405
        assert exchange(server.connect(), "OPTIONS", "/streams").status == 204  # which refuses nothing
    assert [(event.why, event.status) for event in noted.all(Refused)] == [
        ("unknown_stream", 404), ("forbidden", 403), ("method_not_allowed", 405)
    ]  # fmt: skip
    assert noted.all(Refused)[1].labels.request_id == "r-2"
    assert noted.all(Opened) == []


@pytest.mark.anyio
@pytest.mark.parametrize(("http", "hops"), [("1.0", ["http10"]), ("1", ["http10"]), ("1.1", [])])
async def test_an_abort_over_http_1_0_is_told_as_one_that_nobody_sees(http: str, hops: list[str]) -> None:
    noted = Noted()
    await Asked(http=http).at(GuardedAnswer(failing, observe=noted, timing=QUICK))
    assert [event.hop for event in noted.all(AbortNotCarried)] == hops


@pytest.mark.anyio
async def test_an_answer_that_is_held_for_http_1_0_becomes_an_error_that_shows() -> None:
    noted = Noted()
    asked = await Asked(http="1.0").at(GuardedAnswer(failing, observe=noted, timing=QUICK, http10="buffer"))
    assert asked.status == 502
    assert noted.all(AbortNotCarried) == []


@pytest.mark.anyio
@pytest.mark.parametrize(("sealed", "hops"), [(False, ["base_middleware"]), (True, [])])
async def test_an_abort_under_a_base_middleware_without_a_seal_is_told(sealed: bool, hops: list[str]) -> None:
    noted = Noted()

    async def passing(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await GuardedAnswer(failing, observe=noted, timing=QUICK, unsealed="allow")(scope, receive, send)

    app: Any = BaseHTTPMiddleware(inner, dispatch=passing)
    await Asked().at(SealMiddleware(app, on_sigterm=False) if sealed else app)
    assert [event.hop for event in noted.all(AbortNotCarried)] == hops


def test_streams_on_a_thread_are_told_of_too() -> None:
    noted = Noted()

    def app(environ: Any, start_response: Any) -> Any:
        def source() -> Iterator[str]:
            yield "one "
            raise ValueError

        environ["SERVER_PROTOCOL"] = "HTTP/1.0"
        return WsgiResponse(source(), observe=noted, timing=QUICK)(environ, start_response)

    answer = called(app)
    assert answer.cut is not None
    assert noted.one(AbortNotCarried).hop == "http10"
    assert noted.one(Closed).cause == "source_error"
    (drain,) = noted.sources
    assert drain.ready


def test_a_refusal_on_a_thread_is_told() -> None:
    noted, admission = Noted(), Admission(Limits(max_streams=1, max_waiting=0))

    def app(environ: Any, start_response: Any) -> Any:
        return WsgiResponse(iter("a"), observe=noted, limits=admission)(environ, start_response)

    slot = admission._slots.take("", None)
    assert called(app).status == 503
    slot.release()
    assert noted.one(Refused).why == "full"
    assert admission in noted.sources


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [b"text/event-stream", b"application/x-ndjson"])
@pytest.mark.parametrize("guards", [False, True])
async def test_what_streams_already_is_told_of_under_the_middleware(kind: bytes, guards: bool) -> None:
    noted = Noted()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        part = b'data: {"a": 1}\n\n' if kind == b"text/event-stream" else b'{"a": 1}\n'
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    own: Any = {"observe": noted}
    if guards:
        own = {"guard": StreamGuard(MemoryLog(), authorize=anyone_with_the_id, observe=noted)}
    await Asked().at(GuardMiddleware(app, mode="guard", on_sigterm=False, **own))
    parts = ["producer", "reader"] if guards and kind == b"text/event-stream" else ["direct"]
    assert sorted(event.stream.part for event in noted.all(Closed)) == parts
    assert all(event.whole for event in noted.all(Closed))
    assert noted.names("direct").count("first_frame") == (parts == ["direct"])


@pytest.mark.anyio
async def test_a_stream_by_hand_is_told_of() -> None:
    noted = Noted()
    stages: Any = (two(), Immediate(), FramedEncoder("native"), CompletionGuard(Sse()))
    async with GuardedStream(*stages, observe=noted) as stream:
        async for _ in stream:
            pass
    assert noted.one(Closed).whole


def test_observers_are_given_once_to_the_guard_of_streams_in_a_log() -> None:
    guard, one = StreamGuard(MemoryLog(), authorize=anyone_with_the_id), Observer()
    with pytest.raises(TypeError, match="observers are a guard's, for all its streams"):
        StreamOptions.split({"observe": one})
    with pytest.raises(TypeError, match="observers are a guard's, for all its streams"):
        Endpoints(guard, observe=one)
    with pytest.raises(TypeError, match="observe is an Observer"):
        StreamGuard(MemoryLog(), authorize=anyone_with_the_id, observe=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="observe is an Observer"):
        AnswerOptions(observe=5)


@pytest.mark.anyio
async def test_an_observer_learns_whom_to_ask_what_the_application_does() -> None:
    noted, admission = Noted(), Admission(Limits(max_streams=3))
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id, observe=noted, limits=admission)
    assert noted.sources == [guard.draining, admission]
    other = Noted()
    await Asked().at(GuardedAnswer(two, observe=other, limits=admission, timing=QUICK))
    assert other.sources[0] is admission
    assert len(other.sources) == 2
    assert noted.events == []
