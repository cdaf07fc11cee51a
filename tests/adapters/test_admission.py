"""Limits over real sockets: who is refused, how, and before what; and that every exit gives the slot back."""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from typing import Any

import attrs
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from streamguard import Admission, Limits
from streamguard.adapters import fastapi
from streamguard.adapters.asgi import GuardedAnswer
from streamguard.adapters.options import AnswerOptions
from streamguard.adapters.seal import ASGIApp, Receive, Scope, SealMiddleware, Send
from streamguard.adapters.shutdown import DRAIN
from streamguard.adapters.starlette import GuardedResponse, StreamGuard, guarded
from streamguard.core.errors import SourceFailed
from streamguard.log.memory import MemoryLog
from streamguard.runtime.drain import Drain
from streamguard.runtime.runs import Detach
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import OURS, SSE, Counted, by_header, cursors, reading, text_of, wait_until
from tests.adapters.servers import Connection, Gate, Server, serving

QUICK: dict[str, Any] = {"timing": Timing(linger=0.05)}
KEY = "0123456789abcdef-a-long-one"


@attrs.define(eq=False)
class Held:
    """One endpoint at `/`, of a kind, under an admission; `calls` is how often its function was called."""

    source: Callable[[], AsyncIterator[Any]]
    admission: Admission
    calls: int = 0
    guard: StreamGuard | None = None

    def idle(self) -> None:
        """Wait until nothing runs or waits."""
        wait_until(lambda: (self.admission.streams, self.admission.waiting) == (0, 0))


def asgi(held: Held) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        held.calls += 1
        await GuardedAnswer(held.source(), limits=held.admission, **QUICK)(scope, receive, send)

    return SealMiddleware(app)


def routed(endpoint: Any, held: Held) -> ASGIApp:
    app = Starlette(routes=[Route("/", endpoint, methods=["GET", "POST"])])
    if held.guard is not None:
        held.guard.install(app, "/streams", **QUICK)
    else:
        app.add_middleware(SealMiddleware)
    return app


def a_guard(held: Held) -> StreamGuard:
    held.guard = StreamGuard(MemoryLog(), authorize=by_header, limits=held.admission)
    return held.guard


def yielding(held: Held, guard: Any) -> Any:
    @guard
    async def endpoint(request: Request) -> AsyncIterator[Any]:
        held.calls += 1
        async for item in held.source():
            yield item

    return endpoint


def returning(held: Held, guard: Any) -> Any:
    @guard
    async def endpoint(request: Request) -> AsyncIterator[Any]:
        held.calls += 1
        return held.source()

    return endpoint


def blocking(held: Held, guard: Any) -> Any:
    @guard
    def endpoint(request: Request) -> AsyncIterator[Any]:
        held.calls += 1
        return held.source()

    return endpoint


def starlette_response(held: Held) -> ASGIApp:
    async def endpoint(request: Request) -> GuardedResponse:
        held.calls += 1
        return GuardedResponse(held.source(), limits=held.admission, **QUICK)

    return routed(endpoint, held)


def in_fastapi(held: Held) -> ASGIApp:
    app = FastAPI()

    @app.get("/")
    @fastapi.guarded(limits=held.admission, **QUICK)
    async def endpoint() -> Any:
        held.calls += 1
        return held.source()

    app.add_middleware(SealMiddleware)
    return app


KINDS: dict[str, Callable[[Held], ASGIApp]] = {
    "asgi": asgi,
    "starlette response": starlette_response,
    "starlette yields": lambda held: routed(yielding(held, guarded(limits=held.admission, **QUICK)), held),
    "starlette returns": lambda held: routed(returning(held, guarded(limits=held.admission, **QUICK)), held),
    "starlette def": lambda held: routed(blocking(held, guarded(limits=held.admission, **QUICK)), held),
    "fastapi": in_fastapi,
    "logged yields": lambda held: routed(yielding(held, a_guard(held).stream(**QUICK)), held),
    "logged returns": lambda held: routed(returning(held, a_guard(held).stream(**QUICK)), held),
}
BEFORE = ("starlette returns", "starlette def", "fastapi", "logged returns")  # the endpoint is called after admission
kinds = pytest.mark.parametrize("kind", KINDS)


