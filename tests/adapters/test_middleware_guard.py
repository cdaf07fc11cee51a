"""GuardMiddleware guards what streams already: cursors, ends, heartbeats, leaving, as for a guarded endpoint."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route

from streamguard.adapters.middleware import GuardMiddleware
from streamguard.adapters.seal import Message, Receive, Scope, SealMiddleware, Send, UnsealedResponse
from streamguard.app import StreamGuard, anyone_with_the_id
from streamguard.core.cursor import cursor_zero
from streamguard.core.receipt import Verdict
from streamguard.log.memory import MemoryLog
from streamguard.runtime.slots import Limits
from streamguard.runtime.timing import Timing
from tests.adapters.middleware_apps import DONE, EVENTS, LINES, QUICK, Sent, called, chunk, events, http, streaming
from tests.adapters.servers import DEADLINE

pytestmark = pytest.mark.anyio

WHOLE = [chunk("a"), chunk("b"), chunk(reason="stop"), DONE]
OWN = [b"data: one\n\n", b"event: x\nid: 7\ndata: two\n\n"]
OLLAMA = [b'{"response": "a", "done": false}\n', b'{"done": true}\n']


def guarding(source: Any, *, named: dict[str, Any] | None = None, **options: Any) -> GuardMiddleware:
    return around(streaming(source, **options), **(named or {}))


def around(app: Any, **named: Any) -> GuardMiddleware:
    options: dict[str, Any] = {"timing": QUICK, **named}
    return GuardMiddleware(app, mode="guard", on_sigterm=False, **options)


async def broken() -> AsyncGenerator[bytes, None]:
    yield chunk("a")
    raise ValueError("password=hunter2")


@pytest.mark.parametrize("guarded_by", ["nothing", "a log"])
async def test_a_middleware_that_stands_outside_of_it_is_told_of_by_its_own_name(guarded_by: str) -> None:
    """Whoever added GuardMiddleware knows of no other seal, and is told to move the one that there is."""
    guard = None if guarded_by == "nothing" else StreamGuard(MemoryLog(), authorize=anyone_with_the_id)

    async def passing(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    sent = await called(BaseHTTPMiddleware(guarding(WHOLE, named={"guard": guard}), dispatch=passing))
    assert isinstance(sent.raised, UnsealedResponse)
    assert "Add GuardMiddleware last, after every other add_middleware" in str(sent.raised)
    assert "SealMiddleware" not in str(sent.raised)


HTTP_1_0: dict[str, tuple[str, Any, int]] = {  # the option, the application's chunks, the status
    "warn": ("warn", WHOLE, 200),
    "warn, broken": ("warn", WHOLE[:-1], 200),
    "buffer": ("buffer", WHOLE, 200),
    "buffer, broken": ("buffer", WHOLE[:-1], 502),
    "refuse": ("refuse", WHOLE, 426),
}


@pytest.mark.parametrize("guarded_by", ["nothing", "a log"])
@pytest.mark.parametrize(("http10", "source", "status"), HTTP_1_0.values(), ids=HTTP_1_0)
async def test_over_http_1_0_a_stream_is_guarded_as_http10_says(
    http10: str, source: Any, status: int, guarded_by: str
) -> None:
    """nginx before 1.29.7 asks by HTTP/1.0 by default: which shows no cut, so that the error event stands alone."""
    guard = None if guarded_by == "nothing" else StreamGuard(MemoryLog(), authorize=anyone_with_the_id)
    middleware = guarding(source, named={"http10": http10, "guard": guard})
    for version in ("1.0", "1"):  # as granian has it
        sent = await called(middleware, http(version=version))
        assert (sent.status, sent.raised) == (status, None)
        if status == 200:
            assert (b'"error"' in sent.body, DONE in sent.body) == (source != WHOLE, source == WHOLE)
            assert (sent.header("content-length") == str(len(sent.body))) == (http10 == "buffer")
            assert ("http10" in sent.header("streamguard")) == (http10 == "warn")


@pytest.mark.parametrize("http10", ["warn", "buffer", "refuse"])
async def test_lines_over_http_1_0_are_guarded_and_what_is_no_stream_passes(http10: str) -> None:
    lines = await called(guarding(OLLAMA[:1], kind=LINES, named={"http10": http10}), http(version="1.0"))
    assert lines.status == {"warn": 200, "buffer": 502, "refuse": 426}[http10]
    assert (b'"error"' in lines.body) == (http10 == "warn")
    page = await called(guarding(WHOLE, kind=b"text/html", named={"http10": http10}), http(version="1.0"))
    assert (page.status, page.body) == (200, b"".join(WHOLE))


# ---- ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [WHOLE, OWN], ids=["chat", "own"])
@pytest.mark.parametrize("headers", [{}, {"streamguard": "v=1"}, {"accept": "text/event-stream"}], ids=str)
async def test_a_whole_answer_is_complete_and_its_events_are_the_applications(source: Any, headers: Any) -> None:
    middleware = guarding(source, headers=[(b"x-own", b"1"), (b"set-cookie", b"a=1")])
    sent = await called(middleware, http(**headers))
    assert (sent.clean, sent.raised, sent.verified(dialect="raw").verdict) == (True, None, Verdict.COMPLETE)
    assert events(sent.body)[: len(source)] == events(b"".join(source))
    assert (sent.header("x-own"), sent.header("set-cookie"), sent.header("incremental")) == ("1", "a=1", "?1")
    assert (middleware.report.streams, middleware.report.complete) == (1, 1)


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no marker": (WHOLE[:-1], {}, "unproven_end"),
    "a marker and no reason": ([chunk("a"), DONE], {}, "unproven_end"),
    "no last part": (WHOLE, {"ends": False}, "unended"),
    "no last part of its own": (OWN, {"ends": False}, "unended"),
    "an exception": (broken, {}, "source_error"),
    "an event torn": ([*OWN, b"data: thr"], {}, "unproven_end"),
    "a NUL in an event": ([b"data: a\0b\n\n"], {}, "field_refused"),
}


@pytest.mark.parametrize("what", BAD)
async def test_what_is_not_whole_ends_in_an_error_event_and_not_cleanly(what: str) -> None:
    source, options, code = BAD[what]
    middleware = guarding(source, **options)
    sent = await called(middleware)
    verifier = sent.verified(dialect="raw")
    assert (sent.clean, sent.raised, verifier.verdict) == (False, None, Verdict.FAILED)
    assert verifier.failure is not None
    assert (verifier.failure.code, middleware.report.codes) == (code, {code: 1})
    assert DONE not in sent.body
    assert b"hunter2" not in sent.body
    assert b'"error"' in events(sent.body)[-1][1].encode()


async def test_the_log_has_the_traceback_of_what_the_application_raised(caplog: pytest.LogCaptureFixture) -> None:
    await called(guarding(broken))
    assert [record.exc_info is not None for record in caplog.records if "source_error" in record.message] == [True]
    assert "hunter2" in caplog.text


async def test_what_an_application_raises_behind_its_answer_reaches_the_server() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await streaming(WHOLE)(scope, receive, send)
        raise LookupError("in a background task")

    sent = await called(around(app))
    assert (sent.clean, type(sent.raised)) == (True, LookupError)
    assert sent.verified(dialect="raw").verdict is Verdict.COMPLETE


async def test_an_application_that_ignores_the_end_of_its_own_answer_is_told() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await streaming(WHOLE)(scope, receive, send)
        await send({"type": "http.response.body", "body": b"more", "more_body": True})

    sent = await called(around(app))
    assert (sent.clean, type(sent.raised)) == (True, RuntimeError)


async def test_an_answer_whose_request_is_cancelled_says_so() -> None:
    """As at a server's own time limit: the reader is there, and is told."""
    books, body = Books(), b""
    middleware = guarding(books)
    with anyio.fail_after(30), anyio.CancelScope() as scope:

        def seen(piece: bytes) -> None:
            nonlocal body
            body += piece
            if b"data" in piece:
                scope.cancel()

        await called(middleware, on_body=seen)
    assert scope.cancelled_caught
    assert books.closed.is_set()
    assert '"code":"shutdown"' in events(body)[-1][1]
    assert middleware.report.codes == {"shutdown": 1}


