"""Plain WSGI: what the contract of all adapters does not ask for."""

from __future__ import annotations

import asyncio
import contextvars
import io
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from streamguard.adapters.environ import _warn_of_lone
from streamguard.adapters.wsgi import GuardedResponse, StreamGuard, drained, guarded
from streamguard.core.errors import SourceFailed
from streamguard.core.flush import Within
from streamguard.log.memory import MemoryLog
from streamguard.observe.hooks import Outcome
from streamguard.runtime.admission import Admission
from streamguard.runtime.blocking import BodyAborted
from streamguard.runtime.drain import Drain
from streamguard.runtime.slots import Limits
from streamguard.runtime.source import TokenSource
from streamguard.runtime.timing import Timing
from tests.adapters.servers import DEADLINE, Connection, Gate
from tests.adapters.wsgi_calls import called, calling
from tests.adapters.wsgi_servers import serving_wsgi

NEVER = Timing(heartbeat=None, stall=None)


def two() -> Iterator[str]:
    yield "one "
    yield "two"


async def two_later() -> AsyncIterator[str]:
    yield "one "
    await asyncio.sleep(0)
    yield "two"


def failing() -> Iterator[str]:
    yield "one "
    raise SourceFailed("overloaded", "come back later", retryable=True)


def waiting(gate: Gate, books: list[str]) -> Iterator[str]:
    try:
        yield "one "
        gate.wait()
        yield "two"
    finally:
        books.append("closed")


def one(source: Any, **options: Any) -> tuple[GuardedResponse, list[Outcome]]:
    """A response, and the outcomes that its hook is given."""
    ends: list[Outcome] = []
    return GuardedResponse(source, on_end=ends.append, **options), ends


@pytest.mark.parametrize("make", [two, two_later, lambda: two_later, lambda: ["one ", "two"]])
def test_any_source_is_served_without_an_event_loop_of_the_applications(make: Any) -> None:
    response, ends = one(make())
    answer = called(response)
    assert answer.cut is None
    assert answer.body.count(b"event: end\n") == 1
    assert ends == [response.outcome]
    assert (ends[0].status, ends[0].items, ends[0].delivered) == ("complete", 2, "unknown")


def test_a_source_of_either_kind_that_fails_ends_in_a_broken_pipe() -> None:
    async def failing_later() -> AsyncIterator[str]:
        yield "one "
        raise SourceFailed("overloaded", "come back later")

    for make in (failing, failing_later):
        response, ends = one(make())
        answer = called(response)
        assert b'"code":"overloaded"' in answer.body
        assert isinstance(answer.cut, BodyAborted)
        assert [end.status for end in ends] == ["failed"]


def test_a_reader_that_verifies_may_be_spared_the_abort() -> None:
    response, _ = one(failing(), abort="unless-negotiated")
    assert called(response, HTTP_STREAMGUARD="v=1").cut is None


def test_over_http_1_0_the_terminal_stands_alone_or_the_answer_has_a_length_or_there_is_none() -> None:
    old = {"SERVER_PROTOCOL": "HTTP/1.0"}
    streamed = called(one(failing())[0], **old)
    assert (streamed.status, streamed.cut is None) == (200, False)
    whole = called(one(two(), http10="buffer")[0], **old)
    assert (whole.status, whole.headers["content-length"]) == (200, str(len(whole.body)))
    failed = called(one(failing(), http10="buffer")[0], **old)
    assert (failed.status, failed.cut, b"overloaded" in failed.body) == (502, None, True)
    assert called(one(two(), http10="refuse")[0], **old).status == 426


def test_headers_that_wait_for_the_first_item_tell_an_early_failure_as_a_status() -> None:
    def early() -> Iterator[str]:
        raise SourceFailed("overloaded", "come back later", retryable=True)
        yield

    def faulty() -> Iterator[str]:
        raise ZeroDivisionError
        yield

    peek = Timing(peek=DEADLINE)
    response, ends = one(early(), timing=peek)
    answer = called(response)
    assert (answer.status, answer.headers["x-should-retry"], ends[0].status) == (503, "true", "failed")
    response, ends = one(faulty(), timing=peek)
    with pytest.raises(ZeroDivisionError):
        called(response)
    assert [end.status for end in ends] == ["failed"]
    assert called(one(two(), timing=peek)[0]).body.count(b"one ") == 1


