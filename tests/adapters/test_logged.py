"""A resumable answer over sockets: leaving and coming back, several readers, keys, and what an endpoint may be."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import re
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from streamguard import anyone_with_the_id
from streamguard.adapters.logged import LoggedAnswer
from streamguard.adapters.starlette import StreamGuard
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import Failure, SourceFailed
from streamguard.core.receipt import Verdict
from streamguard.log.base import Retention
from streamguard.log.memory import MemoryLog
from streamguard.runtime.runs import Cancel, Detach, ReadOn
from streamguard.runtime.timing import Timing
from tests.adapters.asgi_apps import Ends, exchange
from tests.adapters.logged_apps import (
    OURS,
    SSE,
    Counted,
    Site,
    by_header,
    cursors,
    reading,
    sid_of,
    text_of,
    wait_until,
)
from tests.adapters.servers import Gate, Server, serving

KEY = "0123456789abcdef-a-long-one"


def state(server: Server, sid: str) -> Any:
    return json.loads(exchange(server.connect(), path="/streams/status", streamguard_stream=sid).body)


def resumed(server: Server, cursor: Cursor) -> Any:
    return exchange(server.connect(), path="/streams", last_event_id=str(cursor), **OURS)


# ---- leaving and coming back ------------------------------------------------------------------------


def leave(server: Server, mark: bytes, **asking: Any) -> Cursor:
    """Ask for the stream, read up to `mark`, and leave; the last cursor."""
    with reading(server, **asking) as connection:
        connection.until(mark)
    return cursors(connection.received)[-1]


def test_who_comes_back_in_time_finds_the_stream_running_and_loses_nothing() -> None:
    gate = Gate()
    site = Site("t0 ", "t1 ", gate, "t2 ", on_disconnect=Detach(60.0))
    with serving(site.app) as server:
        at = leave(server, b't1 "')
        wait_until(lambda: not len(site.guard.readers))
        assert state(server, at.sid)["status"] == "streaming"
        with reading(server, "/streams", last_event_id=str(at), connection="close", **OURS) as again:
            again.until(b"event: open")
            gate.open()
            body = again.rest()
    assert text_of(body) == "t2 "
    assert cursors(body)[-1].status == "complete"
    assert (site.source.starts, site.source.closes) == (1, 1)


def test_who_comes_back_after_the_end_finds_it_all() -> None:
    gate = Gate()
    site = Site("t0 ", gate, "t1 ", on_disconnect=Detach(60.0))
    with serving(site.app) as server:
        at = leave(server, b't0 "')
        gate.open()
        site.source.wait_closed()
        assert text_of(resumed(server, at).body) == "t1 "


@pytest.mark.parametrize("policy", [Cancel(), Detach(0.05), ReadOn(seconds=0.05)], ids=str)
def test_who_comes_back_too_late_finds_a_cancelled_stream(policy: Any) -> None:
    site = Site("t0 ", Gate(), on_disconnect=policy)
    with serving(site.app) as server:
        at = leave(server, b't0 "')
        site.source.wait_closed()
        site.idle()
        late = resumed(server, at)
    assert cursors(late.body)[-1].status == "cancelled"
    assert b'"code":"gone"' in late.body
    assert late.clean  # it verifies, and the cancel was its own
    assert site.source.closes == 1


@pytest.mark.parametrize(
    ("policy", "headers", "why"),
    [
        (Detach(60), {}, "the reader left, and had not said that it can come back: send `Streamguard: v=1` or an "
         "`Idempotency-Key`, or have the endpoint name its streams"),
        (Cancel(), {}, "the reader left"),  # which saying so would not change
        (Detach(0.05), OURS, "the reader left"),
    ],
    ids=["unannounced", "cancel", "announced"],
)  # fmt: skip
def test_who_had_not_said_that_it_can_come_back_is_told_what_to_send(policy: Any, headers: Any, why: str) -> None:
    site = Site("t0 ", Gate(), on_disconnect=policy)
    with serving(site.app) as server:
        with server.connect() as connection:
            connection.request("POST", "/tokens", **headers)
            connection.until(b't0 "')
            at = cursors(connection.received)[-1]
        site.idle()
        late = resumed(server, at).body
    assert f'"message":"{why}"'.encode() in late


def test_a_stream_may_go_on_for_so_many_items_without_a_reader() -> None:
    async def endless() -> AsyncIterator[str]:
        for number in range(100_000):
            yield f"{number} "
            await asyncio.sleep(0.001)

    site = Site("unused", on_disconnect=ReadOn(items=20))
    site.source = endless  # type: ignore[assignment]
    with serving(site.app) as server:
        at = leave(server, b'"5 "')
        site.idle()
        rest = cursors(resumed(server, at).body)
    assert rest[-1].status == "cancelled"
    assert len(rest) > 20


@pytest.mark.parametrize(
    ("asking", "stays"),
    [
        ({"method": "POST", "user": "ann"}, False),
        (OURS, True),
        (SSE, True),
        ({"method": "POST", "idempotency_key": KEY}, True),
    ],
    ids=["an SDK", "ours", "EventSource", "keyed"],
)
def test_only_a_stream_that_its_reader_can_come_back_to_outlives_it(asking: dict[str, Any], stays: bool) -> None:
    gate = Gate()
    site = Site("t0 ", gate, "t1 ", on_disconnect=Detach(60.0))
    with serving(site.app) as server:
        at = leave(server, b't0 "', **asking)
        if not stays:
            site.source.wait_closed()
        gate.open()
        site.idle()
        assert state(server, at.sid)["status"] == ("complete" if stays else "cancelled")


@pytest.mark.parametrize("asking", [OURS, {}], ids=["ours", "SDK"])
def test_a_source_that_falls_silent_is_told_of_as_stalled_to_who_reads_just_then(asking: dict[str, Any]) -> None:
    """And not as a log that fell silent: the limit of both is the same, and a reader's began to run in that moment."""
    site = Site("t0 ", Gate(), timing=Timing(stall=0.05, linger=0.05))
    with serving(site.app, lifespan="on") as server:
        response = exchange(server.connect(), path="/tokens", **asking)
    assert (response.verdict, response.clean) == (Verdict.FAILED, False)
    assert b'"stalled"' in response.body


