"""A guarded answer as an ASGI application, on uvicorn: what goes over the socket, byte for byte."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from streamguard.adapters import asgi
from streamguard.adapters.asgi import AnswerOptions, GuardedAnswer
from streamguard.adapters.seal import Message, Receive, Scope, SealMiddleware, Send
from streamguard.core.cursor import cursor_zero
from streamguard.core.errors import Failure, SourceFailed
from streamguard.core.negotiate import parse_answer
from streamguard.core.receipt import Verdict
from streamguard.runtime.timing import Timing
from streamguard.testing import Conduct, ScriptedServer
from tests.adapters.asgi_apps import Ends, Response, answering, exchange, tokens
from tests.adapters.servers import Gate, serving, stack_params

QUICK = Timing(linger=0.05)
CURSOR = f"{cursor_zero('AAAAAAAAAAAAAAAAAAAAAA')}"
STACK = pytest.mark.parametrize("stack", stack_params())


async def failing(after: int = 2) -> AsyncIterator[str]:
    async for token in tokens(after):
        yield token
    raise SourceFailed("overloaded", "the model is overloaded", retryable=True)


@STACK
def test_a_finished_stream_is_complete_and_ends_cleanly(stack: tuple[str, str]) -> None:
    with serving(answering(tokens), http=stack[0], loop=stack[1]) as server:
        response = exchange(server.connect())
    assert (response.status, response.clean) == (200, True)
    verifier = response.verified()
    assert verifier.verdict is Verdict.COMPLETE
    assert (verifier.receipt.frames, verifier.receipt.finish_reason) == (4, "stop")


@STACK
def test_a_failed_stream_has_its_terminal_and_no_last_chunk(stack: tuple[str, str]) -> None:
    with serving(answering(failing, timing=QUICK), http=stack[0], loop=stack[1]) as server:
        response = exchange(server.connect())
    assert (response.status, response.clean) == (200, False)
    assert response.verdict is Verdict.FAILED
    assert b'"code":"overloaded"' in response.body
    assert response.body.count(b"event: end\n") == 1
    assert response.body.endswith(b"\n\n")


def test_a_failure_is_no_traceback_in_the_servers_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving(answering(failing, timing=QUICK)) as server:
        exchange(server.connect())
    assert all(record.exc_info is None for record in caplog.records)
    assert ["overloaded" in record.message for record in caplog.records if record.name == "streamguard"] == [True]


def test_the_log_names_the_stream_and_not_the_whole_id(caplog: pytest.LogCaptureFixture) -> None:
    """The beginning of the id is enough to find it; the whole grants access."""
    ends = Ends()
    with serving(answering(failing, timing=QUICK, on_end=ends)) as server:
        exchange(server.connect())
    sid = ends.wait().cursor.sid
    assert f"stream {sid[:8]} of GET / ended as failed" in caplog.text
    assert sid not in caplog.text


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/chat?key=secret", "of GET /chat ended"),
        ("/a%0Astream%20x", r"of GET /a\nstream x ended"),
        (f"/streams/{'A' * 22}", "of GET /streams/… ended"),
        (f"/{'a' * 500}", f"of GET /{'a' * 199} ended"),
    ],
    ids=["a query", "a line", "a stream's id", "long"],
)
def test_the_log_names_what_was_asked_for_bounded_and_in_one_line(
    target: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(answering(failing, timing=QUICK)) as server:
        exchange(server.connect(), path=target)
    assert said in caplog.text
    assert "secret" not in caplog.text


def test_an_exceptions_message_goes_to_the_log_and_not_to_the_reader(caplog: pytest.LogCaptureFixture) -> None:
    async def leaking() -> AsyncIterator[str]:
        yield "t0 "
        raise ValueError("password=hunter2")

    with serving(answering(leaking, timing=QUICK)) as server:
        response = exchange(server.connect())
    assert b"hunter2" not in response.body
    assert b"ValueError" in response.body
    assert "hunter2" in caplog.text


def test_the_headers_of_an_answer() -> None:
    options = {"headers": [("X-Own", "1"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("Vary", "Cookie")]}
    with serving(answering(tokens, status=201, **options)) as server:
        response = exchange(server.connect())
    assert response.status == 201
    own = [(name, value) for name, value in response.headers if name not in ("date", "server", "streamguard")]
    assert own == [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("cache-control", "no-store, no-transform"),
        ("x-accel-buffering", "no"),
        ("incremental", "?1"),
        ("x-content-type-options", "nosniff"),
        ("vary", "Origin, Streamguard, Last-Event-ID"),
        ("x-own", "1"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("vary", "Cookie"),
        # What follows is the server's: the request asked for it.
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
    ]
    promise = parse_answer(response.header("streamguard"))
    assert promise is not None
    assert (promise.dialect, promise.wire) == ("native", "sse")
    assert f": streamguard 1 {promise.cursor}\n".encode() in response.body


def test_framing_and_the_guards_own_header_are_not_the_callers_to_set() -> None:
    theirs = [
        ("Content-Length", "5"),
        ("Connection", "close"),
        ("Transfer-Encoding", "identity"),
        ("Streamguard", f'v=1, cursor="{CURSOR}", dialect=openai, wire=ndjson'),
    ]
    with serving(answering(tokens, headers=theirs)) as server, server.connect() as connection:
        connection.get()
        head = connection.until(b"0\r\n\r\n").partition(b"\r\n\r\n")[0].lower()
    assert b"content-length" not in head
    assert b"connection:" not in head
    assert head.count(b"streamguard:") == 1
    assert b"dialect=native" in head


def test_a_header_of_the_callers_replaces_ours() -> None:
    with serving(answering(tokens, headers=[("cache-control", "private, no-store, no-transform")])) as server:
        assert exchange(server.connect()).header("cache-control") == "private, no-store, no-transform"


@pytest.mark.parametrize("wire", ["sse", "ndjson", "binary"])
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_head_starts_no_source_and_has_the_headers_of_get(wire: str, method: str) -> None:
    started = []

    async def counted() -> AsyncIterator[str]:
        started.append(1)
        yield "t"

    with serving(answering(counted, wire=wire)) as server:
        head, get = [exchange(server.connect(), name) for name in ("HEAD", "GET")]
    names = [name for name, _ in get.headers if name not in ("streamguard", "transfer-encoding")]
    assert (head.status, head.body, len(started)) == (200, b"", 1)
    assert [name for name, _ in head.headers if name != "transfer-encoding"] == names
    assert head.header("content-type") == get.header("content-type")


def test_head_leaves_the_connection_usable_and_makes_no_outcome() -> None:
    ends = Ends()
    with serving(answering(tokens, on_end=ends)) as server, server.connect() as connection:
        connection.request("HEAD", "/")
        connection.until(b"\r\n\r\n")
        connection.get()
        connection.until(b"event: end")
        assert ends.wait().status == "complete"
    assert len(ends.outcomes) == 1


@pytest.fixture
def fresh_warning() -> None:
    asgi._warn_http10.cache_clear()


@STACK
@pytest.mark.usefixtures("fresh_warning")
def test_http_1_0_gets_the_terminal_in_band_and_one_warning(
    stack: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(answering(failing, timing=QUICK), http=stack[0], loop=stack[1]) as server:
        responses = [exchange(server.connect(), version="1.0") for _ in range(2)]
    assert [response.verdict for response in responses] == [Verdict.FAILED] * 2
    assert len([record for record in caplog.records if "HTTP/1.0" in record.message]) == 1
    assert "http10=?1" in responses[0].header("streamguard")  # for `check`, which asks through what asked so


@STACK
def test_http_1_0_buffered_has_its_length(stack: tuple[str, str]) -> None:
    with serving(answering(tokens, http10="buffer"), http=stack[0], loop=stack[1]) as server:
        response = exchange(server.connect(), version="1.0")
    assert (response.status, response.clean, response.verdict) == (200, True, Verdict.COMPLETE)
    assert response.header("content-length") == str(len(response.body))
    assert "http10" not in response.header("streamguard")


@pytest.mark.parametrize("sealed", [False, True])
def test_http_1_0_buffered_and_failed_is_a_whole_502(sealed: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = answering(failing, http10="buffer", timing=QUICK)
    with serving(SealMiddleware(app) if sealed else app) as server:
        response = exchange(server.connect(), version="1.0")
    assert told(response) == (502, "overloaded", "the model is overloaded")
    assert response.header("cache-control") == "no-store, no-transform"
    assert response.header("x-should-retry") == "true"
    assert "without completing" not in caplog.text


def told(response: Response) -> tuple[int, str, str]:
    """What an answer that is no stream says: its status, its code and its message."""
    assert response.header("content-type") == "application/problem+json"
    assert response.header("content-length") == str(len(response.body))
    body = json.loads(response.body)
    assert body["status"] == response.status
    return response.status, body["code"], body["detail"]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_early_failure_is_its_status_over_http_1_0_too_and_one_line_in_the_log(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = answering(lambda: failing(0), http10="buffer", timing=Timing(linger=0.05, peek=60.0))
    with serving(SealMiddleware(app)) as server:
        response = exchange(server.connect(), version=version)
    assert told(response) == (503, "overloaded", "the model is overloaded")
    lines = [record for record in caplog.records if "overloaded" in record.message]
    assert [(record.levelname, record.exc_info) for record in lines] == [("WARNING", None)]


def test_http_1_0_buffered_tells_of_a_stream_that_was_cancelled() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        answer = GuardedAnswer(tokens(), http10="buffer", timing=QUICK)
        answer.cancel(Failure("enough", "somebody pressed stop"))
        await answer(scope, receive, send)

    with serving(app) as server:
        assert told(exchange(server.connect(), version="1.0")) == (502, "enough", "somebody pressed stop")


@pytest.mark.parametrize(("source", "status"), [(tokens, 200), (failing, 502)])
def test_plain_text_may_be_buffered_for_http_1_0(source: Any, status: int) -> None:
    with serving(answering(source, dialect="text", http10="buffer", timing=QUICK)) as server:
        response = exchange(server.connect(), version="1.0")
    assert (response.status, response.header("content-length")) == (status, str(len(response.body)))
    assert status != 200 or response.body == b"t0 t1 t2 "


@pytest.mark.usefixtures("fresh_warning")
def test_a_refusal_of_http_1_0_is_told_once_with_what_to_set(caplog: pytest.LogCaptureFixture) -> None:
    with serving(answering(tokens, dialect="text")) as server:
        responses = [exchange(server.connect(), version="1.0") for _ in range(2)]
    said = "HTTP/1.0 cannot carry this stream; in nginx set `proxy_http_version 1.1`"
    assert [told(response) for response in responses] == [(426, "http_1_0", said)] * 2
    lines = [record.message for record in caplog.records if "HTTP/1.0" in record.message]
    assert len(lines) == 1
    assert "refused with 426" in lines[0]
    assert "`proxy_http_version 1.1` in nginx, or choose http10='buffer'" in lines[0]


def test_http_1_0_buffered_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(asgi, "MAX_BUFFERED", 1000)
    ends = Ends()
    with serving(answering(lambda: tokens(1000), http10="buffer", on_end=ends, timing=QUICK)) as server:
        response = exchange(server.connect(), version="1.0")
    assert told(response) == (502, "too_large", "the answer is above the 1000 bytes that are held for HTTP/1.0")
    assert ends.wait().items < 100
    assert "1000 bytes" in caplog.text


@pytest.mark.parametrize(
    "options", [{"http10": "refuse"}, {"dialect": "text"}, {"dialect": "text", "http10": "refuse"}]
)
def test_http_1_0_refused_is_426_and_starts_nothing(options: dict[str, Any]) -> None:
    ends = Ends()
    with serving(answering(tokens, on_end=ends, **options)) as server:
        response = exchange(server.connect(), version="1.0")
    assert (response.status, response.header("upgrade"), response.clean) == (426, "HTTP/1.1", True)
    assert ends.outcomes == []


@pytest.mark.parametrize("http10", ["warn", "buffer", "refuse"])
def test_the_http_1_0_setting_changes_nothing_for_1_1(http10: str) -> None:
    with serving(answering(tokens, http10=http10)) as server:
        response = exchange(server.connect())
    assert response.header("transfer-encoding") == "chunked"
    assert response.verdict is Verdict.COMPLETE


EVENTS = {"accept": "text/event-stream"}
OURS = {"streamguard": "v=1"}


@pytest.mark.parametrize(
    ("method", "headers", "cursor", "status"),
    [
        ("GET", OURS, f"{CURSOR}.complete", 204),
        ("GET", EVENTS, f"{CURSOR}.failed", 204),
        ("GET", EVENTS, f"{CURSOR}.lost", 204),
        ("POST", {}, f"{CURSOR}.cancelled", 204),
        ("GET", OURS, CURSOR, 404),
        ("POST", OURS, CURSOR, 404),
        ("POST", {}, CURSOR, 409),
        ("POST", EVENTS, CURSOR, 409),
        ("GET", {}, CURSOR, 404),
        ("GET", EVENTS, CURSOR, 200),
    ],
)
@pytest.mark.parametrize("place", ["header", "after"])
def test_a_request_that_bears_a_cursor_never_starts_a_source(
    method: str, headers: dict[str, str], cursor: str, status: int, place: str
) -> None:
    started = []

    async def counted() -> AsyncIterator[str]:
        started.append(1)
        yield "t"

    path = "/" if place == "header" else f"/?prompt=hi&after={cursor}"
    fields = {**headers, "last_event_id": cursor} if place == "header" else headers
    ends = Ends()
    with serving(answering(counted, on_end=ends)) as server:
        response = exchange(server.connect(), method, path, **fields)
    assert (response.status, started, ends.outcomes) == (status, [], [])
    assert response.header("cache-control") == "no-store, no-transform"
    assert response.header("x-should-retry") == (None if status in (200, 204) else "false")
    assert response.clean == (status != 200)


def test_an_event_source_with_a_lost_stream_is_told_and_then_stopped() -> None:
    with serving(answering(tokens)) as server:
        first = exchange(server.connect(), accept="text/event-stream", last_event_id=CURSOR)
        assert f"id: {CURSOR}.lost\n".encode() in first.body
        again = exchange(server.connect(), accept="text/event-stream", last_event_id=f"{CURSOR}.lost")
    assert (first.verdict, first.clean, again.status) == (Verdict.GAP, False, 204)


def test_an_applications_own_last_event_id_starts_a_stream() -> None:
    with serving(answering(tokens)) as server:
        assert exchange(server.connect(), last_event_id="42").verdict is Verdict.COMPLETE


@pytest.mark.parametrize(
    ("request_", "place"),
    [
        ({}, b": sg "),
        ({"streamguard": "v=1"}, b"id: "),
        ({"path": "/?sg=v%3D1"}, b"id: "),
        ({"accept": "text/event-stream"}, b"id: "),
        ({"last_event_id": "42"}, b"id: "),
    ],
)
def test_where_the_cursor_stands_in_the_dialect_of_an_sdk(request_: dict[str, str], place: bytes) -> None:
    with serving(answering(tokens, dialect="openai")) as server:
        response = exchange(server.connect(), **request_)
    frames = [block for block in response.body.split(b"\n\n") if b"data: " in block]
    assert len(frames) == 5  # three tokens, the finish chunk, `[DONE]`
    assert all(place in frame for frame in frames)
    assert {place} == {mark for mark in (b"id: ", b": sg ") if mark in response.body}


def test_the_field_may_come_in_several_lines() -> None:
    with serving(answering(tokens, dialect="openai")) as server, server.connect() as connection:
        connection.send(b"GET / HTTP/1.1\r\nhost: test\r\nstreamguard: v=1\r\nstreamguard: flush=token\r\n\r\n")
        assert b"\nid: " in connection.until(b"[DONE]")


@pytest.mark.parametrize(
    ("abort", "streamguard", "clean"),
    [
        ("always", "v=1", False),
        ("always", "v=9", False),
        ("unless-negotiated", "v=1", True),
        ("unless-negotiated", "v=9", False),
    ],
)
def test_only_a_reader_that_verifies_may_be_spared_the_abort(abort: str, streamguard: str, clean: bool) -> None:
    with serving(answering(failing, abort=abort, timing=QUICK)) as server:
        response = exchange(server.connect(), streamguard=streamguard)
    assert (response.clean, response.verdict) == (clean, Verdict.FAILED)


def test_a_reader_that_hangs_up_at_the_failure_ends_the_linger() -> None:
    ends = Ends()
    with serving(answering(failing, timing=Timing(linger=600.0), on_end=ends)) as server:
        with server.connect() as connection:
            connection.get()
            connection.until(b"event: end")
        assert ends.wait().status == "failed"


def test_a_reader_that_does_not_hang_up_is_cut_after_the_linger() -> None:
    with serving(answering(failing, timing=Timing(linger=0.0))) as server:
        assert not exchange(server.connect()).clean


@STACK
def test_an_unread_request_body_does_not_tear_the_terminal(stack: tuple[str, str]) -> None:
    """Unread bytes in the server's socket turn its close into a reset, which overtakes what was sent."""
    with serving(answering(failing), http=stack[0], loop=stack[1]) as server:
        response = exchange(server.connect(), "POST", body=b"x" * 8_000_000)
    assert (response.clean, response.verdict) == (False, Verdict.FAILED)


