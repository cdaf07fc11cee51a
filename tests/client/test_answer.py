"""The state of an answer, driven by hand: time is what the test says it is."""

from __future__ import annotations

import attrs
import httpx
import pytest

from streamguard.client.answer import REQUEST_HEADERS, AnswerState
from streamguard.client.head import MAX_REDIRECTS, MAX_REFUSAL
from streamguard.client.limits import ReaderLimits
from streamguard.core.dialect import OpenAI, Raw, Text
from streamguard.core.errors import (
    ConnectLimitExceeded,
    CorruptStream,
    FailedStream,
    Failure,
    FirstByteLimitExceeded,
    LivenessLimitExceeded,
    LocalProtocolError,
    StallLimitExceeded,
    StreamClosed,
    TruncatedStream,
    UnexpectedResponse,
)
from streamguard.core.negotiate import parse_request
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Binary, Ndjson, Plain, Sse
from tests.client.server import Made, made

HELLO = made("Hello", " world")


def opened(stream: Made = HELLO, *, limits: ReaderLimits | None = None) -> AnswerState:
    state = AnswerState(100.0, limits=limits or ReaderLimits())
    headers = httpx.Headers({"Content-Type": stream.content_type, "Streamguard": stream.header})
    headers["Transfer-Encoding"] = "chunked"
    assert state.open(200, headers, "HTTP/1.1")
    return state


def taken(state: AnswerState) -> str:
    return "".join(frame.text for frame in iter(state.take, None))


# ---- limits -----------------------------------------------------------------------------------


def test_there_is_no_limit_on_the_whole_answer() -> None:
    """A steady stream longer than any client's total default is read to its end."""
    state = opened()
    now = 100.0
    for push in [HELLO.opening, *[HELLO.heartbeat] * 1000, *HELLO.pushes, HELLO.ending]:
        state.feed(push, now, now + 40)
        now += 40
    assert taken(state) == "Hello world"
    assert state.error is None
    assert state.receipt.duration == 40 * 1004


@pytest.mark.parametrize(
    ("liveness", "stall", "silence"), [(45, None, 45), (None, None, None), (45, 30, 30), (10, 30, 10), (None, 30, 30)]
)
def test_one_read_may_take_as_long_as_the_shorter_limit(
    liveness: float | None, stall: float | None, silence: float | None
) -> None:
    assert ReaderLimits(liveness=liveness, stall=stall).silence == silence


def test_four_limits_are_four_errors() -> None:
    state = opened(limits=ReaderLimits(connect=1, first_byte=2, liveness=3, stall=4))
    assert type(state.unconnected()) is ConnectLimitExceeded
    assert state.unconnected().seconds == 1
    assert type(state.unanswered()) is FirstByteLimitExceeded
    assert state.unanswered().seconds == 2
    state.silent(100, 103, httpx.ReadTimeout("silence"))
    assert type(state.error) is LivenessLimitExceeded
    assert state.error.seconds == 3
    assert isinstance(state.error.__cause__, httpx.ReadTimeout)
    state = opened(limits=ReaderLimits(liveness=None, stall=4))
    state.silent(100, 104)
    assert type(state.error) is StallLimitExceeded
    assert state.error.seconds == 4
    assert state.needs == "nothing"


def test_heartbeats_are_life_and_no_frames() -> None:
    state = opened(limits=ReaderLimits(liveness=45, stall=30))
    state.feed(HELLO.opening + HELLO.pushes[0], 100, 101)
    state.feed(HELLO.heartbeat, 101, 116)
    assert state.needs == "bytes"
    state.feed(HELLO.heartbeat, 116, 131)
    assert state.needs == "nothing"
    assert taken(state) == "Hello"
    error = state.error
    assert isinstance(error, StallLimitExceeded)
    assert error.cursor is not None
    assert error.cursor.seq == 1


def test_a_slow_caller_is_no_stalled_server() -> None:
    state = opened(limits=ReaderLimits(stall=30))
    state.feed(HELLO.opening + HELLO.pushes[0], 100, 101)
    state.feed(HELLO.heartbeat, 500, 501)
    state.feed(HELLO.pushes[1], 900, 901)
    assert state.needs == "bytes"
    assert state.receipt.longest_gap == 2.0