def test_a_server_that_stops_says_bye_and_lets_the_lease_go() -> None:
    site = Site("t0 ", Gate())
    with contextlib.ExitStack() as after:
        with serving(site.app) as server:
            connection = after.enter_context(reading(server, connection="close", **OURS))
            sid = sid_of(connection.until(b't0 "'))
        body = connection.rest()
    assert b'"reason":"shutdown"' in body
    assert not body.endswith(b"0\r\n\r\n")
    found = asyncio.run(site.state(sid))
    assert (found.sealed, found.held) == (False, False)
    assert site.source.closes == 1


# ---- several readers ------------------------------------------------------------------------------------


def test_each_reader_gets_everything_once() -> None:
    gate = Gate()
    site = Site("t0 ", "t1 ", gate, "t2 ", "t3 ")
    with serving(site.app) as server, reading(server, connection="close", **OURS) as first:
        at = cursor_zero(sid_of(first.until(b't1 "')))
        asked: dict[str, Any] = {"last_event_id": str(at), "connection": "close"}
        with (
            reading(server, "/streams", **asked, **OURS) as second,
            reading(server, "/streams", **asked, **SSE) as third,
        ):
            second.until(b't1 "')
            third.until(b't1 "')
            assert state(server, at.sid)["readers_here"] == 3
            gate.open()
            bodies = [first.rest(), second.rest(), third.rest()]
    assert [text_of(body) for body in bodies] == ["t0 t1 t2 t3 "] * 3
    assert {tuple(cursors(body)) for body in bodies} == {tuple(cursors(bodies[0]))}
    assert (site.source.starts, site.source.closes) == (1, 1)


def test_a_reader_that_takes_nothing_slows_nobody() -> None:
    count, text = 400, "x" * 20_000  # far more than sockets and transports hold
    site = Site(*[text] * count)
    with serving(site.app) as server, server.connect(receive_buffer=4096) as stuck:
        stuck.request("GET", "/tokens", **OURS)
        sid = sid_of(stuck.until(b"\r\n\r\n"))
        with reading(server, "/streams", streamguard_stream=sid, connection="close", **OURS) as quick:
            body = quick.rest()
        assert (len(text_of(body)), cursors(body)[-1].status) == (count * len(text), "complete")
        wait_until(lambda: len(site.guard.readers) == 1)  # the quick one is let go of behind its last byte
        slow = stuck.until(b".complete")
        assert len(text_of(slow)) == count * len(text)