class TestPeek:
    def test_a_failure_before_the_first_item_is_an_http_status(self) -> None:
        with serving(answering(lambda: failing(0), timing=Timing(peek=60.0))) as server:
            response = exchange(server.connect())
        assert (response.status, response.clean) == (503, True)

    def test_a_failure_that_no_retry_helps_is_a_500(self) -> None:
        async def refused() -> AsyncIterator[str]:
            raise SourceFailed("too_long", "the prompt is too long")
            yield ""

        with serving(answering(refused, timing=Timing(peek=60.0))) as server:
            response = exchange(server.connect())
        assert response.status == 500
        assert b'"code":"too_long"' in response.body

    def test_without_peek_it_is_a_terminal_at_once(self) -> None:
        with serving(answering(lambda: failing(0), timing=QUICK)) as server:
            response = exchange(server.connect())
        assert (response.status, response.verdict) == (200, Verdict.FAILED)

    def test_headers_wait_no_longer_than_the_peek(self) -> None:
        gate = Gate()

        async def late() -> AsyncIterator[str]:
            await gate
            yield "t0 "

        with serving(answering(late, timing=Timing(peek=0.05))) as server, server.connect() as connection:
            connection.get()
            connection.until(b": streamguard 1 ")
            gate.open()
            connection.until(b"event: end")

    def test_a_failure_after_the_peek_is_a_terminal(self) -> None:
        gate = Gate()

        async def late() -> AsyncIterator[str]:
            await gate
            raise SourceFailed("late", "too late for a status")
            yield

        timing = Timing(peek=0.05, linger=0.05)
        with serving(answering(late, timing=timing)) as server, server.connect() as connection:
            connection.get()
            connection.until(b": streamguard 1 ")
            gate.open()
            assert b'"code":"late"' in connection.rest()