def edges(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *[cut % len(data) for cut in cuts]})
    return [data[start:stop] for start, stop in pairwise(at)]


MIXED = b"".join([b": ping\r\n", *OWN, chunk("\u20ac\u2028"), b"retry: 5\n\n", b"data: 1\rdata: 2\r\r", *WHOLE[2:]])


@settings(max_examples=25)
@given(st.lists(st.integers(0, len(MIXED)), max_size=40))
def test_an_application_may_cut_its_events_anywhere(cuts: list[int]) -> None:
    """Also at every byte."""
    async def of(pieces: list[bytes]) -> Sent:
        return await called(guarding(pieces))

    whole, parts = (anyio.run(of, pieces) for pieces in ([MIXED], edges(MIXED, cuts)))
    assert (parts.clean, events(parts.body)) == (True, events(whole.body)) == (True, events(MIXED))
    assert parts.verified(dialect="raw").verdict is Verdict.COMPLETE


async def test_an_application_may_cut_its_events_at_every_byte() -> None:
    sent = await called(guarding([MIXED[at : at + 1] for at in range(len(MIXED))]))
    assert (sent.clean, events(sent.body)) == (True, events(MIXED))


# ---- bodies of any kind, from tasks of any number ---------------------------------------------------


@pytest.mark.parametrize("mode", ["report", "guard"])
@pytest.mark.parametrize("kind", [EVENTS, LINES], ids=["events", "lines"])
@pytest.mark.parametrize("buffer", [bytearray, memoryview])
async def test_a_body_may_be_any_buffer(mode: Any, kind: bytes, buffer: Any, caplog: pytest.LogCaptureFixture) -> None:
    pieces: Any = [buffer(piece) for piece in (WHOLE if kind is EVENTS else OLLAMA)]
    middleware = GuardMiddleware(streaming(pieces, kind=kind), mode=mode, timing=QUICK, on_sigterm=False)
    sent = await called(middleware)
    assert (sent.clean, middleware.report.complete, caplog.records) == (True, 1, [])
    assert all(bytes(piece).strip() in sent.body for piece in pieces)
    if mode == "report":
        assert all(found["body"] is piece for found, piece in zip(sent.messages[1:], pieces, strict=False))