def holding(kind: str, *script: Any, **limits: Any) -> tuple[ASGIApp, Held, Counted]:
    source = Counted(*script)
    held = Held(source, Admission(Limits(**limits)))
    return KINDS[kind](held), held, source


def asking(server: Server, **headers: Any) -> Any:
    return exchange(server.connect(), **headers)


def begun(stack: ExitStack, server: Server, **headers: Any) -> Connection:
    """A stream that has begun."""
    connection = stack.enter_context(reading(server, "/", **headers))
    connection.until(b"t0 ")
    return connection


def reset(connection: Connection) -> None:
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


# ---- one endpoint, of every kind ------------------------------------------------------------------


@kinds
def test_streams_that_follow_one_another_are_all_admitted(kind: str) -> None:
    app, held, source = holding(kind, "t0 ", max_streams=2, max_waiting=0)
    with serving(app) as server:
        for _ in range(10):
            assert text_of(asking(server, **OURS).body) == "t0 "
            held.idle()
    assert (held.admission.admitted, held.admission.refused["full"], source.starts) == (10, 0, 10)


@kinds
def test_who_finds_no_room_is_told_before_anything_runs(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    app, held, source = holding(kind, "t0 ", gate, "t1 ", max_streams=1, max_waiting=0, retry_after=3)
    with serving(app) as server, ExitStack() as stack, caplog.at_level(logging.WARNING, "streamguard"):
        first = begun(stack, server)
        calls = held.calls
        for headers in ({}, OURS):
            answer = asking(server, **headers)
            assert (answer.status, answer.header("content-type")) == (503, "application/problem+json")
            assert (json.loads(answer.body)["code"], answer.header("x-should-retry")) == ("full", "true")
            assert 3 <= int(answer.header("retry-after")) <= 6
            assert answer.header("cache-control") == "no-store, no-transform"
        assert (held.admission.streams, source.starts) == (1, 1)
        if kind in BEFORE:
            assert held.calls == calls
        gate.open()
        first.until(b"t1 ")
        held.idle()
    assert held.admission.refused["full"] == 2
    assert "requests for new streams are refused" in caplog.text


@kinds
def test_who_waits_is_served_when_there_is_room(kind: str) -> None:
    gate = Gate()
    app, held, source = holding(kind, "t0 ", gate, "t1 ", max_streams=1)
    with serving(app) as server, ExitStack() as stack:
        begun(stack, server)
        second = stack.enter_context(reading(server, "/"))
        wait_until(lambda: held.admission.waiting == 1)
        assert source.starts == 1
        gate.open()
        second.until(b"t1 ")
        held.idle()
    assert source.starts == 2


@kinds
def test_who_waited_too_long_is_told_something_else(kind: str) -> None:
    gate = Gate()
    app, held, _ = holding(kind, "t0 ", gate, max_streams=1, max_wait=0.05)
    with serving(app) as server, ExitStack() as stack:
        begun(stack, server)
        answer = asking(server)
        assert (answer.status, json.loads(answer.body)["code"]) == (503, "waited_too_long")
        assert answer.header("retry-after") is not None
        gate.open()
        held.idle()


@kinds
def test_a_reader_that_leaves_the_room_gives_up_its_place(kind: str) -> None:
    gate = Gate()
    app, held, source = holding(kind, "t0 ", gate, max_streams=1, max_wait=60)
    with serving(app) as server, ExitStack() as stack:
        begun(stack, server)
        with reading(server, "/") as second:
            wait_until(lambda: held.admission.waiting == 1)
            reset(second)
        wait_until(lambda: held.admission.waiting == 0)
        assert held.admission.refused["left"] == 1
        gate.open()
        held.idle()
    assert source.starts == 1


@kinds
def test_who_waits_in_a_process_that_goes_is_sent_away_and_so_is_who_comes(kind: str) -> None:
    gate = Gate()
    app, held, source = holding(kind, "t0 ", gate, "t1 ", max_streams=1, max_wait=60)
    drains: list[Drain] = []

    async def seen(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)
        if DRAIN in scope:
            drains.append(scope[DRAIN])

    with serving(seen) as server, ExitStack() as stack:
        exchange(server.connect(), "HEAD")  # which starts nothing
        first = begun(stack, server)
        second = stack.enter_context(reading(server, "/"))
        wait_until(lambda: held.admission.waiting == 1)
        calls = held.calls
        drains[0].begin(60)
        assert b'"code":"shutdown"' in second.until(b"}").replace(b'": "', b'":"')
        third = asking(server)
        assert (third.status, json.loads(third.body)["code"]) == (503, "shutdown")
        if kind in BEFORE:
            assert held.calls == calls
        gate.open()
        first.until(b"t1 ")
        held.idle()
    assert (source.starts, held.admission.admitted) == (1, 1)


@kinds
def test_of_sixty_connections_half_of_which_reset_at_once_no_slot_is_left(kind: str) -> None:
    app, held, source = holding(kind, "t0 ", "t1 ", max_streams=5, max_waiting=100)
    most: list[int] = []

    async def counted() -> AsyncIterator[Any]:
        most.append(held.admission.streams)
        async for item in source():
            yield item

    held.source = counted
    with serving(app) as server, ExitStack() as stack:
        good = []
        for number in range(60):
            connection = stack.enter_context(reading(server, "/"))
            if number % 2:
                reset(connection)
            else:
                good.append(connection)
        for connection in good:
            connection.until(b"event: end")
        held.idle()
        assert held.admission.detached == 0
    assert max(most) <= 5
    assert len(good) == 30


@kinds
def test_what_starts_nothing_takes_no_slot(kind: str) -> None:
    gate = Gate()
    app, held, source = holding(kind, "t0 ", gate, max_streams=1, max_waiting=0)
    sid = "A" * 22
    with serving(app) as server, ExitStack() as stack:
        begun(stack, server)
        if kind != "fastapi":  # which has no HEAD of its own accord
            assert exchange(server.connect(), "HEAD").status == 200
        gone = asking(server, last_event_id=f"{sid}.3.9.0badcafe", **OURS)
        assert gone.status == 404
        gate.open()
        held.idle()
    assert (held.admission.admitted, held.admission.refused["full"], source.starts) == (1, 0, 1)


@kinds
def test_a_source_that_fails_before_its_first_item_gives_its_slot_back(kind: str) -> None:
    app, held, _ = holding(kind, SourceFailed("no_model", "there is none"), max_streams=1, max_waiting=0)
    with serving(app) as server:
        for _ in range(3):
            assert asking(server).status in (200, 500)
            held.idle()


# ---- what else an endpoint may do ---------------------------------------------------------------------


def answered(endpoint: Callable[[Request], Any], **limits: Any) -> tuple[ASGIApp, Held]:
    held = Held(Counted(), Admission(Limits(**limits)))

    @guarded(limits=held.admission, **QUICK)
    async def wrapped(request: Request) -> Any:
        return endpoint(request)

    return routed(wrapped, held), held


def raising(request: Request) -> Any:
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("endpoint", "status"),
    [
        (raising, 500),
        (lambda request: JSONResponse({}), 200),
        (lambda request: None, 500),
        (lambda request: GuardedResponse(Counted("t0 ")()), 200),
    ],
    ids=["raises", "a response of its own", "nothing", "a guarded response of its own"],
)
def test_an_endpoint_that_returns_no_source_gives_the_slot_back(endpoint: Any, status: int) -> None:
    app, held = answered(endpoint, max_streams=1, max_waiting=0)
    with serving(app) as server:
        for _ in range(3):
            assert asking(server).status == status
            held.idle()
    assert held.admission.refused["full"] == 0


