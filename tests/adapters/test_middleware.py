"""GuardMiddleware looks without touching anything, and leaves alone whatever is no stream."""

from __future__ import annotations

import gzip
import logging
import sys
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import StreamingResponse
from starlette.routing import Route

from streamguard.adapters.middleware import GuardMiddleware, Report
from streamguard.adapters.middleware_report import Ends
from streamguard.adapters.seal import Message, Receive, Scope, SealMiddleware, Send
from streamguard.core.dialect import Raw
from streamguard.core.wire import MAX_FRAME
from tests.adapters.middleware_apps import DONE, EVENTS, LINES, QUICK, called, chunk, http, streaming

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param  # nothing here waits: how the loop turns is no matter


WHOLE = [chunk("a"), chunk("b"), chunk(reason="stop"), DONE]
MODES = pytest.mark.parametrize("mode", ["report", "guard"])
PLAIN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "HEAD": ({}, http("HEAD")),
    "JSON": ({"kind": b"application/json"}, http()),
    "multipart": ({"kind": b"multipart/mixed; boundary=x"}, http()),
    "a body with a length": ({"headers": [(b"Content-Length", b"77")]}, http()),
    "compressed": ({"headers": [(b"content-encoding", b"gzip")]}, http()),
    "guarded already": ({"headers": [(b"streamguard", b"v=1")]}, http()),
    "an error": ({"status": 500}, http()),
}


@MODES
@pytest.mark.parametrize("what", PLAIN)
async def test_what_is_no_stream_passes_to_the_byte(what: str, mode: Any) -> None:
    options, scope = PLAIN[what]
    pieces = [gzip.compress(chunk("a"))] if what == "compressed" else [chunk("a"), b": no end\n"]
    bare = await called(streaming(pieces, **options), {**scope})
    middleware = GuardMiddleware(streaming(pieces, **options), mode=mode, on_sigterm=False)
    assert await called(middleware, {**scope}) == bare
    assert middleware.report.streams == 0


@MODES
@pytest.mark.parametrize("kind", [b"text/html", b"text/event-stream"])
async def test_headers_that_can_be_gone_through_once_arrive(mode: Any, kind: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = iter([(b"content-type", kind), (b"x-own", b"1")])
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body"})

    sent = await called(GuardMiddleware(app, mode=mode, on_sigterm=False))
    assert (sent.clean, sent.header("content-type"), sent.header("x-own")) == (True, kind.decode(), "1")


@MODES
async def test_a_websocket_passes(mode: Any) -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})

    sent = await called(GuardMiddleware(echo, mode=mode, on_sigterm=False), {"type": "websocket", "path": "/"})
    assert [message["type"] for message in sent.messages] == ["websocket.accept", "websocket.close"]


@MODES
async def test_what_an_application_raises_before_its_answer_reaches_the_server(mode: Any) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("no such thing")

    sent = await called(GuardMiddleware(broken, mode=mode, on_sigterm=False))
    assert (type(sent.raised), sent.messages) == (LookupError, [])


@MODES
async def test_an_application_reads_its_whole_request(mode: Any) -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": message["body"], "more_body": False})

    assert (await called(GuardMiddleware(echo, mode=mode, on_sigterm=False), body=b"asked")).body == b"asked"


# ---- report ---------------------------------------------------------------------------------------


async def cut() -> AsyncGenerator[bytes, None]:
    yield chunk("a")


async def broken() -> AsyncGenerator[bytes, None]:
    yield chunk("a")
    raise ValueError("password=hunter2")


async def behind() -> AsyncGenerator[bytes, None]:
    for piece in WHOLE:
        yield piece
    raise ValueError("password=hunter2")