async def test_a_buffer_may_be_filled_anew_behind_its_send() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", EVENTS)]})
        piece = bytearray(b"data: 0\n\n")
        for number in range(3):
            piece[6:7] = b"%d" % number
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    assert [data for _, data in events((await called(around(app))).body)][:3] == ["0", "1", "2"]


def many(count: int, raised: list[type[BaseException]]) -> Any:
    """An application whose tasks all send at once; what their `send` raises is kept."""
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def one(number: int) -> None:
            try:
                await send({"type": "http.response.body", "body": b"data: %d\n\n" % number, "more_body": True})
            except Exception as exc:
                raised.append(type(exc))

        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", EVENTS)]})
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(one, number)
        await send({"type": "http.response.body"})

    return app


async def test_tasks_that_send_at_once_wait_in_turn() -> None:
    raised: list[type[BaseException]] = []
    sent = await called(around(many(400, raised)))
    assert (sent.clean, sent.verified(dialect="raw").verdict, raised) == (True, Verdict.COMPLETE, [])
    assert sorted(int(data) for _, data in events(sent.body)[:400]) == list(range(400))


async def test_tasks_that_wait_to_send_are_told_that_the_reader_has_left() -> None:
    raised: list[type[BaseException]] = []
    middleware = around(many(400, raised))
    await left(middleware)
    assert middleware.report.left == 1
    assert set(raised) == {OSError}


# ---- a BaseHTTPMiddleware inside ------------------------------------------------------------------


async def passing(request: Any, call_next: Any) -> Any:
    return await call_next(request)