def test_a_guarded_response_of_the_endpoints_own_holds_the_slot() -> None:
    gate = Gate()
    source = Counted("t0 ", gate)
    app, held = answered(lambda request: GuardedResponse(source(), **QUICK), max_streams=1, max_waiting=0)
    with serving(app) as server, ExitStack() as stack:
        begun(stack, server)
        assert held.admission.streams == 1
        assert asking(server).status == 503
        gate.open()
        held.idle()


def test_a_response_that_is_never_sent_gives_its_slot_back() -> None:
    held = Held(Counted("t0 "), Admission(Limits(max_streams=1, max_waiting=0)))
    inner = returning(held, guarded(limits=held.admission))

    async def replaced(request: Request) -> JSONResponse:
        await inner(request)
        return JSONResponse({})

    with serving(routed(replaced, held)) as server:
        for _ in range(3):
            assert asking(server).status == 200
            held.idle()


def test_an_endpoint_still_reads_the_body_that_was_read_while_it_waited() -> None:
    gate = Gate()
    held = Held(Counted(), Admission(Limits(max_streams=1)))

    @guarded(limits=held.admission, **QUICK)
    async def endpoint(request: Request) -> Any:
        text = (await request.body()).decode()
        return Counted("t0 ", gate, text)()

    with serving(routed(endpoint, held)) as server, ExitStack() as stack:
        stack.enter_context(reading(server, "/", "POST", b"first")).until(b"t0 ")
        second = stack.enter_context(reading(server, "/", "POST", b"second"))
        wait_until(lambda: held.admission.waiting == 1)
        gate.open()
        second.until(b"second")
        held.idle()