LONG = [b'{"n": 1}\n{"image": "', *[b"x" * (MAX_FRAME // 16)] * 17]
OWN = [b"data: one\n\n", b"event: x\ndata: two\n\n"]
REPORTED: dict[str, tuple[Any, dict[str, Any], str, str | None]] = {
    "a marker and a reason": (WHOLE, {}, "complete", None),
    "no marker": (WHOLE[:-1], {}, "failed", "unproven_end"),
    "a marker and no reason": ([chunk("a"), DONE], {}, "failed", "unproven_end"),
    "a marker behind an error": ([chunk("a"), b'data: {"error": {"code": "oom"}}\n\n', DONE], {}, "failed", "oom"),
    "an aborted generation": ([chunk("a"), chunk(reason="abort"), DONE], {}, "failed", "generation_aborted"),
    "no last part": (WHOLE[:1], {"ends": False}, "failed", "unended"),
    "no last part behind the marker": (WHOLE, {"ends": False}, "failed", "unended"),
    "an exception": (broken, {}, "failed", "source_error"),
    "an exception behind the marker": (behind, {}, "failed", "source_error"),
    "events of its own": (OWN, {}, "complete", None),
    "events of its own, and a marker": ([*OWN, DONE], {}, "complete", None),
    "choices of its own": ([b'data: {"choices": ["tea", "coffee"]}\n\n'], {}, "complete", None),
    "events of its own, without the last part": (OWN, {"ends": False}, "failed", "unended"),
    "events of its own, the last one torn": ([*OWN, b"data: thr"], {}, "failed", "unproven_end"),
    "events behind the marker, the last one torn": ([*WHOLE, b"data: thr"], {}, "failed", "unproven_end"),
    "a NUL": ([b"data: a\0b\n\n", b"data: c\n\n"], {}, "failed", "field_refused"),
    "an error without data": ([*OWN, b"event: error\ndata: \n\n"], {}, "failed", "upstream_error"),
    "a loss": ([b'data: {"step": %d, "error": 0.25}\n\n' % step for step in (1, 2, 3)], {}, "complete", None),
    "a loss, and an error": ([b'data: {"error": 2}\n\n', b'data: {"error": "no"}\n\n'], {}, "failed", "upstream_error"),
    "ids like a cursor": ([b"id: AAAAAAAAAAAAAAAAAAAAAA.3.4.0a0a0a0a\ndata: a\n\n"], {}, "complete", None),
    "comments like a cursor": ([b": sg AAAAAAAAAAAAAAAAAAAAAA.3.4.0a0a0a0a\ndata: a\n\n"], {}, "complete", None),
    "no event at all": ([], {}, "complete", None),
    "Anthropic's, cut": ([b'data: {"type": "message_start"}\n\n'], {}, "failed", "unproven_end"),
    "Ollama's lines": ([b'{"done": false}\n{"done', b'": true}\n'], {"kind": LINES}, "complete", None),
    "Ollama's lines, cut": ([b'{"done": false}\n'], {"kind": LINES}, "failed", "unproven_end"),
    "Ollama's error": ([b'{"done": false}\n{"error": "oom"}\n'], {"kind": LINES}, "failed", "upstream_error"),
    "lines of its own": ([b'{"n": 1}\n{"n": 2}'], {"kind": LINES}, "complete", None),
    "lines of a loss": ([b'{"step": 1, "error": 0.25}\n', b'{"error": 7}\n'], {"kind": LINES}, "complete", None),
    "lines that say that it broke": ([b'{"error": true}\n'], {"kind": LINES}, "failed", "upstream_error"),
    "lines of its own, torn": ([b'{"n": 1}\n{"n'], {"kind": LINES}, "failed", "unproven_end"),
    "lines of its own, torn in one too long to hold": (LONG, {"kind": LINES}, "failed", "unproven_end"),
    "lines of its own, one too long to hold": ([*LONG, b'"}\n'], {"kind": LINES}, "complete", None),
}


@pytest.mark.parametrize("what", REPORTED)
async def test_what_would_be_refused_is_counted_and_told_and_passes(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, options, verdict, code = REPORTED[what]
    bare = await called(streaming(source, **options))
    middleware = GuardMiddleware(streaming(source, **options), on_sigterm=False)
    sent = await called(middleware)
    assert (sent.messages, type(sent.raised)) == (bare.messages, type(bare.raised))
    report = middleware.report
    assert (report.streams, report.complete, report.refused) == (1, int(verdict == "complete"), len(report.recent))
    assert [(refused.verdict, refused.code) for refused in report.recent] == ([(verdict, code)] if code else [])
    told = f"a stream of GET / would be refused a clean end: {verdict}: {code}"
    assert (told in caplog.text) == (verdict != "complete")
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("what", REPORTED)
async def test_both_modes_give_the_same_verdict(what: str) -> None:
    source, options, verdict, code = REPORTED[what]
    middleware = GuardMiddleware(streaming(source, **options), mode="guard", on_sigterm=False, timing=QUICK)
    await called(middleware)
    found = [(refused.verdict, refused.code) for refused in middleware.report.recent]
    assert found == ([(verdict, code)] if code else [])


async def test_of_a_stream_without_a_marker_none_is_missed() -> None:
    for source, options in ((OWN, {"ends": False}), ([*OWN, b"data: thr"], {})):
        middleware = GuardMiddleware(streaming(source, **options), on_sigterm=False)
        await called(middleware)
        (refused,) = middleware.report.recent
        assert "marker" not in refused.message


@pytest.mark.parametrize(("pieces", "verdict"), [(WHOLE[:1], "left"), (WHOLE, "complete")], ids=["before", "behind"])
async def test_a_reader_that_leaves_says_nothing_against_the_application(pieces: list[bytes], verdict: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await streaming(pieces, ends=False)(scope, receive, send)
        while (await receive())["type"] != "http.disconnect":
            pass

    leave = anyio.Event()
    leave.set()
    middleware = GuardMiddleware(app, on_sigterm=False)
    await called(middleware, leave=leave)
    assert (middleware.report.streams, getattr(middleware.report, verdict)) == (1, 1)


async def test_a_rule_of_ones_own_that_raises_harms_no_stream() -> None:
    def rule(event: object) -> bool:
        raise LookupError("not here")

    middleware = GuardMiddleware(streaming(WHOLE), end=rule, on_sigterm=False)
    sent = await called(middleware)
    assert (sent.body, sent.clean, sent.raised, middleware.report.streams) == (b"".join(WHOLE), True, None, 0)


async def test_rules_differ_by_request() -> None:
    rules = {"/provider": Raw(), "/mine": Raw(end=lambda event: event.data == "two"), "/left": None}
    middleware = GuardMiddleware(streaming(OWN), rule=lambda scope: rules[scope["path"]], on_sigterm=False)
    for path in rules:
        await called(middleware, http(path=path))
    assert middleware.report.endpoints == {"GET /provider": [1, 1], "GET /mine": [1, 0]}


async def test_the_summary_says_where_and_why_and_has_an_end() -> None:
    report = Report()
    for number in range(300):
        source = WHOLE[:1] if number % 2 else WHOLE
        await called(GuardMiddleware(streaming(source), report=report, on_sigterm=False), http(path=f"/{number}"))
    assert str(report) == "300 streams: 150 complete, 150 refused, 0 left (unproven_end 150)"
    assert len(report.recent) == 100
    assert len(report.endpoints) == 201
    assert report.endpoints["(others)"] == [100, 50]
    found = report.as_dict()
    assert found["endpoints"]["GET /1"] == {"streams": 1, "refused": 1}
    assert found["recent"][-1]["endpoint"] == "GET /299"


MARKED = "event.data == '[DONE]'"


@pytest.mark.parametrize(
    ("last", "kind", "rule"),
    [
        ([DONE], EVENTS, MARKED),
        ([b"data: [DO", b"NE]\n", b"\n", b""], EVENTS, MARKED),
        ([b"data: " + b"x" * 400 + b"\n\ndata: [DONE]\r\n\r\n"], EVENTS, MARKED),
        ([b'event: over\ndata: {"tokens": 7}\n\n'], EVENTS, "event.event == 'over'"),
        ([b"data: a\ndata: b\n\n"], EVENTS, r"event.data == 'a\nb'"),
        ([b'{"last": 1}\n'], LINES, """event.data == '{"last": 1}'"""),
        ([b"data: " + b"x" * 400 + b"\n\n"], EVENTS, ""),
        ([b": nothing\n\n"], EVENTS, ""),
    ],
)  # fmt: skip
async def test_of_events_made_by_hand_the_summary_has_the_marker_that_some_of_them_lack(
    last: list[bytes], kind: bytes, rule: str
) -> None:
    """To the middleware an early return of such a generator looks like its end: whoever wrote it knows better."""
    report, first = Report(), b"data: 1\n\n" if kind == EVENTS else b'{"n": 1}\n'
    for source in ([first, *last], [first, *last], [first, *last], [first]):
        await called(GuardMiddleware(streaming(source, kind=kind), report=report, on_sigterm=False), http(path="/hand"))
    ends = report.as_dict()["endpoints"]["GET /hand"]
    assert (ends["streams"], ends["refused"], ends["by_marker"], ends["by_own_end"]) == (4, 0, 0, 4)
    advice = f"3 of 4 streams that may end as they like had `{rule}` last, and 1 had not: "
    assert ends["hint"] == (f"{advice}if that is their end, say end=lambda event: {rule}" if rule else "")
    assert str(report).startswith("4 streams: 4 complete (4 of them by the application's own end alone), 0 refused, ")
    assert ("; GET /hand: 3 of 4 streams that may end" in str(report)) == bool(rule)


async def test_where_all_end_alike_or_by_a_marker_that_is_known_there_is_nothing_to_name() -> None:
    report = Report()
    for source in (WHOLE, WHOLE, [*OWN, DONE], [*OWN, DONE]):
        await called(GuardMiddleware(streaming(source), report=report, on_sigterm=False))
    assert report.ends["GET /"] == Ends(2, 2, {MARKED: 2})
    assert (report.hints, report.complete) == ([], 4)


def test_what_is_kept_of_last_events_is_bounded_and_the_commonest_stays() -> None:
    ends = Ends()
    for number in range(1000):
        ends.add(MARKED if number % 3 else f"event.data == '{number}'")
    assert len(ends.last) == 8
    assert ends.last[MARKED] == 666
    assert "666 of 1000" in ends.hint


async def test_the_marker_that_some_streams_lack_is_logged_once_an_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    report, first = Report(), b"data: 1\n\n"
    for source in ([first, DONE], [first, DONE], [first], [first, DONE], [first]):
        for path in ("/hand", "/other"):
            await called(GuardMiddleware(streaming(source), report=report, on_sigterm=False), http(path=path))
        await called(GuardMiddleware(streaming([first, DONE]), report=report, on_sigterm=False), http(path="/alike"))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    for record, path in zip(caplog.records, ("/hand", "/other"), strict=True):
        assert record.getMessage() == (
            f"GET {path}: 2 of 3 streams that may end as they like had `{MARKED}` last, and 1 had not: if that is "
            f"their end, say end=lambda event: {MARKED}; until then one that stops early is complete, in guard mode too"
        )
    assert report.as_dict()["endpoints"]["GET /hand"]["hint"].startswith("3 of 5 ")


async def test_the_summary_is_logged_at_the_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    middleware = GuardMiddleware(streaming(WHOLE[:1]), on_sigterm=False)
    await called(middleware)
    await lived(middleware)
    assert "looked at 1 streams: 0 complete, 1 refused, 0 left (unproven_end 1)" in caplog.text


# ---- outermost ------------------------------------------------------------------------------------


async def lived(app: Any) -> None:
    """The application's start and shutdown."""
    waiting = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]

    async def receive() -> Message:
        return waiting.pop()

    async def send(message: Message) -> None:
        assert not message["type"].endswith("failed")

    if isinstance(app, GuardMiddleware) and not isinstance(app.app, Starlette):
        app.app = Starlette()
    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)


async def passing(request: Any, call_next: Any) -> Any:
    return await call_next(request)


async def test_another_seal_outside_of_it_is_none_of_its_business(caplog: pytest.LogCaptureFixture) -> None:
    app = Starlette()
    app.add_middleware(GuardMiddleware, on_sigterm=False)
    app.add_middleware(SealMiddleware, on_sigterm=False)
    await lived(app)
    assert caplog.records == []


@pytest.mark.parametrize("outermost", [True, False])
async def test_it_says_at_the_start_what_stands_outside_of_it(
    outermost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = Starlette()
    if outermost:
        app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    app.add_middleware(GuardMiddleware, on_sigterm=False)
    if not outermost:
        app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    await lived(app)
    assert ("GuardMiddleware is not outermost: BaseHTTPMiddleware stands outside" in caplog.text) is not outermost


async def test_the_framework_s_own_layers_are_none_that_somebody_added(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    app.add_middleware(GuardMiddleware, on_sigterm=False)
    await lived(app)
    assert caplog.records == []
    app = FastAPI()
    app.add_middleware(GuardMiddleware, on_sigterm=False)
    app.add_middleware(GZipMiddleware)
    app.add_middleware(BaseHTTPMiddleware, dispatch=passing)
    await lived(app)
    assert "is not outermost: BaseHTTPMiddleware, GZipMiddleware stand outside of it" in caplog.text


async def test_a_drain_of_sse_starlette_s_own_is_told_of_once_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends every stream of its own at SIGTERM, without the last part: nothing drains."""
    status = SimpleNamespace(enable_automatic_graceful_drain=True)
    monkeypatch.setitem(sys.modules, "sse_starlette.sse", SimpleNamespace(AppStatus=status))  # type: ignore[misc]

    def told() -> int:
        return caplog.text.count("AppStatus.disable_automatic_graceful_drain()")

    app = Starlette()
    middleware = GuardMiddleware(app, mode="guard", on_sigterm=False)
    await called(middleware)  # on a server without lifespans
    await lived(middleware)
    assert told() == 1
    await lived(GuardMiddleware(app, mode="guard", on_sigterm=False))
    assert told() == 2
    await lived(GuardMiddleware(app, on_sigterm=False))  # nothing drains there
    status.enable_automatic_graceful_drain = False
    await lived(GuardMiddleware(app, mode="guard", on_sigterm=False))
    assert told() == 2


async def test_round_an_application_it_finds_what_stands_outside_at_the_first_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def stream(request: Any) -> StreamingResponse:
        return StreamingResponse(cut(), media_type="text/event-stream")

    guarded = GuardMiddleware(Starlette(routes=[Route("/", stream)]), mode="guard", on_sigterm=False)
    outer = BaseHTTPMiddleware(guarded, dispatch=passing)
    sent = await called(outer)
    assert "GuardMiddleware is not outermost" in caplog.text
    assert "BaseHTTPMiddleware would end an aborted stream cleanly" in str(sent.raised)


# ---- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"mode": "look"}, ValueError, "mode is 'report' or 'guard', not 'look'"),
        ({"guard": "memory"}, TypeError, "guard is a StreamGuard"),
        ({"dialect": "openai"}, TypeError, "dialect is not the middleware's to choose"),
        ({"end": "sometime"}, ValueError, "unknown end rule 'sometime'"),
        ({"profile": "nobody"}, ValueError, "unknown profile"),
        ({"tming": 3}, TypeError, "unknown option 'tming'"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_where_it_is_given(arguments: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        GuardMiddleware(streaming(WHOLE), **arguments)