def test_above_the_limit_the_oldest_reader_goes_and_the_stream_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    site = Site("t0 ", gate, "t1 ", max_readers=2)
    with serving(site.app) as server, reading(server, connection="close", **OURS) as first:
        sid = sid_of(first.until(b't0 "'))
        asked: dict[str, Any] = {"streamguard_stream": sid, "connection": "close", **OURS}
        with reading(server, "/streams", **asked) as second, reading(server, "/streams", **asked) as third:
            third.until(b't0 "')
            body = first.rest()
            second.until(b't0 "')
            gate.open()
            rest = [second.rest(), third.rest()]
    assert re.search(rb'event: bye\nretry: \d+\ndata: {"cursor":"', body)
    assert b'"reason":"replaced"}\n\n' in body
    assert not body.endswith(b"0\r\n\r\n")
    assert [text_of(one) for one in rest] == ["t0 t1 "] * 2
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert site.source.closes == 1


def test_an_exclusive_stream_has_one_client_that_may_replace_itself() -> None:
    gate = Gate()
    site = Site("t0 ", gate, "t1 ", exclusive=True)
    with serving(site.app) as server:
        with reading(server, connection="close", streamguard_client="a", **OURS) as first:
            sid = sid_of(first.until(b't0 "'))
            asked: dict[str, Any] = {"streamguard_stream": sid, "connection": "close", **OURS}
            others: list[dict[str, Any]] = [{"streamguard_client": "b"}, {}]
            for other in others:
                busy = exchange(server.connect(), path="/streams", streamguard_stream=sid, **OURS, **other)
                assert (busy.status, json.loads(busy.body)["code"]) == (409, "busy")
            with reading(server, "/streams", streamguard_client="a", **asked) as again:
                again.until(b't0 "')
                assert b'"reason":"replaced"' in first.rest()
                gate.open()
                assert text_of(again.rest()) == "t0 t1 "
        site.idle()
        late = exchange(server.connect(), path="/streams", streamguard_stream=sid, streamguard_client="b", **OURS)
        assert late.verdict is Verdict.COMPLETE