def test_a_body_that_the_server_closes_stops_its_source_and_is_gone() -> None:
    gate, books = Gate(), []
    response, ends = one(waiting(gate, books), timing=Timing(close=0.01))
    with calling(response) as answer:
        answer.until(b"one ")
    assert (ends[0].status, ends[0].delivered, ends[0].abandoned) == ("gone", "no", True)  # it is in a blocking call
    gate.open()


def test_a_source_that_is_never_asked_for_is_closed() -> None:
    class Opened:
        closed = False

        def __iter__(self) -> Iterator[str]:
            raise AssertionError

        def close(self) -> None:
            self.closed = True

    for more, status in ({"HTTP_LAST_EVENT_ID": "0000000000000000000000.1.5.00000000"}, 404), ({}, 200):
        source = Opened()
        answer = called(GuardedResponse(source), method="GET" if more else "HEAD", **more)
        assert (answer.status, source.closed) == (status, True)
    source = Opened()
    with calling(GuardedResponse(source)):
        pass  # a server that lost its reader before the first byte
    assert source.closed


def test_a_stream_is_cancelled_from_any_thread() -> None:
    gate, books = Gate(), []
    response, ends = one(waiting(gate, books), timing=Timing(close=0.01))
    with calling(response) as answer:
        answer.until(b"one ")
        thread = threading.Thread(target=response.cancel)
        thread.start()
        answer.read()
        thread.join(DEADLINE)
    assert b'"status":"cancelled"' in answer.body
    assert [end.status for end in ends] == ["cancelled"]
    gate.open()
    early = GuardedResponse(two())
    early.cancel()
    assert b'"status":"cancelled"' in called(early).body


def test_silence_is_answered_with_signs_of_life_and_at_last_with_an_end() -> None:
    gate, books = Gate(), []
    response, ends = one(waiting(gate, books), timing=Timing(heartbeat=0.02, stall=0.5, close=0.01))
    answer = called(response)
    gate.open()
    assert answer.body.count(b"\n: hb ") >= 2
    assert (b'"status":"stalled"' in answer.body, ends[0].status) == (True, "stalled")


def test_text_that_a_policy_holds_leaves_in_time_though_the_source_is_silent() -> None:
    gate, books = Gate(), []
    response, _ = one(waiting(gate, books), flush=Within(0.02, first="policy"), timing=NEVER)
    with calling(response) as answer:
        assert b'data: "one "' in answer.until(b"one ")
        gate.open()
        assert answer.read().cut is None
    assert books == ["closed"]


def test_a_drain_refuses_what_is_new_and_ends_what_outlasts_it() -> None:
    gate, books = Gate(), []
    response, _ = one(waiting(gate, books), timing=Timing(close=0.01))
    response.answer.drain = drain = Drain()
    with calling(response) as answer:
        answer.until(b"one ")
        drain.begin(0.0)
        answer.read()
    gate.open()
    assert b'"status":"shutdown"' in answer.body
    late = GuardedResponse(two())
    late.answer.drain = drain
    assert called(late).status == 503


def test_an_application_drains_by_itself_or_with_a_guard() -> None:
    guard = StreamGuard(MemoryLog(), authorize=lambda environ, action: "ada", on_sigterm=False)
    direct = guarded(lambda environ: two())
    alone, shared = drained(direct), guard.install(direct, "/streams", close_log=False)
    assert called(shared).status == 200
    guard.drain()
    assert (called(shared).status, called(alone).status) == (503, 200)


def test_a_slot_is_waited_for_and_given_back() -> None:
    admission = Admission(Limits(max_streams=1, max_wait=0.02))
    gate, books = Gate(), []
    with calling(GuardedResponse(waiting(gate, books), limits=admission)) as answer:
        answer.until(b"one ")
        assert called(GuardedResponse(two(), limits=admission)).status == 503
        gate.open()
        answer.read()
    admission.limits = Limits(max_streams=1, max_wait=DEADLINE)  # its release is on its way
    assert called(GuardedResponse(two(), limits=admission)).status == 200


def test_a_compressed_answer_ends_with_its_trailer() -> None:
    asked = {"HTTP_STREAMGUARD": "v=1, compress=gzip", "HTTP_ACCEPT_ENCODING": "gzip"}
    answer = called(GuardedResponse(two(), compress="gzip"), **asked)
    unpacked = zlib.decompressobj(31)
    assert b"event: end" in unpacked.decompress(answer.body)
    assert unpacked.eof