@pytest.mark.parametrize("mode", ["report", "guard"])
@pytest.mark.parametrize("kind", [EVENTS, LINES], ids=["events", "lines"])
@pytest.mark.parametrize("breaks", [True, False], ids=["breaks", "whole"])
async def test_a_clean_end_that_a_middleware_inside_made_of_a_broken_answer_is_none(
    mode: Any, kind: bytes, breaks: bool
) -> None:
    """It ends the body, and raises behind that: of an answer that needs no marker, nothing else tells."""

    async def source() -> AsyncGenerator[bytes, None]:
        yield OWN[0] if kind is EVENTS else b'{"n": 1}\n'
        if breaks:
            raise ValueError("the model broke")

    inner = BaseHTTPMiddleware(streaming(source, kind=kind), dispatch=passing)
    middleware = GuardMiddleware(inner, mode=mode, timing=QUICK, on_sigterm=False)
    sent = await called(middleware)
    assert middleware.report.codes == ({"source_error": 1} if breaks else {})
    assert sent.clean is (mode == "report" or not breaks)
    assert type(sent.raised) is (ValueError if breaks and mode == "report" else type(None))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_runs_behind_an_answer_under_a_middleware_inside_does_not_hold_its_end_for_long() -> None:
    go = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await streaming(OWN)(scope, receive, send)
        await go.wait()

    async def clean(message: Message) -> None:
        if not message.get("more_body", True):
            go.set()

    async def ended(scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            await clean(message)
            await send(message)

        await around(BaseHTTPMiddleware(app, dispatch=passing))(scope, receive, told)

    with anyio.fail_after(30):
        sent = await called(ended)
    assert (sent.clean, sent.raised) == (True, None)


async def cancelled() -> AsyncGenerator[bytes, None]:
    """It awaits a task that somebody cancelled."""
    yield b"data: one\n\n"
    task = asyncio.get_running_loop().create_task(asyncio.sleep(DEADLINE))
    task.cancel()
    await task


async def unended(scope: Scope, receive: Receive, send: Send) -> None:
    await streaming(OWN, ends=False)(scope, receive, send)


def under_bases(app: Any, how: str) -> Any:
    """The application with BaseHTTPMiddlewares inside of it, or round it, in each of the places for them."""
    layers = [Middleware(BaseHTTPMiddleware, dispatch=passing)]
    if how == "a route":
        return Starlette(routes=[Route("/", app, middleware=layers)])
    if how == "a mounted application":
        return Starlette(routes=[Mount("/", Starlette(routes=[Route("/", app)], middleware=layers))])
    return Starlette(routes=[Route("/", app)], middleware=layers * 2)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("mode", ["report", "guard"])
@pytest.mark.parametrize("how", ["two round the application", "a route", "a mounted application"])
async def test_a_clean_end_that_a_middleware_inside_made_of_a_cancelled_answer_is_none(mode: Any, how: str) -> None:
    """It tells nobody that the application was cancelled, or returned too early."""

    class Ends:  # a class: a function would be an endpoint
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await unended(scope, receive, send)

    async def view(request: Any) -> StreamingResponse:
        return StreamingResponse(cancelled(), media_type="text/event-stream")

    for app in (view, Ends()):
        middleware = GuardMiddleware(under_bases(app, how), mode=mode, timing=QUICK, on_sigterm=False)
        for _ in range(2):
            sent = await called(middleware)
            assert sent.clean is (mode == "report")
        assert middleware.report.codes == {"unended": 2}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_text_under_a_middleware_inside_breaks_off_where_the_application_was_cancelled() -> None:
    middleware = around(BaseHTTPMiddleware(streaming(cancelled, kind=b"text/plain"), dispatch=passing))
    assert not (await called(middleware)).clean


@pytest.mark.parametrize("mode", ["report", "guard"])
@pytest.mark.parametrize("kind", [EVENTS, LINES, b"text/plain"], ids=["events", "lines", "text"])
async def test_what_is_raised_behind_a_whole_answer_under_a_middleware_inside_does_not_cut_it(
    mode: Any, kind: bytes
) -> None:
    async def fails() -> None:
        raise LookupError("behind the answer")

    async def view(request: Any) -> StreamingResponse:
        async def pieces() -> AsyncGenerator[bytes, None]:
            for piece in OLLAMA if kind is LINES else OWN:
                yield piece

        return StreamingResponse(pieces(), media_type=kind.decode(), background=BackgroundTask(fails))

    inner = BaseHTTPMiddleware(Starlette(routes=[Route("/", view)]), dispatch=passing)
    middleware = GuardMiddleware(inner, mode=mode, timing=QUICK, on_sigterm=False)
    bare, sent = await called(inner), await called(middleware)
    assert (sent.clean, middleware.report.refused, type(sent.raised)) == (True, 0, type(bare.raised))
    assert b"error" not in sent.body


async def test_a_middleware_inside_stays_what_it_is_to_who_looks_at_it() -> None:
    inner = BaseHTTPMiddleware(streaming(OWN), dispatch=passing)
    inner.app.named = "mine"  # type: ignore[attr-defined]
    for _ in range(2):  # in two middlewares it is looked into once
        await called(around(inner))
    assert inner.app.named == "mine"  # type: ignore[attr-defined]
    assert (await called(inner)).body == b"".join(OWN)  # and passes where no GuardMiddleware stands outside


# ---- lines ----------------------------------------------------------------------------------------


async def test_lines_pass_to_the_byte_where_they_end() -> None:
    for pieces in (OLLAMA, [b'{"n": 1}\n', b'{"n": 2}']):
        bare = await called(streaming(pieces, kind=LINES))
        assert await called(guarding(pieces, kind=LINES)) == bare


@pytest.mark.parametrize(
    ("pieces", "options", "last"),
    [
        (OLLAMA[:1], {}, b'{"error":"the stream ended without its end marker"}\n'),
        (OLLAMA[:1], {"ends": False}, b'{"error":"the application stopped before the last part of its answer"}\n'),
        ([*OLLAMA, OLLAMA[0]], {}, b'{"error":"lines followed the end marker"}\n'),
        ([OLLAMA[0], b'{"done'], {}, b'{"done'),
        ([b'{"n": 1}\n'], {"ends": False}, b'"code":"unended"'),
    ],
    ids=["cut", "no last part", "overrun", "torn", "of its own"],
)
async def test_lines_without_their_end_get_an_error_and_are_aborted(
    pieces: list[bytes], options: Any, last: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    middleware = guarding(pieces, kind=LINES, **options)
    sent = await called(middleware)
    assert (sent.clean, sent.raised) == (False, None)
    assert sent.body.startswith(b"".join(pieces))
    assert last in sent.body.removeprefix(b"".join(pieces[:-1]))
    assert middleware.report.refused == 1
    assert re.search(r"stream \S+ of GET / ended as failed", caplog.text)


async def test_lines_whose_application_raises_say_so_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def source() -> AsyncGenerator[bytes, None]:
        yield OLLAMA[0]
        raise ValueError("password=hunter2")

    sent = await called(guarding(source, kind=LINES))
    assert (sent.clean, sent.raised) == (False, None)
    assert sent.body.endswith(b'{"error":"ValueError"}\n')
    assert "hunter2" in caplog.text


# ---- leaving --------------------------------------------------------------------------------------


class Books:
    """A source that waits behind its first event, and how it ended."""

    def __init__(self) -> None:
        self.closed = anyio.Event()

    async def __call__(self) -> AsyncGenerator[bytes, None]:
        try:
            yield chunk("a")
            await anyio.sleep_forever()
        finally:
            self.closed.set()


async def left(app: Any) -> Sent:
    leave = anyio.Event()
    with anyio.fail_after(30):
        return await called(app, leave=leave, on_body=lambda body: b"data" in body and leave.set())


async def test_a_reader_that_leaves_stops_an_application_that_waits_for_its_model() -> None:
    books = Books()
    middleware = guarding(books)
    sent = await left(middleware)
    assert books.closed.is_set()
    assert (sent.clean, sent.raised, middleware.report.left) == (False, None, 1)


async def test_a_reader_that_leaves_stops_an_application_that_only_sends() -> None:
    async def source() -> AsyncGenerator[bytes, None]:
        while True:
            yield chunk("a" * 1000)

    middleware = guarding(source)
    assert (await left(middleware)).raised is None
    assert middleware.report.left == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio warns of a generator that is left to its finalizer
async def test_a_reader_that_leaves_closes_the_generator_of_an_application_that_sends() -> None:
    """Starlette's own task group keeps what it raises in a cycle, and with it every frame that has the generator."""
    closed = anyio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield chunk("a" * 1000)
        finally:
            closed.set()

    async def view(request: Any) -> StreamingResponse:
        return StreamingResponse(source(), media_type="text/event-stream")

    gc.disable()
    try:
        assert (await left(around(Starlette(routes=[Route("/", view)])))).raised is None
        with anyio.fail_after(DEADLINE):
            await closed.wait()
    finally:
        gc.enable()


async def test_an_application_that_listens_is_told_and_does_the_rest_by_itself() -> None:
    """As a server would: what it does behind its answer is not cancelled."""
    done = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(listen)
            await streaming(Books())(scope, receive, send)
        await anyio.sleep(0.01)
        done.set()

    await left(around(app))
    assert done.is_set()


async def test_an_application_does_not_run_far_ahead_of_the_network() -> None:
    made = 0
    blocked, go = anyio.Event(), anyio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        nonlocal made
        for made in range(1000):  # noqa: B007
            yield chunk("a")
        yield chunk(reason="stop")
        yield DONE

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        async def blocking(message: Message) -> None:
            if b"data" in message.get("body", b"") and not go.is_set():
                blocked.set()
                await go.wait()
            await send(message)

        await guarding(source)(scope, receive, blocking)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(called, slow)
        await blocked.wait()
        await anyio.wait_all_tasks_blocked()
        assert made < 100
        go.set()
    assert made == 999


# ---- requests -------------------------------------------------------------------------------------


async def untouched(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("the application was called")


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 409)])
async def test_a_cursor_starts_nothing(method: str, status: int) -> None:
    cursor = str(cursor_zero("A" * 22))
    scope = http(method, last_event_id=cursor, accept="text/event-stream")
    assert (await called(around(untouched), scope)).status == status