def test_a_busy_stream_is_one_answer_over_http_1_0_too(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    site = Site("t0 ", gate, exclusive=True, http10="buffer")
    key: dict[str, Any] = {"idempotency_key": "k" * 22}
    with serving(site.app) as server, reading(server, streamguard_client="a", **key, **OURS) as first:
        first.until(b't0 "')
        with server.connect() as second:
            second.request("GET", "/tokens", version="1.0", streamguard_client="b", **key, **OURS)
            answer = second.rest()
        gate.open()
    assert (answer.split(b" ")[1], answer.count(b"HTTP/1.")) == (b"409", 1)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_everything_is_let_go_once_by_the_last_that_holds_it() -> None:
    gate = Gate()
    log = MemoryLog()
    site = Site("t0 ", gate, "t1 ", log=log)
    with serving(site.app) as server:
        with reading(server, connection="close", **OURS) as connection:
            sid = sid_of(connection.until(b't0 "'))
            running: Any = site.guard.runs.get(sid)
            run = weakref.ref(running)
            del running
            with reading(server, "/streams", streamguard_stream=sid, **OURS) as other:
                other.until(b't0 "')
            gate.open()
            connection.rest()
        site.idle()

        def let_go() -> bool:
            server.call(gc.collect)
            return (run(), len(site.guard.runs.background)) == (None, 0)

        wait_until(let_go)
        assert log.bytes > 0
        assert text_of(resumed(server, cursor_zero(sid)).body) == "t0 t1 "
        assert server.call(site.purge, sid) == 1
    assert (log.bytes, log.streams, site.source.starts, site.source.closes) == (0, 0, 1, 1)


# ---- keys --------------------------------------------------------------------------------------------------


def post(server: Server, body: bytes = b"prompt", key: str | None = KEY, path: str = "/tokens", **headers: Any) -> Any:
    own: dict[str, Any] = {} if key is None else {"idempotency_key": key}
    return exchange(server.connect(), "POST", path, body=body, **own, **headers)


def test_the_same_request_under_the_same_key_is_one_generation() -> None:
    site = Site("t0 ", "t1 ")
    with serving(site.app) as server:
        answers = [post(server), post(server), post(server, **OURS)]
    assert len({sid_of(answer) for answer in answers}) == 1
    assert [answer.verdict for answer in answers] == [Verdict.COMPLETE] * 3
    assert site.source.starts == 1


def test_who_comes_while_it_runs_reads_it_from_its_start() -> None:
    gate = Gate()
    site = Site("t0 ", gate, "t1 ")
    with serving(site.app) as server:
        asked: Any = {"method": "POST", "body": b"prompt", "idempotency_key": KEY, "connection": "close"}
        with reading(server, **asked) as first:
            first.until(b't0 "')
            with reading(server, **asked) as second:
                second.until(b't0 "')
                gate.open()
                bodies = [first.rest(), second.rest()]
    assert [text_of(body) for body in bodies] == ["t0 t1 "] * 2
    assert site.source.starts == 1


def test_two_at_the_same_moment_are_one_generation() -> None:
    gate = Gate()
    site = Site("t0 ", gate, "t1 ")

    class Meeting(MemoryLog):
        """Both look before either creates."""

        looked = 0
        both = asyncio.Event()

        async def find_key(self, key: str) -> Any:
            found = await super().find_key(key)
            self.looked += 1
            if self.looked == 2:
                self.both.set()
            await self.both.wait()
            return found

    site.guard.log = Meeting()
    with serving(site.app) as server:
        asked: Any = {"method": "POST", "body": b"prompt", "idempotency_key": KEY, "connection": "close"}
        with reading(server, **asked) as first, reading(server, **asked) as second:
            first.until(b't0 "')
            second.until(b't0 "')
            gate.open()
            bodies = [first.rest(), second.rest()]
    assert cursors(bodies[0]) == cursors(bodies[1])
    assert (site.source.starts, site.source.closes) == (1, 1)


@pytest.mark.parametrize("what", ["body", "query", "path with a parameter"])
def test_another_request_under_the_same_key_is_refused(what: str) -> None:
    site = Site("t0 ")
    with serving(site.app) as server:
        post(server, b"one")
        path = {"query": "/tokens?x=1"}.get(what, "/tokens")
        again = post(server, b"two" if what == "body" else b"one", path=path)
        if what == "path with a parameter":  # Starlette tells no route: another path is another scope
            assert again.status == 200
            return
    assert (again.status, json.loads(again.body)["code"]) == (422, "key_reused")
    assert site.source.starts == 1


def test_where_a_reader_stands_is_no_part_of_what_it_asked_for() -> None:
    site = Site("t0 ", "t1 ")
    with serving(site.app) as server:
        first = post(server)
        at = cursors(first.body)[0]
        again = post(server, path=f"/tokens?after={at}", **OURS)
        other = post(server, b"another prompt", None, last_event_id=str(at), **OURS)
    assert text_of(again.body) == "t1 "
    assert (other.status, json.loads(other.body)["code"]) == (422, "key_reused")
    assert site.source.starts == 1


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
def test_an_end_that_is_no_completion_gives_the_key_free(ending: str) -> None:
    site = Site("t0 ", RuntimeError("broke")) if ending == "failed" else Site("t0 ", Gate(), on_disconnect=Cancel())
    with serving(site.app) as server:
        sids = set()
        for _ in range(2):
            with reading(server, method="POST", body=b"prompt", idempotency_key=KEY) as connection:
                sids.add(sid_of(connection.until(b't0 "')))
            site.idle()
    assert (len(sids), site.source.starts) == (2, 2)


def test_a_key_is_its_principals_own() -> None:
    site = Site("t0 ")
    with serving(site.app) as server:
        sids = {sid_of(post(server, user=user)) for user in ("ann", "bob")}
    assert (len(sids), site.source.starts) == (2, 2)


@pytest.mark.parametrize(("key", "status"), [("a" * 21, 400), ("a" * 22, 200)])
def test_a_stranger_needs_a_key_that_nobody_guesses(key: str, status: int) -> None:
    site = Site("t0 ", authorize=anyone_with_the_id)
    with serving(site.app) as server:
        answer = post(server, key=key)
    assert answer.status == status
    if status == 400:
        assert json.loads(answer.body)["code"] == "weak_key"
    assert site.source.starts == (status == 200)


def test_an_event_source_has_its_key_in_the_query() -> None:
    """It connects again after a cut before its first frame, and without a key that would be a second generation."""
    site = Site("t0 ", "t1 ")
    with serving(site.app) as server:
        for _ in range(2):
            answer = exchange(server.connect(), path="/tokens?sg=key=a-key-of-a-page", **SSE)
            assert text_of(answer.body) == "t0 t1 "
        bad = exchange(server.connect(), path="/tokens?sg=key=550e", **SSE)
    assert (bad.status, json.loads(bad.body)["code"]) == (400, "bad_key")
    assert site.source.starts == 1


def test_a_stream_under_a_key_that_is_kept_in_part_only_is_told() -> None:
    site = Site(*[f"t{number} " for number in range(30)], retention=Retention(max_bytes=3000))
    with serving(site.app) as server:
        post(server)
        answer = post(server, **OURS)
    assert (answer.status, json.loads(answer.body)["code"]) == (410, "trimmed")


# ---- endpoints ------------------------------------------------------------------------------------------------


def an_app(endpoint: Any, **options: Any) -> tuple[StreamGuard, Starlette]:
    guard = StreamGuard(MemoryLog(), authorize=by_header)
    wrapped = guard.stream(**{"timing": Timing(linger=0.05), **options})(endpoint)
    app = Starlette(routes=[Route("/tokens", wrapped, methods=["GET", "POST"])])
    guard.install(app)
    return guard, app


@pytest.mark.parametrize("kind", ["yields", "returns"])
def test_a_body_that_was_read_for_its_key_is_there_for_the_endpoint(kind: str) -> None:
    async def yields(request: Request) -> AsyncIterator[str]:
        yield (await request.body()).decode()

    async def returns(request: Request) -> Any:
        text = (await request.body()).decode()
        return iter([text])

    _, app = an_app({"yields": yields, "returns": returns}[kind])
    with serving(app) as server:
        assert text_of(post(server, b"a prompt").body) == "a prompt"
        assert text_of(post(server, b"a prompt", None).body) == "a prompt"


def test_an_endpoint_that_returns_its_source_runs_only_to_start_a_stream() -> None:
    runs = []
    source = Counted("t0 ", "t1 ")

    async def endpoint(request: Request) -> Any:
        runs.append(request.method)
        return source()

    _, app = an_app(endpoint)
    with serving(app) as server:
        first = post(server)
        assert text_of(first.body) == "t0 t1 "
        at = cursors(first.body)[0]
        assert post(server).status == 200
        assert post(server, b"other").status == 422
        assert post(server, user="nobody").status == 403
        assert exchange(server.connect(), "HEAD", "/tokens").status == 200
        assert exchange(server.connect(), path="/tokens", last_event_id=str(at), **OURS).status == 200
    assert (runs, source.starts, source.closes) == (["POST"], 1, 1)


def test_an_endpoint_may_answer_otherwise_or_refuse() -> None:
    async def endpoint(request: Request) -> Any:
        if "refuse" in request.query_params:
            raise HTTPException(418)
        return JSONResponse({"whole": True})

    guard, app = an_app(endpoint)
    with serving(app) as server:
        assert exchange(server.connect(), path="/tokens?refuse").status == 418
        assert json.loads(exchange(server.connect(), path="/tokens").body) == {"whole": True}
    assert len(guard.runs) == 0


@pytest.mark.parametrize(
    ("exc", "status"), [(SourceFailed("busy", "later", retryable=True), 503), (HTTPException(418), 418)]
)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_in_peek_an_early_failure_is_a_status(
    exc: Exception, status: int, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(exc, timing=Timing(linger=0.05, peek=60.0), http10="buffer")
    with serving(site.app) as server:
        assert exchange(server.connect(), path="/tokens", version=version, **OURS).status == status
    assert site.source.closes == 1
    assert len([record for record in caplog.records if "busy: later" in record.message]) == (status == 503)


def test_a_failure_after_the_first_item_is_a_terminal_in_peek_too() -> None:
    site = Site("t0 ", SourceFailed("busy", "later"), timing=Timing(linger=0.05, peek=60.0))
    with serving(site.app) as server:
        answer = exchange(server.connect(), path="/tokens", **OURS)
    assert (answer.status, answer.verdict, text_of(answer.body)) == (200, Verdict.FAILED, "t0 ")


@pytest.mark.parametrize(("script", "status"), [(["t0 "], 200), (["t0 ", RuntimeError("broke")], 502)])
def test_over_http_1_0_the_answer_may_come_in_one_piece(script: list[Any], status: int) -> None:
    site = Site(*script, http10="buffer")
    with serving(site.app) as server, server.connect() as connection:
        connection.request("GET", "/tokens", version="1.0")
        head, _, body = connection.rest().partition(b"\r\n\r\n")
    assert int(head.split(b" ")[1]) == status
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert status == 200 or json.loads(body)["code"] == "source_error"


def test_a_confidential_stream_is_left_alone_by_what_compresses() -> None:
    for confidential in (True, False):
        site = Site("t0 ", confidential=confidential, wire="ndjson")
        site.app.add_middleware(GZipMiddleware, minimum_size=1)
        with serving(site.app) as server:
            answer = exchange(server.connect(), path="/tokens", accept_encoding="gzip")
            again = exchange(
                server.connect(), path="/streams", streamguard_stream=sid_of(answer), accept_encoding="gzip"
            )
        coding = "identity" if confidential else "gzip"
        assert (answer.header("content-encoding"), again.header("content-encoding")) == (coding, coding)


def test_a_stream_keeps_its_carrier_save_for_an_event_source() -> None:
    site = Site("t0 ", "t1 ", wire="ndjson")
    with serving(site.app) as server:
        first = exchange(server.connect(), path="/tokens", **OURS)
        at = json.loads(first.body.split(b"\n")[1])["id"]
        again = exchange(server.connect(), path="/streams", last_event_id=at, **OURS)
        browser = exchange(server.connect(), path="/streams", last_event_id=at, **SSE)
    assert again.header("content-type") == first.header("content-type") == "application/x-ndjson"
    assert json.loads(again.body.split(b"\n")[1])["data"] == '"t1 "'
    assert text_of(browser.body) == "t1 "


def test_the_hook_is_told_once_whoever_reads() -> None:
    ends = Ends()
    site = Site("t0 ", on_end=ends)
    with serving(site.app) as server:
        at = cursors(exchange(server.connect(), path="/tokens", **OURS).body)[0]
        resumed(server, at)
        assert ends.wait().status == "complete"
    assert len(ends.outcomes) == 1


def test_a_response_of_the_guards_own_can_be_named_and_cancelled() -> None:
    guard = StreamGuard(MemoryLog(), authorize=by_header)
    responses = []
    source = Counted("t0 ", Gate())

    async def endpoint(request: Request) -> Response:
        response = guard.response(request, source(), headers={"x-chat": "seven"}, name="seven")
        responses.append(response)
        return response

    app = Starlette(routes=[Route("/tokens", endpoint)])
    guard.install(app)
    with serving(app) as server, reading(server, connection="close", **OURS) as connection:
        connection.until(b't0 "')
        assert b"x-chat: seven" in connection.received
        server.call(responses[0].cancel, Failure("enough", "it is enough"))
        body = connection.rest()
        found = exchange(server.connect(), path="/streams?name=seven", **OURS)
    assert b'"code":"enough"' in body
    assert cursors(found.body)[-1].status == "cancelled"
    assert responses[0].outcome is not None
    assert responses[0].outcome.status == "cancelled"
    assert source.closes == 1


def test_a_logged_answer_serves_one_request(caplog: pytest.LogCaptureFixture) -> None:
    guard = StreamGuard(MemoryLog(), authorize=lambda asked, action: "ann")
    source = Counted("t0 ")
    answer = LoggedAnswer(guard, source())
    with serving(answer) as server:
        assert [exchange(server.connect()).status for _ in range(2)] == [200, 500]
    assert "serves one request" in caplog.text
    assert source.closes == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"on_disconnect": 60}, "on_disconnect is a Cancel"),
        ({"name": 7}, "name is a text"),
        ({"exclusive": 1}, "exclusive"),
        ({"resumer": "f"}, "resumer"),
        ({"dialect": "text"}, "cannot be resumed"),
        ({"flsh": None}, "unknown option 'flsh'"),
    ],
)
def test_options_are_checked_where_they_are_given(options: Any, error: str) -> None:
    guard = StreamGuard(MemoryLog(), authorize=by_header)
    with pytest.raises((TypeError, ValueError), match=error):
        guard.stream(**options)


def test_a_resumer_is_kept_under_the_name_that_its_streams_bear() -> None:
    def resumer(state: Any) -> None: ...

    site = Site("t0 ", resumer=resumer)
    known = dict(site.guard.resumers)  # before the first request: it may be for another process's stream
    with serving(site.app) as server:
        sid = sid_of(exchange(server.connect(), path="/tokens", **OURS))
        found: Any = server.call(site.state, sid)
    name = found.info.options["streamguard"]["resumer"]
    assert known[name].resumer is resumer
    assert site.guard.resumers == known