def test_a_frame_in_time_starts_the_stall_limit_anew() -> None:
    state = opened(limits=ReaderLimits(stall=30))
    state.feed(HELLO.opening, 100, 120)
    state.feed(HELLO.pushes[0], 120, 129)
    state.feed(HELLO.heartbeat, 129, 158)
    assert state.needs == "bytes"


# ---- the receipt --------------------------------------------------------------------------------


def test_a_receipt_counts_and_times_what_came() -> None:
    state = opened()
    state.feed(HELLO.opening, 100.5, 101)
    assert state.receipt.first_frame is None
    state.feed(HELLO.pushes[0], 101, 103)
    state.feed(HELLO.heartbeat, 103, 104)
    state.feed(HELLO.pushes[1], 104, 105)
    assert state.receipt.verdict is Verdict.TRUNCATED
    state.feed(HELLO.ending, 105, 105.5)
    assert state.needs == "end"
    state.end(105.5, 106, clean=True)
    receipt = state.receipt
    assert (receipt.first_frame, receipt.longest_gap, receipt.duration) == (3, 2, 6)
    assert receipt.verdict is Verdict.COMPLETE
    assert receipt.frames == 3
    assert receipt.crc is not None
    assert str(receipt) == f"COMPLETE, 3 frames, crc {receipt.crc:08x}"


def test_the_text_so_far_is_what_was_taken() -> None:
    state = opened()
    state.feed(HELLO.opening + b"".join(HELLO.pushes), 100, 101)
    assert state.received == ""
    frame = state.take()
    assert frame is not None
    assert state.received == frame.text == "Hello"
    state.end(101, 102, clean=True)
    taken(state)
    error = state.error
    assert isinstance(error, TruncatedStream)
    assert error.received == "Hello world"


def test_text_above_the_bound_is_not_kept_and_never_given_for_the_whole() -> None:
    state = opened(limits=ReaderLimits(max_received=5))
    state.feed(HELLO.body, 100, 101)
    frame = state.take()
    assert frame is not None
    assert state.whole() == "Hello"
    assert taken(state) == " world"
    assert state.received == "Hello"
    with pytest.raises(LocalProtocolError, match="11 characters, and 5 are kept"):
        state.whole()


# ---- what an answer is ------------------------------------------------------------------------------


def refusal(status: int = 200, **headers: str) -> AnswerState:
    state = AnswerState(100.0)
    fields = httpx.Headers({name.replace("_", "-"): value for name, value in headers.items()})
    assert not state.open(status, fields, "HTTP/1.1")
    return state