async def test_who_is_refused_a_slot_is_refused_before_the_generator_begins() -> None:
    begun = 0
    first, go = anyio.Event(), anyio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        nonlocal begun
        begun += 1
        first.set()
        await go.wait()
        for piece in WHOLE:
            yield piece

    middleware = guarding(source, named={"limits": Limits(max_streams=1, max_waiting=0)})
    refused = Sent()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(called, middleware)
        await first.wait()
        refused = await called(middleware)
        go.set()
    assert (refused.status, refused.raised, begun) == (503, None, 1)
    assert (await called(middleware)).clean


async def test_one_middleware_inside_of_another_leaves_its_answer_alone() -> None:
    inner = guarding(WHOLE)
    outer = GuardMiddleware(SealMiddleware(inner, on_sigterm=False), mode="guard", on_sigterm=False)
    sent = await called(outer)
    assert (sent.clean, inner.report.streams, outer.report.streams) == (True, 1, 0)


async def test_heartbeats_come_while_the_application_is_silent_and_at_event_edges_only() -> None:
    go = anyio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        yield WHOLE[0]
        yield WHOLE[1][:20]
        await go.wait()
        yield WHOLE[1][20:]
        for piece in WHOLE[2:]:
            yield piece

    def seen(body: bytes) -> None:
        if b": hb" in body:
            go.set()

    middleware = guarding(source, named={"timing": Timing(heartbeat=0.01, linger=0.0)})
    sent = await called(middleware, on_body=seen)
    assert sent.verified(dialect="raw").verdict is Verdict.COMPLETE
    assert events(sent.body) == events(b"".join(WHOLE))