# ---- who asks ------------------------------------------------------------------------------------------


def of_user(request: Any) -> str | None:
    return request.headers.get("user")  # type: ignore[no-any-return]


def of_model(request: Any) -> str | None:
    return request.headers.get("model")  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "asgi"])  # where a request is no Request
def test_ones_own_limit_is_429_and_nobody_elses(kind: str) -> None:
    gate = Gate()
    app, held, _ = holding(
        kind, "t0 ", gate, max_per_principal=1, max_per_key=2, principal=of_user, key=of_model, max_waiting=0
    )
    with serving(app) as server, ExitStack() as stack:
        begun(stack, server, user="ann", model="m")
        answer = asking(server, user="ann", model="n")
        assert (answer.status, json.loads(answer.body)["code"]) == (429, "full")
        begun(stack, server, user="bob", model="m")
        assert asking(server, user="cid", model="m").status == 429
        begun(stack, server, user="cid", model="n")
        gate.open()
        held.idle()


def test_an_event_source_is_not_stopped_for_good() -> None:
    gate = Gate()
    app, held, _ = holding("starlette yields", "t0 ", gate, max_streams=1, max_waiting=0, retry_after=5)
    with serving(app) as server, ExitStack() as stack:
        begun(stack, server)
        answer = asking(server, **SSE)
        assert (answer.status, answer.clean) == (200, False)
        wait = re.fullmatch(rb": full\nretry: (\d+)\n\n", answer.body)
        assert wait is not None
        assert 5000 <= int(wait[1]) <= 10000
        gate.open()
        held.idle()


# ---- streams that outlive their connections ----------------------------------------------------------------


def test_a_reader_of_a_stream_that_runs_needs_no_room() -> None:
    gate = Gate()
    app, held, source = holding("logged yields", "t0 ", gate, "t1 ", max_streams=1, max_waiting=0)
    with serving(app) as server, ExitStack() as stack:
        first = begun(stack, server, idempotency_key=KEY, **OURS)
        at = cursors(first.until(b"\n\n", 2))[0]
        again = stack.enter_context(reading(server, "/", idempotency_key=KEY, **OURS))
        again.until(b"t0 ")
        back = stack.enter_context(reading(server, "/", last_event_id=str(at), **OURS))
        other = stack.enter_context(reading(server, "/streams", last_event_id=str(at), **OURS))
        assert asking(server, **OURS).status == 503
        gate.open()
        for connection in (again, back, other):
            connection.until(b"t1 ")
        held.idle()
    assert (source.starts, held.admission.admitted) == (1, 1)


@pytest.mark.parametrize("kind", ["logged yields", "logged returns"])
def test_a_request_that_waited_reads_what_the_same_request_started_meanwhile(kind: str) -> None:
    gates = [Gate(), Gate()]
    scripts = iter([Counted("t0 ", gates[0]), Counted("t0 ", gates[1], "t1 ")])

    def source() -> AsyncIterator[Any]:
        return next(scripts)()

    held = Held(source, Admission(Limits(max_streams=1)))
    with serving(KINDS[kind](held)) as server, ExitStack() as stack:
        begun(stack, server, **OURS)
        both = []
        for _ in range(2):
            both.append(stack.enter_context(reading(server, "/", idempotency_key=KEY, **OURS)))
            wait_until(lambda: held.admission.waiting == len(both))
        gates[0].open()
        both[0].until(b"t0 ")
        gates[1].open()
        for connection in both:
            connection.until(b"t1 ")
        held.idle()
    assert held.calls == 2