@pytest.mark.parametrize(
    ("status", "headers", "why"),
    [
        (401, {"content_type": "text/html"}, "no stream"),
        (200, {"content_type": "text/html"}, "content type"),
        (200, {}, "no content type"),
        *[(status, {"content_type": "text/event-stream"}, "no stream") for status in (204, 205, 206)],
        (301, {}, "a redirect to nowhere"),
        (304, {}, "no stream"),
        (200, {"content_type": "text/plain"}, "dialect='text'"),
        (200, {"content_type": "application/x-ndjson", "streamguard": HELLO.header}, "promises 'sse'"),
    ],
)
def test_what_is_no_stream_is_refused_with_its_reason(status: int, headers: dict[str, str], why: str) -> None:
    state = refusal(status, **headers)
    assert state.needs == "bytes"
    state.feed(b"{}", 100, 101)
    state.end(101, 101, clean=False)
    assert state.needs == "nothing"
    error = state.error
    assert isinstance(error, UnexpectedResponse)
    assert (error.status, error.body) == (status, b"{}")
    assert why in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "0"}, 0.0),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:09 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 9.0),
        ({"retry_after": "Wed, 21 Oct 2015 07:27:00 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry_after": "Wed, 21 Oct 2015 07:28:09 GMT"}, None),
        ({"retry_after": "soon"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_says_how_long_the_server_wants_to_be_left_alone(
    status: int, headers: dict[str, str], seconds: float | None
) -> None:
    error = refusal(status, **headers).error
    assert isinstance(error, UnexpectedResponse)
    assert error.retry_after == seconds


@pytest.mark.parametrize("status", [200, 201, 202, 203])
def test_a_stream_is_read_whatever_success_its_status_names(status: int) -> None:
    assert AnswerState(100.0).open(status, httpx.Headers({"content-type": "text/event-stream"}), "HTTP/1.1")


def test_the_body_of_a_refusal_is_read_in_part_only() -> None:
    state = refusal(500)
    while state.needs == "bytes":
        state.feed(b"x" * 10_000, 100, 100)
    error = state.error
    assert isinstance(error, UnexpectedResponse)
    assert len(error.body) == MAX_REFUSAL


def test_the_body_of_a_refusal_is_waited_for_as_long_as_its_head() -> None:
    state = refusal(500)
    state.feed(b"dripping", 100, 159)
    assert state.needs == "bytes"
    state.feed(b"...", 159, 161)
    assert state.needs == "nothing"
    silent = refusal(500)
    silent.feed(b"half", 100, 101)
    silent.silent(101, 161)
    assert silent.needs == "nothing"
    assert isinstance(silent.error, UnexpectedResponse)


@pytest.mark.parametrize(
    ("status", "location", "follows"),
    [
        *[(status, "/x", True) for status in (301, 302, 303, 307, 308)],
        *[(status, "/x", False) for status in (200, 300, 304, 305, 404)],
        *[(301, nowhere, False) for nowhere in ("", "  ", None)],
    ],
)
def test_a_redirect_is_followed_if_it_leads_somewhere(status: int, location: str | None, follows: bool) -> None:
    assert AnswerState(100.0).follow(status, location) is follows


def test_redirects_end() -> None:
    state = AnswerState(100.0)
    followed = 0
    while state.follow(307, "/again"):
        followed += 1
    assert followed == MAX_REDIRECTS
    assert not state.open(307, httpx.Headers({"Location": "/again"}), "HTTP/1.1")
    assert "too many redirects" in str(state.error)


def test_an_unknown_dialect_fails_before_the_request() -> None:
    with pytest.raises(ValueError, match="unknown dialect 'esperanto'"):
        AnswerState(100.0, dialect="esperanto")


def test_a_dialect_of_a_later_version_is_verified_and_its_events_handed_out() -> None:
    later = made("Hello", dialect=OpenAI(id="x", created=1), wire=Ndjson())
    state = opened(attrs.evolve(later, header=later.header.replace("openai", "later")))
    state.feed(later.body, 100, 101)
    assert taken(state) == "Hello"
    assert state.receipt.frames == 3


def test_the_dialect_that_was_asked_for_wins() -> None:
    plain = made("Hello", dialect=Text(), wire=Plain())
    state = AnswerState(100.0, dialect=Text())
    assert state.open(200, httpx.Headers({"Content-Type": "text/plain", "Content-Length": "5"}), "HTTP/1.1")
    state.feed(plain.body, 100, 101)
    state.end(101, 101, clean=True)
    assert state.receipt.verdict is Verdict.UNVERIFIED
    assert state.receipt.proved_by == "framing"


@pytest.mark.parametrize(
    ("version", "fields", "proves"),
    [
        ("HTTP/1.1", {"content-length": "5"}, True),
        ("HTTP/1.1", {"transfer-encoding": "Chunked"}, True),
        ("HTTP/2", {}, True),
        (None, {}, True),
        ("HTTP/1.1", {}, False),
        ("HTTP/1.0", {}, False),
    ],
)
def test_the_end_of_a_connection_proves_nothing(version: str | None, fields: dict[str, str], proves: bool) -> None:
    state = AnswerState(100.0, dialect="text")
    assert state.open(200, httpx.Headers({"content-type": "text/plain", **fields}), version)
    state.feed(b"Hello", 100, 101)
    state.end(101, 102, clean=True)
    assert state.receipt.verdict is (Verdict.UNVERIFIED if proves else Verdict.TRUNCATED)


# ---- ends ----------------------------------------------------------------------------------------


def test_bytes_after_the_terminal_make_a_complete_answer_corrupt() -> None:
    state = opened()
    state.feed(HELLO.body, 100, 101)
    assert state.needs == "end"
    state.feed(HELLO.pushes[0], 101, 102)
    assert state.needs == "nothing"
    assert taken(state) == "Hello world"
    assert isinstance(state.error, CorruptStream)


@pytest.mark.parametrize("verb", ["end", "silent", "settle"])
def test_after_the_terminal_no_end_of_the_connection_changes_the_verdict(verb: str) -> None:
    for failure, kind in ((None, type(None)), (Failure("overloaded", "no room"), FailedStream)):
        stream = made("Hello", failure=failure)
        state = opened(stream)
        state.feed(stream.body, 100, 101)
        if verb == "end":
            state.end(101, 102, clean=False, cause=httpx.ReadError("reset"))
        elif verb == "silent":
            state.silent(101, 102)
        else:
            state.settle(102)
        assert state.needs == "nothing"
        assert taken(state) == "Hello"
        assert type(state.error) is kind


def test_settling_is_for_after_the_terminal_only() -> None:
    state = opened()
    state.settle(101)
    assert state.needs == "bytes"


def test_an_answer_that_this_side_closed_never_ends_as_if_in_order() -> None:
    state = opened()
    state.feed(HELLO.opening + HELLO.pushes[0], 100, 101)
    state.close()
    assert taken(state) == "Hello"
    assert isinstance(state.error, StreamClosed)
    whole = opened()
    whole.feed(HELLO.body, 100, 101)
    whole.close()
    assert whole.error is None


def ended(content: bytes, *, clean: bool = True, dialect: str | None = None, streamguard: str = "") -> AnswerState:
    """An answer with this body, at its end."""
    state = AnswerState(100.0, dialect=dialect)
    promise = {"streamguard": streamguard} if streamguard else {}
    headers = httpx.Headers({"content-type": "text/event-stream", "transfer-encoding": "chunked", **promise})
    assert state.open(200, headers, "HTTP/1.1")
    state.feed(content, 100, 101)
    state.end(101, 102, clean=clean)
    return state


CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize(
    ("state", "hinted"),
    [
        (ended(b'data: "Hello"\n\n'), True),
        (ended(b""), True),
        (ended(b'data: "Hello"\n\n', dialect="native"), True),
        (ended(b'data: "Hello"\n\n', clean=False), False),  # cut: its header may tell nothing
        (ended(CHUNK), False),  # a provider's own stream, without its end
        (ended(CHUNK, dialect="openai"), False),
        (ended(HELLO.opening, streamguard=HELLO.header), False),
        (ended(HELLO.opening + HELLO.pushes[0]), False),  # guarded, whatever became of its header
    ],
    ids=["events", "empty", "native", "cut", "chunks", "openai", "promised", "cursors"],
)
def test_a_whole_body_that_nobody_guarded_is_named_as_that(state: AnswerState, hinted: bool) -> None:
    assert isinstance(state.error, TruncatedStream)
    assert ("is @guarded on its endpoint" in str(state.error)) is hinted


def test_a_cut_is_the_cause_of_what_it_cut() -> None:
    state = opened()
    state.feed(HELLO.opening, 100, 101)
    cut = httpx.ReadError("reset")
    state.end(101, 102, clean=False, cause=cut)
    assert isinstance(state.error, TruncatedStream)
    assert state.error.__cause__ is cut
    with pytest.raises(TruncatedStream):
        state.conclude()


def test_a_connection_that_ends_before_its_response_is_truncated() -> None:
    assert isinstance(AnswerState(100.0).dropped(), TruncatedStream)


def test_a_provider_stream_is_checked_by_its_own_markers() -> None:
    state = AnswerState(100.0, dialect=Raw())
    assert state.open(200, httpx.Headers({"content-type": "text/event-stream"}), "HTTP/1.1")
    state.feed(b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n', 100, 101)
    state.feed(b"data: [DONE]\n\n", 101, 102)
    state.end(102, 103, clean=False)
    assert taken(state) == "Hi"
    assert state.error is None
    assert str(state.receipt) == "UNVERIFIED, proved by marker+reason"


def test_the_request_asks_for_verification_in_a_form_that_servers_read() -> None:
    headers = dict(REQUEST_HEADERS)
    assert parse_request(headers["Streamguard"], None) is not None
    assert headers["Accept"].startswith("text/event-stream")


def test_the_server_knows_its_dialect_better_than_the_caller() -> None:
    """Read as another dialect, its text would be lost and the answer called complete."""
    for wire in (Sse(ids="id"), Ndjson(), Binary()):
        stream = made("Hello", " world", wire=wire)
        state = AnswerState(100.0, dialect="raw")
        headers = httpx.Headers({"Content-Type": stream.content_type, "Streamguard": stream.header})
        headers["Transfer-Encoding"] = "chunked"
        assert state.open(200, headers, "HTTP/1.1")
        for push in [stream.opening, *stream.pushes, stream.ending]:
            state.feed(push, 100.0, 100.0)
        assert taken(state) == "Hello world"