async def test_a_silent_application_stalls() -> None:
    middleware = guarding(Books(), named={"timing": Timing(stall=0.02, linger=0.0)})
    with anyio.fail_after(30):
        sent = await called(middleware)
    assert sent.verified(dialect="raw").status == "stalled"
    assert not sent.clean


@pytest.mark.parametrize("ping", [b": ping\n\n", b": ping\r\n\r\n", b":\n", b"\n"], ids=repr)
async def test_an_application_that_sends_signs_of_life_and_nothing_else_stalls(ping: bytes) -> None:
    """As sse-starlette does for a generator that hangs. The reader has heartbeats meanwhile."""

    async def source() -> AsyncGenerator[bytes, None]:
        yield chunk("a")
        while True:
            yield ping
            await anyio.sleep(0.001)

    middleware = guarding(source, named={"timing": Timing(heartbeat=0.01, stall=0.3, linger=0.0)})
    with anyio.fail_after(DEADLINE):
        sent = await called(middleware)
    assert sent.verified(dialect="raw").status == "stalled"
    assert b": hb" in sent.body


async def test_comments_between_lines_of_an_event_and_behind_events_change_nothing() -> None:
    first, second = [b": a\n", b"data: 1\n", b": b\n\n", b"\r\n"], [b": c\r\n\r\n", b"data: 2\n: d\n", b"\n"]
    pieces = [*first, *second, b":", b"\ndata: 3\n\n"]
    sent = await called(guarding(pieces))
    assert sent.verified(dialect="raw").verdict is Verdict.COMPLETE
    assert events(sent.body) == [("message", "1"), ("message", "2"), ("message", "3")]


