"""The aiohttp adapter: the contract of every adapter, and what is aiohttp's own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from aiohttp import web

from streamguard.adapters.aiohttp import GuardedResponse, StreamGuard, drained, guarded
from streamguard.app import anyone_with_the_id
from streamguard.core.receipt import Verdict
from streamguard.log.memory import MemoryLog
from streamguard.runtime.slots import Limits
from streamguard.runtime.timing import Timing
from streamguard.testing import AdapterCase, AdapterSources, check_adapter, check_adapter_rule
from tests.adapters.aiohttp_serving import serving_aiohttp
from tests.adapters.asgi_apps import Ends, exchange, tokens
from tests.adapters.contract_aiohttp import aiohttp_app
from tests.adapters.logged_apps import TroubledLog, text_of
from tests.adapters.servers import Gate, Server

QUICK = Timing(linger=0.02)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_it_keeps_the_contract(loop: str) -> None:
    sources = AdapterSources()
    with serving_aiohttp(aiohttp_app(sources), loop=loop) as server:
        asyncio.run(check_adapter(AdapterCase(server.url, sources.facts, name="aiohttp")))


def test_a_server_that_cancels_its_handlers_changes_nothing() -> None:
    sources = AdapterSources()
    with serving_aiohttp(aiohttp_app(sources), handler_cancellation=True) as server:
        for rule in ("G1 no clean end without completion", "G6 disconnect", "cancel"):
            asyncio.run(check_adapter_rule(rule, AdapterCase(server.url, sources.facts, name="aiohttp")))


# ---- kinds of handlers ------------------------------------------------------------------------


def app_of(handler: Any, path: str = "/", **more: Any) -> web.Application:
    app = web.Application(**more)
    app.router.add_route("*", path, handler)
    return app


@guarded
async def yielding(request: web.Request) -> AsyncIterator[str]:
    async for token in tokens():
        yield token


@guarded
def yielding_plainly(request: web.Request) -> Iterator[str]:
    yield from ("t0 ", "t1 ", "t2 ")


@guarded(timing=QUICK)
async def returning(request: web.Request) -> AsyncIterator[str]:
    return tokens()


@guarded
def returning_plainly(request: web.Request) -> AsyncIterator[str]:
    assert threading.current_thread().name != "aiohttp"
    return tokens()


class View(web.View):
    @guarded
    async def get(self) -> AsyncIterator[str]:
        assert self.request.method == "GET"
        async for token in tokens():
            yield token


@pytest.mark.parametrize("handler", [yielding, yielding_plainly, returning, returning_plainly, View])
def test_handlers_of_every_kind_are_guarded(handler: Any) -> None:
    with serving_aiohttp(app_of(handler)) as server:
        answer = exchange(server.connect())
    assert (answer.verdict, answer.clean) == (Verdict.COMPLETE, True)
    assert text_of(answer.body) == "t0 t1 t2 "


def test_a_handlers_own_response_passes_and_a_slip_is_an_error_of_the_server() -> None:
    @guarded
    async def choosing(request: web.Request) -> Any:
        return web.json_response({"no": 1}, status=404) if request.query_string else {"forgot": "to stream"}

    with serving_aiohttp(app_of(choosing)) as server:
        assert exchange(server.connect(), path="/?x").status == 404
        assert exchange(server.connect()).status == 500


def test_a_stream_of_a_handlers_own_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """What was sent already is not ended cleanly."""

    @guarded
    async def own(request: web.Request) -> Any:
        response = web.StreamResponse()
        if request.query_string == "begun":
            await response.prepare(request)
            await response.write(b"data: half")
        return response

    with serving_aiohttp(app_of(own)) as server:
        begun, unbegun = exchange(server.connect(), path="/?begun"), exchange(server.connect())
    assert (begun.status, begun.body, begun.clean) == (200, b"data: half", False)
    assert unbegun.status == 500
    said = [str(record.exc_info) for record in caplog.records if record.exc_info]
    assert len([text for text in said if "returned a StreamResponse, which would stream unguarded" in text]) == 2


def test_a_slip_is_told_in_the_words_of_aiohttp(caplog: pytest.LogCaptureFixture) -> None:
    @guarded
    async def slipped(request: web.Request) -> Any:
        return {"forgot": "to stream"}

    with serving_aiohttp(app_of(slipped)) as server:
        assert exchange(server.connect()).status == 500
    assert any("return web.json_response(…)" in str(record.exc_info) for record in caplog.records)


def test_a_decorator_above_the_route_s_is_refused_where_it_stands() -> None:
    """It would guard what no route calls."""
    routes = web.RouteTableDef()
    with pytest.raises(TypeError, match=r"put @guarded below the route's decorator, directly above the function"):

        @guarded(timing=QUICK)
        @routes.get("/")
        async def chat(request: web.Request) -> AsyncIterator[str]:
            yield "a"

    @routes.get("/other")
    @guarded
    async def right(request: web.Request) -> AsyncIterator[str]:
        yield "a"


def test_a_guarded_handler_needs_its_request() -> None:
    with pytest.raises(TypeError, match="called with its Request"):
        asyncio.run(yielding())  # type: ignore[arg-type,call-arg]
    with pytest.raises(TypeError, match="needs a function that yields"):
        guarded(42)  # type: ignore[call-overload]


def test_a_request_that_starts_nothing_does_not_call_a_handler_that_returns_its_source() -> None:
    called = []

    @guarded
    async def noted(request: web.Request) -> AsyncIterator[str]:
        called.append(request.method)
        return tokens()

    with serving_aiohttp(app_of(noted)) as server:
        assert exchange(server.connect(), "HEAD").status == 200
        assert exchange(server.connect(), "POST").verdict is Verdict.COMPLETE
    assert called == ["POST"]


# ---- the request's body -----------------------------------------------------------------------


def test_a_handler_that_yields_can_read_its_request() -> None:
    @guarded
    async def echo(request: web.Request) -> AsyncIterator[str]:
        yield (await request.json())["prompt"]

    with serving_aiohttp(app_of(echo)) as server:
        answer = exchange(server.connect(), "POST", body=b'{"prompt": "say it"}')
    assert b'data: "say it"' in answer.body


def test_a_form_with_files_is_read_too_and_counts_for_its_key() -> None:
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    @guard.stream
    async def upload(request: web.Request) -> AsyncIterator[str]:
        yield (await request.post())["file"].filename  # type: ignore[union-attr]

    app = app_of(upload)
    guard.install(app)

    def sent(url: str, content: bytes) -> httpx.Response:
        files, key = {"file": ("a.txt", content)}, {"idempotency-key": "k" * 22}
        form = {"content-type": "multipart/form-data; boundary=b"}
        body = httpx.Request("POST", url, files=files, data={"prompt": "read it"}, headers=form)
        return httpx.post(url, content=body.read(), headers={**body.headers, **key})

    with serving_aiohttp(app) as server:
        first, again, other = (sent(server.url, content) for content in (b"one", b"one", b"two"))
    assert b'data: "a.txt"' in first.content
    assert first.content == again.content
    assert other.status_code == 422


def test_a_body_that_breaks_off_is_a_reader_that_left() -> None:
    ends = Ends()

    @guarded(timing=QUICK, on_end=ends)
    async def endless(request: web.Request) -> AsyncIterator[str]:
        async def source() -> AsyncIterator[str]:
            while True:
                yield "token "
                await asyncio.sleep(0.005)

        return source()

    with serving_aiohttp(app_of(endless)) as server:
        with server.connect() as connection:
            connection.send(b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\nhalf")
            connection.until(b"token ")
        assert ends.wait().status == "gone"


def test_what_a_middleware_read_is_there_for_the_endpoints() -> None:
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    @web.middleware
    async def reading(request: web.Request, handler: Any) -> web.StreamResponse:
        await request.read()
        response: web.StreamResponse = await handler(request)
        return response

    app = web.Application(middlewares=[reading])
    guard.install(app)
    with serving_aiohttp(app) as server:
        told = {"reader": "someone", "ack": None}
        answer = httpx.post(f"{server.url}/streams", json=told, headers={"streamguard-stream": "s" * 22})
    assert answer.json()["code"] == "unknown_stream"


# ---- the connection ---------------------------------------------------------------------------


def test_a_connection_goes_on_after_a_whole_stream_and_not_after_another() -> None:
    async def failing(request: web.Request) -> web.StreamResponse:
        async def source() -> AsyncIterator[str]:
            yield "half"
            raise ValueError

        return await GuardedResponse(source(), timing=QUICK).serve(request)

    app = app_of(yielding)
    app.router.add_get("/fails", failing)
    with serving_aiohttp(app) as server, server.connect() as connection:
        for count in (1, 2):
            connection.get()
            connection.until(b"0\r\n\r\n", count)
        connection.get("/fails")
        body = connection.rest().rpartition(b"HTTP/1.1 200")[2]
    assert b"event: end" in body
    assert not body.endswith(b"0\r\n\r\n")
    assert b"connection: close" not in body.lower()


def test_a_reader_that_takes_nothing_is_dropped() -> None:
    ends = Ends()

    @guarded(timing=Timing(write=0.2), on_end=ends)
    async def large(request: web.Request) -> AsyncIterator[str]:
        while True:
            yield "x" * 65536
            await asyncio.sleep(0)

    with serving_aiohttp(app_of(large)) as server, server.connect(receive_buffer=4096) as connection:
        connection.get()
        assert ends.wait().status == "slow"
        with pytest.raises(ConnectionResetError):
            connection.rest()


def test_a_send_window_is_kept_where_the_socket_can_be_reached() -> None:
    @guarded(window=8192)
    async def some(request: web.Request) -> AsyncIterator[str]:
        for _ in range(20):
            yield "x" * 2048

    with serving_aiohttp(app_of(some)) as server:
        assert exchange(server.connect()).verdict is Verdict.COMPLETE


def test_http_1_0_is_seen() -> None:
    with serving_aiohttp(app_of(guarded(http10="refuse")(lambda request: tokens()))) as server:
        with server.connect() as connection:
            connection.get(version="1.0")
            assert connection.rest().startswith(b"HTTP/1.0 426")


def test_what_a_middleware_opened_is_open_while_the_stream_runs() -> None:
    seen: list[str] = []

    @web.middleware
    async def opening(request: web.Request, handler: Callable[..., Awaitable[Any]]) -> web.StreamResponse:
        seen.append("opened")
        response: web.StreamResponse = await handler(request)
        seen.append("closed")
        return response

    @guarded
    async def noting(request: web.Request) -> AsyncIterator[str]:
        async for token in tokens():
            seen.append(token)
            yield token

    with serving_aiohttp(app_of(noting, middlewares=[opening])) as server:
        exchange(server.connect())
    assert seen == ["opened", "t0 ", "t1 ", "t2 ", "closed"]


def test_a_response_can_be_cancelled_and_says_how_it_ended() -> None:
    made: list[GuardedResponse] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        async def source() -> AsyncIterator[str]:
            yield "one"
            asyncio.get_running_loop().call_soon(response.cancel)
            await asyncio.Event().wait()

        response = GuardedResponse(source(), 201, {"x-own": "1"}, timing=QUICK)
        made.append(response)
        return await response.serve(request)

    with serving_aiohttp(app_of(handler)) as server:
        answer = exchange(server.connect())
    assert (answer.status, answer.header("x-own")) == (201, "1")
    assert made[0].outcome is not None
    assert made[0].outcome.status == answer.verified().status == "cancelled"


# ---- limits, and going away -------------------------------------------------------------------


def test_limits_refuse_what_is_too_much() -> None:
    gate = Gate()

    @guarded(limits=Limits(max_streams=1, max_waiting=0))
    async def waiting(request: web.Request) -> AsyncIterator[str]:
        async def source() -> AsyncIterator[str]:
            yield "first"
            await gate

        return source()

    with serving_aiohttp(app_of(waiting)) as server, server.connect() as connection:
        connection.get()
        connection.until(b"first")
        refused = exchange(server.connect())
        gate.open()
        connection.until(b"0\r\n\r\n")
        assert exchange(server.connect()).verdict is Verdict.COMPLETE
    assert (refused.status, json.loads(refused.body)["code"]) == (503, "full")


def test_who_waits_for_a_slot_of_a_guard_and_leaves_has_no_place_any_more() -> None:
    gate = Gate()
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id, limits=Limits(max_streams=1))

    @guard.stream
    async def waiting(request: web.Request) -> AsyncIterator[str]:
        async def source() -> AsyncIterator[str]:
            yield "first"
            await gate

        return source()

    app = app_of(waiting)
    guard.install(app)
    with serving_aiohttp(app) as server, server.connect() as connection:
        connection.get()
        connection.until(b"first")
        admission = guard.admission
        assert admission is not None
        with server.connect() as other:
            other.get()
            eventually(server, lambda: admission.waiting == 1)
        eventually(server, lambda: admission.waiting == 0)
        gate.open()


def eventually(server: Server, true: Callable[[], bool]) -> None:
    async def look() -> None:
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    server.call(lambda: asyncio.wait_for(look(), 20))


@pytest.mark.parametrize("installed", [True, False])
def test_at_a_shutdown_streams_end_in_order(installed: bool) -> None:
    ends = Ends()
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id, grace=0.05)

    async def endless(request: web.Request) -> AsyncIterator[str]:
        while True:
            yield "token "
            await asyncio.sleep(0.005)

    app = app_of(guard.stream(on_end=ends)(endless) if installed else guarded(on_end=ends)(endless))
    if installed:
        guard.install(app, ready="/ready")
    else:
        assert drained(app, grace=0.05, ready="/ready").ready
    with serving_aiohttp(app, shutdown_timeout=10.0) as server:
        connection = server.connect()
        assert exchange(server.connect(), path="/ready").body == b"ready\n"
        connection.get(streamguard="v=1")
        connection.until(b"token ")
    with connection:
        body = connection.rest()
    assert (b"event: bye" if installed else b'"status":"shutdown"') in body
    assert not body.endswith(b"0\r\n\r\n")
    assert ends.wait().status == "shutdown"


def test_what_drains_starts_nothing_and_says_so() -> None:
    app = app_of(returning)
    draining = drained(app, ready="/ready")
    with serving_aiohttp(app) as server:
        server.call(draining.drain)
        assert exchange(server.connect(), path="/ready").status == 503
        assert json.loads(exchange(server.connect()).body)["code"] == "shutdown"


# ---- the endpoints ----------------------------------------------------------------------------


def test_in_a_sub_application_the_address_is_the_whole_one() -> None:
    guard = StreamGuard(MemoryLog(), authorize=lambda request, action: request.headers.get("user", "ann"))
    inner = web.Application()

    @guard.stream
    async def answer(request: web.Request) -> AsyncIterator[str]:
        return tokens()

    inner.router.add_get("/tokens", answer)
    guard.install(inner, "/streams")
    app = web.Application()
    app.add_subapp("/api", inner)
    with serving_aiohttp(app) as server:
        whole = exchange(server.connect(), path="/api/tokens", streamguard="v=1")
        assert 'resume="/api/streams"' in (whole.header("streamguard") or "")
        cursor = whole.body.split(b"id: ")[2].split(b"\n")[0].decode()
        mine = exchange(server.connect(), path="/api/streams", streamguard="v=1", last_event_id=cursor)
        theirs = exchange(server.connect(), path="/api/streams", user="bob", streamguard="v=1", last_event_id=cursor)
        assert exchange(server.connect(), path="/api/streams/status").status == 400
    assert mine.body.count(b'data: "t') == 2
    assert theirs.status == 404


def test_a_response_of_a_guard_is_for_handlers_that_were_called() -> None:
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    async def handler(request: web.Request) -> web.StreamResponse:
        response = guard.response(request, tokens(), 201, {"x-own": "1"}, name="chat")
        answered = await response.serve(request)
        assert response.outcome is not None
        return answered

    app = app_of(handler)
    guard.install(app)
    with serving_aiohttp(app) as server:
        answer = exchange(server.connect(), streamguard="v=1")
    assert (answer.status, answer.header("x-own"), answer.verdict) == (201, "1", Verdict.COMPLETE)


def test_a_guarded_answer_cannot_take_the_place_of_a_stream_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    with pytest.raises(TypeError, match="remove @guarded"):
        guard.stream(yielding)

    async def hidden(request: web.Request) -> Any:
        return await GuardedResponse(tokens()).serve(request)

    with serving_aiohttp(app_of(guard.stream(hidden))) as server:
        assert exchange(server.connect()).status == 500
    assert any("remove @guarded" in str(record.exc_info) for record in caplog.records)


def test_install_refuses_what_is_no_place_for_it() -> None:
    guard = StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    with pytest.raises(TypeError, match=r"app is a web\.Application"):
        guard.install(web.RouteTableDef(), "/streams")  # type: ignore[arg-type]
    app = app_of(yielding, "/taken")
    with pytest.raises(RuntimeError, match="a route at /taken already"):
        guard.install(app, "/taken")
    guard.install(app, "/streams")
    with pytest.raises(RuntimeError, match="installed already"):
        guard.install(app, "/other")


def test_a_guard_whose_log_is_closed_serves_no_second_start() -> None:
    log = TroubledLog()
    guard = StreamGuard(log, authorize=anyone_with_the_id)
    app = web.Application()
    guard.install(app)
    asyncio.run(guard.aclose())
    log.trouble = True  # as a log is that was closed
    with pytest.raises(RuntimeError, match="log was closed"), serving_aiohttp(app):
        pass