class TestOutcome:
    @pytest.mark.parametrize(
        ("source", "status", "delivered"), [(tokens, "complete", "unknown"), (failing, "failed", "no")]
    )
    def test_every_end_is_reported_once(self, source: Any, status: str, delivered: str) -> None:
        ends = Ends()
        with serving(answering(source, on_end=ends, timing=QUICK)) as server:
            response = exchange(server.connect(), x_request_id="r-1")
        assert len(ends.outcomes) == 1
        outcome = ends.outcomes[0]
        assert (outcome.status, outcome.delivered, outcome.request_id) == (status, delivered, "r-1")
        assert outcome.sent == len(response.body)
        assert str(outcome.cursor).encode() in response.body

    def test_an_instant_disconnect_is_reported(self) -> None:
        ends = Ends()
        arrived = Gate()

        async def endless() -> AsyncIterator[str]:
            arrived.open()
            await asyncio.Event().wait()
            yield ""

        with serving(answering(endless, on_end=ends)) as server:
            with server.connect() as connection:
                connection.get()
                arrived.wait()
            assert ends.wait().status == "gone"

    def test_a_hook_that_raises_harms_no_stream(self, caplog: pytest.LogCaptureFixture) -> None:
        def raising(outcome: object) -> None:
            raise RuntimeError("metrics are down")

        with serving(answering(tokens, on_end=raising)) as server:
            assert exchange(server.connect()).verdict is Verdict.COMPLETE
        assert "metrics are down" in caplog.text