async def test_an_endpoint_with_a_guard_of_its_own_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    middleware = guarding(WHOLE, headers=[(b"streamguard", b'v=1, resume="/streams"')])
    for _ in range(2):
        await called(middleware)
    assert caplog.text.count("has a StreamGuard of its own") == 1


# ---- what is not judged ---------------------------------------------------------------------------


async def texts() -> AsyncGenerator[bytes, None]:
    yield b"one "
    yield b"two"


async def torn() -> AsyncGenerator[bytes, None]:
    yield b"one "
    raise LookupError("the model fell over")


@pytest.mark.parametrize("mode", ["report", "guard"])
@pytest.mark.parametrize("base", [False, True], ids=["bare", "base"])
async def test_plain_text_passes_is_counted_and_breaks_off_where_the_application_did(mode: Any, base: bool) -> None:
    for source in (texts, torn):
        app: Any = streaming(source, kind=b"text/plain")
        if base:
            app = BaseHTTPMiddleware(app, dispatch=passing)
        bare = await called(app)
        middleware = GuardMiddleware(app, mode=mode, on_sigterm=False)
        sent = await called(middleware)
        assert (sent.body, type(sent.raised)) == (bare.body, type(bare.raised))
        assert sent.clean == (bare.clean if mode == "report" else source is texts)
        assert (middleware.report.unjudged, middleware.report.streams) == (1, 0)
        assert str(middleware.report).endswith("0 left, 1 unjudged")


async def test_an_end_without_a_length_does_not_wait_for_what_runs_behind_it() -> None:
    ended = anyio.Event()

    async def view(request: Any) -> StreamingResponse:
        return StreamingResponse(texts(), media_type="text/plain", background=BackgroundTask(ended.wait))

    inner = BaseHTTPMiddleware(Starlette(routes=[Route("/", view)]), dispatch=passing)
    middleware = GuardMiddleware(inner, mode="guard", on_sigterm=False)

    async def watching(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                ended.set()

        await middleware(scope, receive, sent)

    with anyio.fail_after(DEADLINE):
        assert (await called(watching)).clean


async def test_a_reader_that_left_before_such_an_end_is_what_the_server_said() -> None:
    middleware = around(BaseHTTPMiddleware(streaming(texts, kind=b"text/plain"), dispatch=passing))

    async def leaving(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                raise ConnectionResetError("gone")
            await send(message)

        await middleware(scope, receive, sent)

    assert type((await called(leaving)).raised) is ConnectionResetError


async def test_an_answer_with_a_length_is_no_matter_of_its() -> None:
    middleware = guarding([b"one"], kind=b"text/plain", headers=[(b"content-length", b"3")])
    assert ((await called(middleware)).body, middleware.report.unjudged) == (b"one", 0)