def test_a_body_can_be_read_while_the_answer_streams() -> None:
    @guarded
    def application(environ: Any) -> Iterator[str]:
        yield environ["wsgi.input"].read().decode()

    more = {"wsgi.input": io.BufferedReader(io.BytesIO(b"a question, and the next request"))}  # type: ignore[arg-type]
    answer = called(application, method="POST", body=b"a question", **more)
    assert b'data: "a question"' in answer.body


def test_an_endpoint_that_returns_its_source_is_called_only_for_a_stream() -> None:
    calls = []

    @guarded(dialect="openai")
    def application(environ: Any) -> Iterator[str]:
        calls.append(environ["REQUEST_METHOD"])
        return two()

    assert called(application, method="HEAD").status == 200
    assert called(application, HTTP_LAST_EVENT_ID="0000000000000000000000.1.5.00000000").status == 404
    assert b"[DONE]" in called(application, method="POST").body
    assert calls == ["POST"]


def test_slips_are_told_by_the_endpoints_name() -> None:
    @guarded
    def application(environ: Any) -> Any:
        return None

    with pytest.raises(TypeError, match="'application' returned None"):
        called(application)
    with pytest.raises(TypeError, match="by name: write @guarded"):
        guarded("openai")  # type: ignore[call-overload]
    spent = two()
    list(spent)
    with pytest.raises(ValueError, match="exhausted"):
        GuardedResponse(spent)
    with pytest.raises(TypeError, match="limits of one answer"):
        GuardedResponse(two(), limits=Limits(max_streams=1))
    response = GuardedResponse(two())
    assert called(response).status == 200
    assert called(response).status == 500
    shared = two()
    first, second = GuardedResponse(shared), GuardedResponse(shared)
    assert called(first).cut is None
    assert isinstance(called(second).cut, BodyAborted)


def test_a_hook_may_be_async_and_a_source_that_does_not_close_is_told_of(caplog: Any) -> None:
    ends: list[str] = []

    async def ended(outcome: Outcome) -> None:
        await asyncio.sleep(0)
        ends.append(outcome.status)

    class Broken(list[str]):
        def close(self) -> None:
            raise OSError("already closed")

    assert called(GuardedResponse(Broken(["one"]), on_end=ended)).cut is None
    assert ends == ["complete"]
    assert "closing a source raised OSError('already closed')" in caplog.text


def test_authorize_is_asked_on_the_threads_that_serve_and_what_is_not_ours_passes() -> None:
    asked = []

    def who(environ: Any, action: str) -> str | None:
        asked.append((action, threading.get_ident()))
        return environ.get("HTTP_USER")

    guard = StreamGuard(MemoryLog(), authorize=who)
    endpoint = guard.stream(lambda environ: two())
    application = guard.install(endpoint, "/streams", close_log=False)
    answer = called(application, HTTP_USER="ada", HTTP_STREAMGUARD="v=1")
    assert answer.body.count(b"event: end") == 1
    cursor = answer.headers["streamguard"].split('"')[1]
    again = called(application, "/streams", HTTP_USER="ada", HTTP_LAST_EVENT_ID=cursor)
    assert b"one two" in again.body
    assert called(application, "/streams", HTTP_USER="bob", HTTP_LAST_EVENT_ID=cursor).status == 404
    assert called(application).status == 403
    assert {thread for _, thread in asked} == {threading.get_ident()}
    assert [action for action, _ in asked] == ["start", "read", "read", "start"]
    with pytest.raises(RuntimeError, match="installed already"):
        guard.install(endpoint, "/streams")
    guard.close()


@pytest.mark.parametrize("server", ["waitress", "werkzeug"])
def test_a_reader_that_leaves_is_noticed_while_the_source_is_silent(server: str, caplog: Any) -> None:
    over = threading.Event()
    gate, books = Gate(), []
    ends: list[str] = []

    def ended(outcome: Outcome) -> None:
        ends.append(outcome.status)
        over.set()

    @guarded(on_end=ended, timing=Timing(heartbeat=0.02, close=0.01))
    def application(environ: Any) -> Iterator[str]:
        return waiting(gate, books)

    with serving_wsgi(server, application) as url:
        connection = Connection(int(url.rpartition(":")[2]))
        connection.get("/")
        connection.until(b"one ")
        connection.close()
        assert over.wait(DEADLINE)
        gate.open()
    assert ends == ["gone"]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("server", ["waitress", "werkzeug"])