class TestCancel:
    def test_a_cancelled_stream_says_so_and_is_aborted(self) -> None:
        answers: list[GuardedAnswer] = []

        async def waiting() -> AsyncIterator[str]:
            yield "t0 "
            await asyncio.Event().wait()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            answers.append(GuardedAnswer(waiting(), timing=QUICK))
            await answers[0](scope, receive, send)

        with serving(app) as server, server.connect() as connection:
            connection.get()
            connection.until(b"t0 ")
            server.call(answers[0].cancel, Failure("stopped", "somebody pressed stop"))
            body = connection.rest()
        assert b".cancelled\n" in body
        assert b'"code":"stopped"' in body
        assert not body.endswith(b"0\r\n\r\n")

    def test_a_cancel_that_comes_before_the_request_is_kept(self) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            answer = GuardedAnswer(asyncio.Event().wait, timing=QUICK)  # a source that never comes
            answer.cancel(Failure("early", "stopped before it began"))
            await answer(scope, receive, send)

        with serving(app) as server:
            response = exchange(server.connect())
        assert response.verified().receipt.status == "cancelled"
        assert b'"code":"early"' in response.body

    def test_a_cancel_after_the_end_changes_nothing(self) -> None:
        answers: list[GuardedAnswer] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            answers.append(GuardedAnswer(tokens(), timing=QUICK))
            await answers[0](scope, receive, send)

        with serving(app) as server:
            response = exchange(server.connect())
            server.call(answers[0].cancel)
        assert response.verdict is Verdict.COMPLETE
        assert answers[0].outcome is not None
        assert answers[0].outcome.status == "complete"


