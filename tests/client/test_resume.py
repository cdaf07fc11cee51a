"""When a stream that was cut is asked for again, how, and when that ends: driven by hand, without a loop or a clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from streamguard.client.answer import AnswerState
from streamguard.client.head import MAX_REFUSAL, Refusal
from streamguard.client.limits import ReaderLimits
from streamguard.client.resume import Attempt, ResumePolicy, ResumeState, vet_resume, way_back
from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import Native
from streamguard.core.errors import (
    CorruptStream,
    LivenessLimitExceeded,
    LocalProtocolError,
    StallLimitExceeded,
    StreamClosed,
    StreamGap,
    TruncatedStream,
    UnexpectedResponse,
)
from streamguard.core.negotiate import Answer, write_answer
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Ndjson, Sse, Wire
from tests.client.server import SID, Made, made

URL = httpx.URL("http://here.example/chat?x=1")
ZERO = cursor_zero(SID)
HELLO = made("Hello", " wor", "ld")
AT = Cursor(SID, 3, 20, 7)


def retrying(attempts: int = 5, *, base: float = 1.0, max_wait: float = 30.0, draw: float = 0.5) -> ResumeState:
    return ResumeState(ResumePolicy(attempts, base, max_wait), URL, lambda: draw)


def refusal(status: int, code: str | None = None, **headers: str) -> Refusal:
    body = b"" if code is None else json.dumps({"code": code}).encode()
    return Refusal(status, {name.replace("_", "-"): value for name, value in headers.items()}, "", body)


# ---- when ---------------------------------------------------------------------------------------


def waits(state: ResumeState, cursor: Cursor = AT) -> list[float]:
    found = []
    while (attempt := state.again(cursor)) is not None:
        found.append(attempt.wait)
    return found


def test_waits_grow_and_are_drawn_below_their_bound() -> None:
    assert waits(retrying(draw=1.0)) == [1, 2, 4, 8, 16]
    assert waits(retrying(draw=0.5)) == [0.5, 1, 2, 4, 8]
    assert waits(retrying(draw=0.0)) == [0] * 5


def test_no_wait_is_longer_than_the_longest() -> None:
    assert waits(retrying(3, max_wait=1.5, draw=1.0)) == [1, 1.5, 1.5]
    assert waits(retrying(2000, max_wait=1.5, draw=1.0))[-1] == 1.5


def test_the_servers_wish_is_waited_for_before_what_is_drawn() -> None:
    state = retrying(3)
    state.retry = 10.0
    assert waits(state) == [10.5, 11, 12]
    state = retrying(3, max_wait=10.25)
    state.retry = 3600.0
    assert waits(state) == [10.25] * 3


def test_only_a_new_frame_gives_the_attempts_back() -> None:
    state = retrying(2)
    assert len(waits(state)) == 2
    assert waits(state) == []
    assert state.why == "2 attempts to resume it brought no new frame"
    assert waits(state, AT._replace(seq=4)) == [0.5, 1]
    assert waits(state, AT._replace(seq=4)) == []


def test_waits_differ_from_reader_to_reader() -> None:
    policy = ResumePolicy(base=1.0)
    drawn = set()
    for _ in range(10):
        attempt = ResumeState(policy, URL).again(AT)
        assert attempt is not None
        assert 0 <= attempt.wait < 1
        drawn.add(attempt.wait)
    assert len(drawn) == 10


def test_an_attempt_bears_the_last_good_cursor() -> None:
    attempt = retrying().again(AT)
    assert attempt is not None
    assert (attempt.url, attempt.headers) == (URL, (("Last-Event-ID", str(AT)),))


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("attempts", 0, ValueError),
        ("attempts", 1.5, TypeError),
        ("base", -1, ValueError),
        ("base", None, TypeError),
        ("max_wait", float("inf"), ValueError),
        ("max_wait", True, TypeError),
    ],
)
def test_a_policy_refuses_what_is_no_number_of_its_kind(field: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{field} is a"):
        ResumePolicy(**{field: value})


def test_what_is_no_choice_is_refused() -> None:
    for good in (None, True, False, ResumePolicy()):
        vet_resume(good)
    for bad in (5, "yes", ResumePolicy):
        with pytest.raises(TypeError, match=r"^resume is True, False or ResumePolicy\("):
            vet_resume(bad)
        with pytest.raises(TypeError, match=r"^resume is True, "):
            AnswerState(0.0, resume=bad)  # type: ignore[arg-type]


# ---- where --------------------------------------------------------------------------------------


def target(resume: Any, address: str | None, method: str = "POST", url: Any = URL) -> str | None:
    state = way_back(resume, address, method, url)
    return None if state is None else str(state.url)


@pytest.mark.parametrize("resume", [None, True, ResumePolicy()])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_address_of_the_answer_is_resolved_against_the_requests(resume: Any, method: str) -> None:
    assert target(resume, "/streams", method) == "http://here.example/streams"
    assert target(resume, "streams?a=b", method) == "http://here.example/streams?a=b"
    assert target(resume, "http://here.example:80/x", method) == "http://here.example/x"
    assert target(resume, "https://here.example/x", method) == "https://here.example/x"


@pytest.mark.parametrize(
    "address",
    [
        "http://there.example/streams",
        "//there.example/streams",
        "http://here.example:81/streams",
        "https://here.example:444/streams",
        "http://here.example@there.example/",
        "ftp://here.example/streams",
        "javascript:alert(1)",
        "http://[",
        "http://here.example:port/",
        "/" + "x" * 70_000,
    ],
)
def test_an_address_elsewhere_is_none(address: str) -> None:
    assert target(True, address) is None


def test_without_an_address_only_a_get_goes_on_and_only_if_asked_to() -> None:
    assert target(True, None, "GET") == target(ResumePolicy(), None, "GET") == str(URL)
    assert target(None, None, "GET") is None
    assert target(True, None, "POST") is None


def test_what_was_switched_off_or_has_no_address_does_not_go_on() -> None:
    assert target(False, "/streams") is None
    assert target(True, "/streams", url=None) is None


# ---- what a refusal means -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_server_in_trouble_is_asked_again(status: int) -> None:
    state = retrying()
    state.again(AT)
    attempt = state.refused(refusal(status))
    assert isinstance(attempt, Attempt)
    assert attempt.wait == 1


def test_a_refused_attempt_counts() -> None:
    state = retrying(2)
    state.again(AT)
    assert state.refused(refusal(503)) is not None
    assert state.refused(refusal(503)) is None
    assert state.why == "2 attempts to resume it brought no new frame"


NOW = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry_after": "7"}, 8),
        ({"retry_after": " 7 "}, 8),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:09 GMT", "date": NOW}, 10),
        ({"retry_after": "Wed, 21 Oct 2015 07:27:00 GMT", "date": NOW}, 1),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:09 GMT"}, 1),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:09", "date": NOW}, 1),
        ({"retry_after": f"Wed, 21 Oct {'9' * 20} 07:28:09 GMT", "date": NOW}, 1),
        ({"retry_after": "soon"}, 1),
        ({"retry_after": "-7"}, 1),
        ({"retry_after": "٧"}, 1),
        ({}, 1),
    ],
)
def test_retry_after_is_waited_for(headers: dict[str, str], wait: float) -> None:
    state = retrying()
    state.again(AT)
    attempt = state.refused(refusal(429, **headers))
    assert isinstance(attempt, Attempt)
    assert attempt.wait == wait


def test_a_retry_after_that_is_too_long_ends_the_attempts() -> None:
    state = retrying(max_wait=30)
    state.again(AT)
    assert state.refused(refusal(503, retry_after="30")) is not None
    assert state.refused(refusal(503, retry_after="31")) is None
    assert state.why == "the server wants to be left alone for 31 s"
    assert state.refused(refusal(503, retry_after="9" * 5000)) is None


@pytest.mark.parametrize(
    ("status", "code", "found"),
    [
        (404, None, "unknown_stream"),
        (404, "unknown_stream", "unknown_stream"),
        (410, None, "trimmed"),
        (410, "log_lost", "log_lost"),
        (409, "misfit", "misfit"),
        (409, None, "misfit"),
    ],
)
def test_a_server_that_has_no_more_is_a_gap(status: int, code: str | None, found: str) -> None:
    state = retrying()
    state.again(AT)
    error = state.refused(refusal(status, code))
    assert isinstance(error, StreamGap)
    assert (error.code, error.expected, error.got, error.cursor) == (found, 4, None, AT)
    assert f"HTTP {status}" in str(error)


@pytest.mark.parametrize("body", [b"[1]", b"nothing", b'{"code": 5}', b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_problem_has_no_code(body: bytes) -> None:
    state = retrying()
    state.again(AT)
    error = state.refused(Refusal(404, {}, "", body))
    assert isinstance(error, StreamGap)
    assert error.code == "unknown_stream"


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("it is elsewhere", ": it is elsewhere"),
        ("two\nlines\x1b[2J", r": two\nlines\x1b[2J"),
        ("x" * 10_000, ": " + "x" * 200),
        ("", ""),
        (7, ""),
    ],
)
def test_what_the_server_says_of_it_is_in_the_error(detail: object, said: str) -> None:
    state = retrying()
    state.again(AT)
    error = state.refused(Refusal(404, {}, "", json.dumps({"detail": detail}).encode()))
    assert isinstance(error, StreamGap)
    assert str(error).endswith(f"(HTTP 404){said}")


def test_a_stream_that_is_busy_is_asked_for_again() -> None:
    state = retrying()
    state.again(AT)
    assert isinstance(state.refused(refusal(409, "busy")), Attempt)


@pytest.mark.parametrize("status", [204, 200, 206, 302, 400, 401, 403, 405, 422, 426, 501])
def test_any_other_answer_ends_the_attempts(status: int) -> None:
    state = retrying()
    state.again(AT)
    assert state.refused(refusal(status)) is None
    assert state.why


def test_a_refusal_answers_an_attempt() -> None:
    with pytest.raises(LocalProtocolError, match="nothing was asked for"):
        retrying().refused(refusal(404))


# ---- an answer over several connections -----------------------------------------------------------


def header(wire: str = "sse", dialect: str = "native", sid: str = SID, resume: str | None = "/streams") -> str:
    return write_answer(Answer(cursor_zero(sid), dialect, wire, resume=resume))


def head(body: Made = HELLO, **changes: Any) -> Mapping[str, str]:
    fields = {"Content-Type": body.content_type, "Streamguard": header(**changes), "Transfer-Encoding": "chunked"}
    return httpx.Headers(fields)


def opened(
    *, policy: Any = None, limits: ReaderLimits | None = None, method: str = "POST", headers: Any = None
) -> AnswerState:
    policy = ResumePolicy(attempts=2, base=0.0) if policy is None else policy
    state = AnswerState(100.0, resume=policy, limits=limits or ReaderLimits())
    assert state.open(200, headers or head(), "HTTP/1.1", method=method, url=URL)
    return state


def cut(state: AnswerState, *pieces: bytes, clean: bool = False) -> None:
    for piece in pieces:
        state.feed(piece, 100, 101)
    state.end(101, 102, clean=clean)


def reopened(state: AnswerState, body: Made = HELLO, **changes: Any) -> None:
    assert state.reopen(200, head(body, **changes), "HTTP/1.1", "identity", 110.0)


def needs(state: AnswerState) -> str:
    return state.needs


def taken(state: AnswerState) -> str:
    return "".join(frame.text for frame in iter(state.take, None))


@pytest.mark.parametrize("clean", [False, True])
def test_a_cut_answer_goes_on_and_is_complete(clean: bool) -> None:
    state = opened()
    cut(state, HELLO.opening, HELLO.pushes[0], clean=clean)
    assert needs(state) == "resume"
    assert state.attempt is not None
    assert dict(state.attempt.headers)["Last-Event-ID"].startswith(f"{SID}.1.")
    assert str(state.attempt.url) == "http://here.example/streams"
    assert state.attempt.wait == 2.0  # what native's opening says
    reopened(state)
    assert needs(state) == "bytes"
    state.feed(b"".join([HELLO.pushes[1], HELLO.pushes[2], HELLO.ending]), 111, 112)
    assert needs(state) == "end"
    state.end(112, 112, clean=True)
    assert taken(state) == "Hello world"
    assert state.error is None
    receipt = state.receipt
    assert (receipt.verdict, receipt.resumes, receipt.duplicates) == (Verdict.COMPLETE, 1, 0)


def test_a_stream_cut_before_its_first_frame_goes_on_at_cursor_zero() -> None:
    state = opened()
    cut(state)
    assert state.attempt is not None
    assert dict(state.attempt.headers)["Last-Event-ID"] == str(ZERO)
    assert state.attempt.wait == 0.0


@pytest.mark.parametrize("choice", [False, ReaderLimits])
def test_a_stream_that_may_not_go_on_raises_what_it_raised(choice: Any) -> None:
    state = opened(policy=False) if choice is False else opened(headers=head(resume=None))
    cut(state, HELLO.opening, HELLO.pushes[0])
    assert needs(state) == "nothing"
    assert isinstance(state.error, TruncatedStream)
    assert str(state.error).endswith("without its terminal frame")


def test_a_stream_without_cursors_cannot_go_on() -> None:
    plain = httpx.Headers({"Content-Type": "text/event-stream"})
    state = opened(policy=True, method="GET", headers=plain)
    cut(state, b"data: x\n\n")
    assert needs(state) == "nothing"
    assert isinstance(state.error, TruncatedStream)


def test_all_frames_are_handed_out_before_the_attempt() -> None:
    state = opened()
    cut(state, HELLO.opening, *HELLO.pushes[:2])
    assert taken(state) == "Hello wor"
    assert needs(state) == "resume"


def test_the_time_without_a_connection_is_in_the_gap() -> None:
    state = opened()
    cut(state, HELLO.opening, HELLO.pushes[0])  # the frame at 101, the cut at 102
    reopened(state)  # at 110
    state.feed(HELLO.pushes[1], 110, 112)
    assert state.receipt.first_frame == 1
    assert state.receipt.longest_gap == 11
    state.feed(HELLO.pushes[2], 200, 201)
    assert state.receipt.longest_gap == 11
    assert state.receipt.duration == 101


def test_the_stall_limit_is_a_connections_own() -> None:
    state = opened(limits=ReaderLimits(stall=5))
    state.feed(HELLO.opening + HELLO.pushes[0], 100, 101)
    state.feed(HELLO.heartbeat, 101, 105)
    state.end(105, 105.5, clean=False)
    reopened(state)
    state.feed(HELLO.heartbeat, 110, 114)
    assert needs(state) == "bytes"
    state.feed(HELLO.heartbeat, 114, 115)
    assert needs(state) == "nothing"
    assert isinstance(state.error, StallLimitExceeded)


@pytest.mark.parametrize(
    ("limits", "error"),
    [(ReaderLimits(liveness=5), LivenessLimitExceeded), (ReaderLimits(stall=5), StallLimitExceeded)],
)
def test_a_silent_connection_is_left_for_another(limits: ReaderLimits, error: type[Exception]) -> None:
    state = opened(limits=limits)
    state.feed(HELLO.opening + HELLO.pushes[0] + HELLO.pushes[1][:9], 100, 101)
    state.silent(101, 106)
    assert needs(state) == "resume"
    reopened(state)
    state.conclude()  # raises nothing
    state.feed(HELLO.pushes[1] + HELLO.pushes[2], 110, 111)
    for _ in range(2):
        state.silent(111, 116)
        reopened(state)
    state.silent(111, 116, httpx.ReadTimeout("silence"))
    assert needs(state) == "nothing"
    assert taken(state) == "Hello world"
    assert isinstance(state.error, error)
    assert isinstance(state.error.__cause__, httpx.ReadTimeout)
    assert state.receipt.verdict is Verdict.TRUNCATED
    assert state.receipt.resumes == 3


def test_attempts_that_find_nobody_end_in_the_error_of_the_cut() -> None:
    state = opened()
    cut(state, HELLO.opening, HELLO.pushes[0])
    first = state.attempt
    state.missed(httpx.ConnectError("refused"), 103)
    assert state.attempt is not None
    assert state.attempt is not first
    last = httpx.ConnectError("refused again")
    state.missed(last, 104)
    assert needs(state) == "nothing"
    assert taken(state) == "Hello"
    error = state.error
    assert isinstance(error, TruncatedStream)
    assert error.received == "Hello"
    assert str(error).endswith(": 2 attempts to resume it brought no new frame")
    assert error.__cause__ is last
    assert state.receipt.resumes == 0


def test_a_connection_that_brings_no_frame_counts() -> None:
    state = opened()
    cut(state, HELLO.opening, HELLO.pushes[0])
    for _ in range(2):
        assert needs(state) == "resume"
        reopened(state)
        cut(state, HELLO.heartbeat)
    assert needs(state) == "nothing"
    assert state.receipt.resumes == 2


def refused(state: AnswerState, status: int, body: bytes = b"", **headers: str) -> None:
    fields = httpx.Headers({name.replace("_", "-"): value for name, value in headers.items()})
    assert not state.reopen(status, fields, "HTTP/1.1", "identity", 110.0)
    assert needs(state) == "bytes"
    state.feed(body, 110, 111)
    state.end(111, 111, clean=True)


def test_a_stream_that_is_gone_is_a_gap() -> None:
    state = opened()
    cut(state, HELLO.opening, HELLO.pushes[0])
    refused(state, 404, b'{"code":"unknown_stream"}', content_type="application/problem+json")
    assert needs(state) == "nothing"
    assert taken(state) == "Hello"
    error = state.error
    assert isinstance(error, StreamGap)
    assert (error.code, error.received) == ("unknown_stream", "Hello")
    assert isinstance(error.__cause__, UnexpectedResponse)
    assert (state.receipt.verdict, state.receipt.code) == (Verdict.GAP, "unknown_stream")


def test_a_stream_that_is_gone_after_a_silence_is_a_gap() -> None:
    state = opened()
    state.feed(HELLO.opening + HELLO.pushes[0], 100, 101)
    state.silent(101, 146)
    refused(state, 410)
    assert isinstance(state.error, StreamGap)


def test_nothing_more_without_a_terminal_is_truncated() -> None:
    state = opened()
    cut(state, HELLO.opening, *HELLO.pushes)
    refused(state, 204)
    assert needs(state) == "nothing"
    assert isinstance(state.error, TruncatedStream)
    assert "there was no terminal" in str(state.error)
    assert isinstance(state.error.__cause__, UnexpectedResponse)


def test_a_server_in_trouble_is_asked_again_and_goes_on() -> None:
    state = opened()
    cut(state, HELLO.opening, *HELLO.pushes)
    refused(state, 503, b"later", retry_after="7")
    assert state.attempt is not None
    assert state.attempt.wait == 7.0
    reopened(state)
    state.feed(HELLO.ending, 120, 121)
    state.end(121, 121, clean=True)
    assert state.error is None
    assert taken(state) == "Hello world"


@pytest.mark.parametrize(
    ("content_type", "why"),
    [("text/html", "content type"), ("text/plain", "'plain'"), ("application/x-ndjson", "'ndjson'")],
)
def test_an_answer_that_is_no_stream_of_ours_ends_the_attempts(content_type: str, why: str) -> None:
    state = opened()
    cut(state, HELLO.opening, *HELLO.pushes)
    refused(state, 200, b"<p>sign in", content_type=content_type, streamguard=header())
    assert needs(state) == "nothing"
    assert isinstance(state.error, TruncatedStream)
    assert "did not resume it" in str(state.error)
    assert why in str(state.error)


@pytest.mark.parametrize("how", ["large", "slow", "silent"])
def test_the_body_of_a_refusal_is_read_for_so_long_only(how: str) -> None:
    state = opened(limits=ReaderLimits(first_byte=5))
    cut(state, HELLO.opening, *HELLO.pushes)
    assert not state.reopen(404, httpx.Headers(), "HTTP/1.1", "identity", 110.0)
    if how == "large":
        state.feed(b"x" * (MAX_REFUSAL - 1), 110, 110)
        assert needs(state) == "bytes"
        state.feed(b"x", 110, 110)
    elif how == "slow":
        state.feed(b"x", 110, 114)
        assert needs(state) == "bytes"
        state.feed(b"x", 114, 115)
    else:
        state.silent(110, 115)
    assert needs(state) == "nothing"
    assert isinstance(state.error, StreamGap)


def test_another_stream_is_corrupt() -> None:
    state = opened()
    cut(state, HELLO.opening, HELLO.pushes[0])
    reopened(state, sid="BBBBBBBBBBBBBBBBBBBBBB")
    assert needs(state) == "nothing"
    assert isinstance(state.error, CorruptStream)
    assert state.error.code == "sid"


def test_another_dialect_is_corrupt() -> None:
    state = opened()
    cut(state, HELLO.opening, HELLO.pushes[0])
    reopened(state, dialect="openai")
    assert isinstance(state.error, CorruptStream)
    assert state.error.code == "grammar"
    assert "'openai'" in str(state.error)
    assert "'native'" in str(state.error)


@pytest.mark.parametrize("wire", [Ndjson(), Sse(ids="comment")], ids=repr)
def test_the_carrier_is_that_of_the_new_answer(wire: Wire) -> None:
    again = made("Hello", " wor", "ld", wire=wire)
    state = opened()
    cut(state, HELLO.opening, HELLO.pushes[0])
    reopened(state, again, wire=wire.name)
    cut(state, again.opening, *again.pushes[1:], again.ending)
    assert (taken(state), state.error) == ("Hello world", None)


def test_the_dialect_that_the_caller_named_stays() -> None:
    state = AnswerState(100.0, dialect="native")
    assert state.open(200, head(), "HTTP/1.1", method="POST", url=URL)
    cut(state, HELLO.opening, HELLO.pushes[0])
    reopened(state)
    cut(state, *HELLO.pushes[1:], HELLO.ending)
    assert (taken(state), state.error) == ("Hello world", None)


def test_an_answer_without_a_header_is_judged_by_its_cursors() -> None:
    state = opened()
    cut(state, HELLO.opening, HELLO.pushes[0])
    assert state.reopen(200, httpx.Headers({"Content-Type": "text/event-stream"}), "HTTP/1.1", "identity", 110.0)
    cut(state, *HELLO.pushes[1:], HELLO.ending)
    assert (taken(state), state.error) == ("Hello world", None)


def bye(reason: str, seq: int = 1) -> bytes:
    encoder = Sse(ids="id").encoder(ZERO, own_ids=Native().own_ids)
    return encoder.bye(ZERO._replace(seq=seq), reason)


@pytest.mark.parametrize("reason", ["rotate", "shutdown", "slow", "lost", "of a later version"])
def test_after_a_bye_the_stream_goes_on_at_once(reason: str) -> None:
    """Though the connection stays open: where an abort does not arrive it would be silent for ever."""
    state = opened()
    state.feed(HELLO.opening + HELLO.pushes[0] + bye(reason), 100, 101)
    assert needs(state) == "resume"
    reopened(state)
    cut(state, *HELLO.pushes[1:], HELLO.ending)
    assert (taken(state), state.error) == ("Hello world", None)


def test_a_reader_that_was_replaced_does_not_drive_the_other_one_out() -> None:
    state = opened()
    state.feed(HELLO.opening + HELLO.pushes[0] + bye("replaced"), 100, 101)
    assert needs(state) == "nothing"
    assert isinstance(state.error, TruncatedStream)
    assert "another reader took this one's place" in str(state.error)


def test_without_a_way_back_a_bye_waits_for_the_end_of_bytes() -> None:
    state = opened(policy=False)
    state.feed(HELLO.opening + HELLO.pushes[0] + bye("rotate"), 100, 101)
    assert needs(state) == "bytes"


def test_the_last_time_to_come_back_that_was_told_counts() -> None:
    state = opened(policy=ResumePolicy(attempts=4, base=0.0))
    cut(state, HELLO.opening, HELLO.pushes[0])
    waited = []
    for sent in (b"retry: 700\n", b"", HELLO.opening):
        assert state.attempt is not None
        waited.append(state.attempt.wait)
        reopened(state)
        cut(state, sent)
    assert state.attempt is not None
    assert [*waited, state.attempt.wait] == [2.0, 0.7, 0.7, 2.0]


def _waiting(state: AnswerState) -> None:
    cut(state, HELLO.opening, HELLO.pushes[0])


def _reading_a_refusal(state: AnswerState) -> None:
    _waiting(state)
    state.reopen(404, httpx.Headers(), "HTTP/1.1", "identity", 110.0)


def _reading_again(state: AnswerState) -> None:
    _waiting(state)
    reopened(state)


@pytest.mark.parametrize("until", [_waiting, _reading_a_refusal, _reading_again])
def test_an_answer_that_was_closed_does_not_go_on(until: Callable[[AnswerState], None]) -> None:
    state = opened()
    until(state)
    state.close("async with")
    assert needs(state) == "nothing"
    assert isinstance(state.error, StreamClosed)
    state.end(112, 112, clean=False)  # a read that another task was in ends too
    assert needs(state) == "nothing"
    assert isinstance(state.error, StreamClosed)
    assert taken(state) == "Hello"