def test_a_request_that_waited_too_long_reads_what_the_same_request_started_meanwhile() -> None:
    gates = [Gate(), Gate()]
    scripts = iter([Counted("t0 ", gates[0]), Counted("t0 ", gates[1], "t1 ")])

    def source() -> AsyncIterator[Any]:
        return next(scripts)()

    held = Held(source, Admission(Limits(max_streams=1, max_wait=2.0)))
    with serving(KINDS["logged yields"](held)) as server, ExitStack() as stack:
        begun(stack, server, **OURS)
        both = []
        for _ in range(2):
            both.append(stack.enter_context(reading(server, "/", idempotency_key=KEY, **OURS)))
            wait_until(lambda: held.admission.waiting == len(both))
        gates[0].open()
        both[0].until(b"t0 ")
        wait_until(lambda: held.admission.refused["waited_too_long"] == 1)
        gates[1].open()
        for connection in both:
            connection.until(b"t1 ")
        held.idle()
    assert held.calls == 2


def test_a_stream_without_a_reader_holds_its_slot_and_ends_first() -> None:
    gate = Gate()
    source = Counted("t0 ", gate)
    held = Held(source, Admission(Limits(max_streams=1, max_waiting=0)))
    stream = a_guard(held).stream(on_disconnect=Detach(60.0), **QUICK)
    with serving(routed(yielding(held, stream), held)) as server, ExitStack() as stack:
        begun(stack, server, **OURS).close()
        wait_until(lambda: held.admission.detached == 1)
        assert held.admission.streams == 1
        begun(stack, server, **OURS)
        source.wait_closed(1)
        assert (held.admission.streams, held.admission.detached) == (1, 0)
        assert asking(server, **OURS).status == 503, "the one that runs now is read"
        gate.open()
        held.idle()
    assert source.starts == 2


def test_one_admission_serves_a_guard_and_an_endpoint_without_one() -> None:
    gate = Gate()
    held = Held(Counted("t0 ", gate), Admission(Limits(max_streams=1, max_waiting=0)))
    guard = a_guard(held)
    app = Starlette(
        routes=[
            Route("/", yielding(held, guard.stream(**QUICK))),
            Route("/plain", yielding(held, guarded(limits=held.admission, **QUICK))),
        ]
    )
    guard.install(app, "/streams")
    with serving(app) as server, ExitStack() as stack:
        begun(stack, server)
        assert exchange(server.connect(), path="/plain").status == 503
        gate.open()
        held.idle()
        assert text_of(exchange(server.connect(), path="/plain").body) == "t0 "
        held.idle()


# ---- where limits may stand -----------------------------------------------------------------------------


def test_limits_that_would_limit_nothing_are_refused_where_they_are_written() -> None:
    guard = StreamGuard(MemoryLog(), authorize=by_header)
    limits = Limits(max_streams=1)
    with pytest.raises(TypeError, match="limits of one answer limit nothing"):
        GuardedResponse(Counted()(), limits=limits)
    with pytest.raises(TypeError, match="limits are a guard's, for all its streams"):
        guard.stream(limits=limits)
    with pytest.raises(TypeError, match="what resumes has no limits"):
        guard.install(Starlette(), limits=limits)
    with pytest.raises(ValueError, match="max_per_principal needs to know who asks"):
        guarded(limits=Limits(max_per_principal=1))
    with pytest.raises(TypeError, match="limits are for example"):
        StreamGuard(MemoryLog(), authorize=by_header, limits=5)


def test_limits_given_to_a_decorator_are_those_of_all_its_requests() -> None:
    options = AnswerOptions.of(None, {"limits": Limits(max_streams=1)})
    assert isinstance(options.limits, Admission)
    guard = StreamGuard(MemoryLog(), authorize=by_header, limits=Limits(max_streams=1))
    assert guard.admission is not None
    assert guard.admission.streams == 0


def test_a_function_that_answers_no_text_is_named() -> None:
    app, held, _ = holding("asgi", "t0 ", max_per_key=1, key=lambda scope: 5)
    with serving(app) as server:
        assert asking(server).status == 500
    assert held.admission.streams == 0