SESSION: contextvars.ContextVar[str] = contextvars.ContextVar("session", default="none")


def test_a_context_variable_of_the_endpoint_is_the_same_at_every_step() -> None:
    async def source() -> AsyncIterator[str]:
        for _ in range(3):
            yield SESSION.get() + " "
            await asyncio.sleep(0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        SESSION.set(scope["path"][1:])
        await GuardedAnswer(source())(scope, receive, send)

    with serving(app) as server:
        for name in ("a", "b"):
            body = exchange(server.connect(), path=f"/{name}").body
            assert body.count(f'data: "{name} "'.encode()) == 3


def test_two_loops_in_two_threads_do_not_meet() -> None:
    app = answering(lambda: tokens(200))
    results: list[Verdict] = []
    with serving(app) as one, serving(app, loop="asyncio") as two:
        threads = [
            threading.Thread(target=lambda port=port: results.append(exchange(port.connect()).verdict))
            for port in (one, two, one, two)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [Verdict.COMPLETE] * 4


def test_a_bad_stream_harms_no_later_one() -> None:
    pool = iter([failing(), tokens(), failing(), tokens()])
    ends = Ends()
    with serving(answering(pool.__next__, on_end=ends, timing=QUICK)) as server:
        verdicts = [exchange(server.connect()).verdict for _ in range(4)]
    assert verdicts == [Verdict.FAILED, Verdict.COMPLETE] * 2
    assert len(ends.outcomes) == 4


class TestOptions:
    def test_text_and_plain_go_together(self) -> None:
        assert AnswerOptions(dialect="text").carrier(None).name == "plain"
        for options in ({"dialect": "text", "wire": "sse"}, {"wire": "plain"}):
            with pytest.raises(ValueError, match="go together"):
                AnswerOptions(**options)  # type: ignore[arg-type]

    @pytest.mark.parametrize("option", ["abort", "http10", "unsealed"])
    def test_a_word_that_is_none_of_a_settings_is_refused(self, option: str) -> None:
        with pytest.raises(ValueError, match=option):
            AnswerOptions(**{option: "sometimes"})  # type: ignore[arg-type]

    def test_options_given_by_name_win(self) -> None:
        base = AnswerOptions(dialect="openai", abort="unless-negotiated")
        answer = GuardedAnswer(tokens, options=base, dialect="native")
        assert answer.options == attrs.evolve(base, dialect="native")

    def test_what_is_no_source_is_refused_at_once(self) -> None:
        with pytest.raises(TypeError, match="no source"):
            GuardedAnswer(42)


def test_a_source_that_was_refused_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """An awaitable that nobody awaits would warn, a generator stay with the garbage collector."""
    closed = []

    class Loading:
        def __await__(self) -> Any:
            yield

        def close(self) -> None:
            closed.append(1)

    with serving(answering(Loading)) as server:
        exchange(server.connect(), "HEAD")
        exchange(server.connect(), last_event_id=CURSOR)
    assert closed == [1, 1]
    assert logging.ERROR not in [record.levelno for record in caplog.records]


def test_a_cancelled_answer_has_its_outcome() -> None:
    async def test() -> None:
        reached, never = asyncio.Event(), asyncio.Event()

        async def source() -> AsyncIterator[str]:
            yield "a "
            reached.set()
            await never.wait()

        async def receive() -> Message:
            await never.wait()
            raise AssertionError

        async def send(message: Message) -> None:
            pass

        answer = GuardedAnswer(source())
        scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "http_version": "1.1"}
        task = asyncio.ensure_future(answer(scope, receive, send))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert answer.outcome is not None
        assert answer.outcome.status == "shutdown"

    asyncio.run(test())


@pytest.mark.parametrize(("named", "meant"), [("1.0", "1.0"), ("1", "1.0"), ("1.1", "1.1"), ("2", "2"), ("3", "3")])
def test_http_1_0_is_known_by_both_names_that_servers_give_it(named: str, meant: str) -> None:
    scope = {"type": "http", "method": "GET", "headers": [], "query_string": b"", "http_version": named}
    assert asgi.request_facts(scope).http_version == meant


def test_a_layer_that_replays_the_body_for_ever_stops_nothing() -> None:
    """A common recipe for logging bodies: its `receive` never gives the loop a turn."""

    async def source() -> AsyncIterator[str]:
        yield "a"
        await asyncio.sleep(0)
        yield "b"

    async def test() -> None:
        async with ScriptedServer(GuardedAnswer(source), conduct=Conduct(told="hidden")) as server:
            assert await server.ending() == "complete"

    asyncio.run(test())