def test_no_server_logs_a_traceback_of_an_abort(server: str, caplog: Any) -> None:
    with serving_wsgi(server, guarded(timing=Timing(linger=0.01))(lambda environ: failing())) as url:
        with Connection(int(url.rpartition(":")[2])) as connection:
            connection.get("/")
            body = connection.rest()
    assert b"event: end" in body
    assert not body.endswith(b"0\r\n\r\n")
    assert not [record for record in caplog.records if record.exc_info]


def test_a_source_of_a_token_source_is_served_too() -> None:
    assert called(GuardedResponse(TokenSource(two()))).cut is None


def test_a_worker_that_is_told_to_exit_tells_its_reader_first() -> None:
    gate, books = Gate(), []
    response, ends = one(waiting(gate, books), timing=Timing(close=0.01))
    items: Any = response.answer._items
    following = items.next

    def interrupted(timeout: float) -> Any:  # as by a handler of gunicorn's, when its master gave it up
        if books:
            raise SystemExit(1)
        books.append("asked")
        return following(timeout)

    items.next = interrupted
    with calling(response) as answer, pytest.raises(SystemExit):
        answer.read()
    gate.open()
    assert b'"status":"shutdown"' in answer.body
    assert [end.status for end in ends] == ["shutdown"]


def test_a_worker_with_one_request_at_a_time_is_warned_of_once(caplog: Any) -> None:
    _warn_of_lone.cache_clear()
    alone: dict[str, Any] = {"wsgi.multithread": False, "SERVER_SOFTWARE": "gunicorn/27"}
    for _ in range(2):
        called(GuardedResponse(two()), **alone)
    assert caplog.text.count("one request at a time") == 1


def test_a_source_has_one_context_and_one_thread_from_its_first_step_to_its_close() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    seen: list[tuple[str, int]] = []

    def steps() -> Iterator[str]:
        try:
            for text in ("first", "second"):
                seen.append((variable.get(), threading.get_ident()))
                variable.set(text)
                yield text
        finally:
            seen.append((variable.get(), threading.get_ident()))

    @guarded
    def application(environ: Any) -> Iterator[str]:
        variable.set("the endpoint's")
        return steps()

    called(application)
    assert [value for value, _ in seen] == ["the endpoint's", "first", "second"]
    assert len({thread for _, thread in seen}) == 1


def test_without_a_thread_of_its_own_a_source_is_stepped_on_the_servers() -> None:
    seen: list[int] = []

    @guarded(own_thread=False)
    def application(environ: Any) -> Iterator[str]:
        try:
            for text in ("one ", "two"):
                seen.append(threading.get_ident())
                yield text
        finally:
            seen.append(threading.get_ident())

    answer = called(application)
    assert answer.body.count(b"event: end\n") == 1
    assert seen == [threading.get_ident()] * 3


def test_there_its_headers_wait_for_all_of_the_first_step() -> None:
    answer = called(GuardedResponse(failing_first(), own_thread=False, timing=Timing(peek=0.001)))
    assert (answer.status, answer.headers["content-type"]) == (503, "application/problem+json")


def failing_first() -> Iterator[str]:
    raise SourceFailed("overloaded", "come back later", retryable=True)
    yield ""


def test_a_source_that_holds_the_servers_thread_too_long_has_its_connection_cut() -> None:
    gate, books = Gate(), []
    over = threading.Event()
    ends: list[str] = []

    def ended(outcome: Outcome) -> None:
        ends.append(outcome.status)
        over.set()

    @guarded(own_thread=False, on_end=ended, timing=Timing(stall=0.5, linger=0.0))
    def application(environ: Any) -> Iterator[str]:
        return waiting(gate, books)

    with serving_wsgi("werkzeug", application) as url, Connection(int(url.rpartition(":")[2])) as connection:
        connection.get("/")
        body = connection.rest()
        assert books == []  # it is in the source still
        gate.open()
        assert over.wait(DEADLINE)
    assert b"one " in body
    assert not body.endswith(b"0\r\n\r\n")
    assert (ends, books) == (["stalled"], ["closed"])


def test_a_stream_in_a_log_has_a_thread_of_its_own_always() -> None:
    with pytest.raises(ValueError, match="outlives its request"):
        StreamGuard(MemoryLog(), authorize=lambda environ, action: "").stream(own_thread=False)
