"""Each error says what it knows, as attributes and in its own message, and survives a copy."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from streamguard.core import errors
from streamguard.core.cursor import Cursor
from streamguard.core.errors import (
    ConnectLimitExceeded,
    CorruptStream,
    CursorError,
    FailedStream,
    Failure,
    FieldRefused,
    FinishConflict,
    FirstByteLimitExceeded,
    FrameTooLarge,
    ItemTooLarge,
    LimitExceeded,
    LivenessLimitExceeded,
    LocalProtocolError,
    NotSerialisable,
    PolicyError,
    RemoteProtocolError,
    SourceFailed,
    StallLimitExceeded,
    StreamAborted,
    StreamBroken,
    StreamClosed,
    StreamFinished,
    StreamGap,
    StreamGuardError,
    TextAfterFinish,
    TruncatedStream,
    UnexpectedResponse,
    UnsupportedItem,
    VerdictError,
    WireError,
    failure_from,
)

SID = "AAECAwQFBgcICQoLDA0ODw"
AT = Cursor(SID, 3, 32, 0xBE03455D)
FAILURE = Failure("overloaded", "try later", retryable=True)

# An error, its facts, its message, its nearest relation outside the tree.
CASES = [
    (StreamGuardError("why"), {}, "why"),
    (LocalProtocolError("why"), {"code": "internal"}, "why"),
    (
        UnsupportedItem("int", "native"),
        {"code": "unsupported_item", "kind": "int", "dialect": "native"},
        "a source yielded int, which dialect 'native' cannot carry",
    ),
    (
        UnsupportedItem("int", "native", "yield str"),
        {"kind": "int", "dialect": "native"},
        "a source yielded int, which dialect 'native' cannot carry: yield str",
    ),
    (
        UnsupportedItem("int", "", "yield str"),
        {"kind": "int", "dialect": ""},
        "a source yielded int, which no dialect can carry: yield str",
    ),
    (
        TextAfterFinish(1, "stop"),
        {"code": "text_after_finish", "choice": 1, "reason": "stop"},
        "choice 1 already finished with 'stop'; no text may follow",
    ),
    (
        FinishConflict(1, "stop", "length"),
        {"code": "finish_conflict", "choice": 1, "first": "stop", "second": "length"},
        "choice 1 finished with 'stop', then with 'length'",
    ),
    (
        ItemTooLarge(11, 10),
        {"code": "item_too_large", "size": 11, "limit": 10},
        "an item of 11 bytes is above the limit of 10; raise `max_block`, or send a reference to it",
    ),
    (NotSerialisable("no form"), {"code": "not_serialisable"}, "no form"),
    (
        FieldRefused("event"),
        {"code": "field_refused", "field": "event"},
        "the event field holds CR, LF or NUL, which the wire has no place for",
    ),
    (FieldRefused("event", "is longer than 255 bytes"), {"field": "event"}, "the event field is longer than 255 bytes"),
    (
        PolicyError("Mine", -1, 4),
        {"code": "policy_error", "policy": "Mine", "answer": -1, "held": 4},
        "Mine answered -1; 4 characters are held: answer an int from 0 to 4",
    ),
    (
        PolicyError("Mine", "the text", 4),
        {"answer": "the text"},
        "Mine answered a str; 4 characters are held: answer an int from 0 to 4",
    ),
    (
        PolicyError("Mine", True, 4),
        {"answer": True},
        "Mine answered a bool; 4 characters are held: answer an int from 0 to 4",
    ),
    (
        PolicyError("Mine", 2**63, 4),
        {"answer": 2**63},
        "Mine answered a int; 4 characters are held: answer an int from 0 to 4",
    ),
    (
        PolicyError("Mine", 1 - 2**63, 4),
        {"answer": 1 - 2**63},
        "Mine answered -9223372036854775807; 4 characters are held: answer an int from 0 to 4",
    ),
    (StreamFinished("failed"), {"code": "internal", "status": "failed"}, "the stream already ended as 'failed'"),
    (StreamClosed("why"), {"code": "internal"}, "why"),
    (StreamBroken("why"), {"code": "internal"}, "why"),
    (
        SourceFailed("quota", "no tokens left"),
        {"failure": Failure("quota", "no tokens left", retryable=False, resumable=False)},
        "quota: no tokens left",
    ),
    (
        SourceFailed("quota", "no tokens left", retryable=True),
        {"failure": Failure("quota", "no tokens left", retryable=True)},
        "quota: no tokens left",
    ),
    (StreamAborted("cancelled", None), {"status": "cancelled", "failure": None}, "the stream ended as 'cancelled'"),
    (
        StreamAborted("failed", FAILURE),
        {"status": "failed", "failure": FAILURE},
        "the stream ended as 'failed' (overloaded)",
    ),
    (RemoteProtocolError("why"), {}, "why"),
    (WireError("why"), {}, "why"),
    (CursorError("x" * 200), {"text": "x" * 128}, f"not a cursor: '{'x' * 128}'"),
    (
        FrameTooLarge(11, 10),
        {"size": 11, "limit": 10},
        "a frame of at least 11 bytes is above the reader's limit of 10",
    ),
    (
        UnexpectedResponse(502, "text/html", b"<h1>" + b"\xff" * 300, "a gateway spoke"),
        {"status": 502, "content_type": "text/html", "body": b"<h1>" + b"\xff" * 300},
        f"a gateway spoke: HTTP 502, text/html, beginning '<h1>{chr(0xFFFD) * 196}'",
    ),
    (UnexpectedResponse(204, "", b""), {"status": 204, "retry_after": None}, "no stream: HTTP 204, no content type"),
    (
        UnexpectedResponse(503, "", b"", retry_after=2.0),
        {"retry_after": 2.0},
        "no stream: HTTP 503, no content type",
    ),
    (LimitExceeded(2.0), {"seconds": 2.0, "cursor": None}, "a time limit passed within 2 s"),
    (
        ConnectLimitExceeded(0.25, AT),
        {"seconds": 0.25, "cursor": AT},
        f"no connection within 0.25 s after {SID}.3.32.be03455d",
    ),
    (FirstByteLimitExceeded(30.0), {"seconds": 30.0}, "no response within 30 s"),
    (LivenessLimitExceeded(45.0), {"seconds": 45.0}, "no byte, not even a heartbeat, within 45 s"),
    (StallLimitExceeded(60.0), {"seconds": 60.0}, "no frame, only heartbeats, within 60 s"),
    (VerdictError("why"), {"cursor": None, "received": ""}, "why"),
    (VerdictError("why", cursor=AT, received="ab"), {"cursor": AT, "received": "ab"}, "why"),
    (
        TruncatedStream(),
        {"cursor": None, "received": "", "detail": ""},
        "the stream ended before any verified frame without its terminal frame",
    ),
    (
        TruncatedStream(frames=5, detail="no header"),
        {"cursor": None, "frames": 5, "detail": "no header"},
        "the stream ended after 5 events without its end marker: no header",
    ),
    (TruncatedStream(frames=1), {"frames": 1}, "the stream ended after 1 event without its end marker"),
    (
        FailedStream("cancelled", Failure("cancelled", "the stream was cancelled")),
        {"status": "cancelled", "code": "cancelled"},
        "the stream ended as 'cancelled': the stream was cancelled",
    ),
    (
        TruncatedStream(cursor=AT, received="ab", detail="in a tool call"),
        {"cursor": AT, "received": "ab", "detail": "in a tool call"},
        f"the stream ended after {SID}.3.32.be03455d without its terminal frame: in a tool call",
    ),
    (
        TruncatedStream().explained("no header"),
        {"cursor": None, "received": "", "detail": "no header"},
        "the stream ended before any verified frame without its terminal frame: no header",
    ),
    (
        TruncatedStream(detail="dropped").explained("no header"),
        {"cursor": None, "received": "", "detail": "dropped; no header"},
        "the stream ended before any verified frame without its terminal frame: dropped; no header",
    ),
    (
        CorruptStream("checksum"),
        {"code": "checksum", "cursor": None, "received": "", "detail": ""},
        "the first frame is corrupt (checksum)",
    ),
    (
        CorruptStream("length", cursor=AT, received="ab", detail="8 for 7"),
        {"code": "length", "cursor": AT, "received": "ab", "detail": "8 for 7"},
        f"the frame after {SID}.3.32.be03455d is corrupt (length): 8 for 7",
    ),
    (
        StreamGap(4, 6, cursor=AT, received="ab"),
        {"expected": 4, "got": 6, "cursor": AT, "received": "ab", "detail": ""},
        "frame 4 is missing, 6 came instead",
    ),
    (
        StreamGap(4, 0, detail="odd"),
        {"expected": 4, "got": 0, "detail": "odd"},
        "frame 4 is missing, 0 came instead: odd",
    ),
    (StreamGap(4, None, detail="410"), {"expected": 4, "got": None, "detail": "410"}, "frame 4 is missing: 410"),
    (StreamGap(4, None), {"detail": ""}, "frame 4 is missing"),
    (
        FailedStream("stalled", None),
        {"status": "stalled", "failure": None, "code": None, "cursor": None, "received": ""},
        "the stream ended as 'stalled'",
    ),
    (
        FailedStream("failed", FAILURE, cursor=AT, received="ab"),
        {"status": "failed", "failure": FAILURE, "code": "overloaded", "cursor": AT, "received": "ab"},
        "the stream ended as 'failed': overloaded: try later",
    ),
]


@pytest.mark.parametrize(("exc", "facts", "message"), CASES, ids=lambda value: type(value).__name__)
def test_an_error_carries_its_facts_and_makes_its_own_message(
    exc: StreamGuardError, facts: dict[str, object], message: str
) -> None:
    assert str(exc) == message
    assert {name: getattr(exc, name) for name in facts} == facts


@pytest.mark.parametrize("exc", [case[0] for case in CASES], ids=lambda exc: type(exc).__name__)
@pytest.mark.parametrize("again", [copy.copy, lambda exc: pickle.loads(pickle.dumps(exc))], ids=["copy", "pickle"])
def test_an_error_can_be_copied_and_can_leave_its_process(exc: StreamGuardError, again: object) -> None:
    other = again(exc)  # type: ignore[operator]
    assert type(other) is type(exc)
    assert str(other) == str(exc)
    assert vars(other) == vars(exc)


def test_every_error_is_in_the_table_above() -> None:
    named = {getattr(errors, name) for name in errors.__all__} - {Failure, failure_from}
    assert {type(case[0]) for case in CASES} == named


def test_the_tree_is_the_one_that_the_docstring_draws() -> None:
    """Each name in the drawing has the parent that its indentation gives it, and none is missing."""
    assert errors.__doc__ is not None
    parents: list[type] = []
    drawn = []
    for line in errors.__doc__.splitlines():
        drawing = re.match(r"[│├└─ ]*", line)
        assert drawing is not None
        names = re.match(r"(?:[A-Z]\w+(?:, )?)+", line[drawing.end() :])
        if names is None or not (drawing[0] or line == "StreamGuardError"):
            continue
        depth = len(drawing[0]) // 4
        for name in names[0].split(", "):
            cls = getattr(errors, name)
            assert issubclass(cls, parents[depth - 1] if depth else Exception)
            assert not drawn or cls.__bases__[0] is parents[depth - 1]
            drawn.append(name)
            parents[depth:] = [cls]
    assert drawn == [name for name in errors.__all__ if name not in ("Failure", "failure_from")]


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [(UnsupportedItem, TypeError), (NotSerialisable, ValueError), (FieldRefused, ValueError)],
)
def test_an_error_that_python_has_a_word_for_is_that_too(cls: type, builtin: type) -> None:
    assert issubclass(cls, builtin)


def test_a_failure_takes_whatever_a_source_gives_it_and_stays_small() -> None:
    failure = Failure(404, ValueError("x" * 5000))  # type: ignore[arg-type]
    assert failure == Failure("404", "x" * 4096)
    assert Failure("c" * 200, "m") == Failure("c" * 128, "m")
    assert (failure.retryable, failure.resumable) == (False, False)


@pytest.mark.parametrize(
    ("exc", "failure"),
    [
        (SourceFailed("quota", "none left", retryable=True), Failure("quota", "none left", retryable=True)),
        (FieldRefused("id"), Failure("field_refused", str(FieldRefused("id")))),
        (StreamFinished("failed"), Failure("internal", "the stream already ended as 'failed'")),
        (ValueError("password=hunter2"), Failure("source_error", "ValueError")),
        (WireError("password=hunter2"), Failure("source_error", "WireError")),
        (KeyboardInterrupt(), Failure("source_error", "KeyboardInterrupt")),
    ],
)
def test_a_reader_is_told_our_own_errors_in_full_and_of_others_the_class(exc: BaseException, failure: Failure) -> None:
    assert failure_from(exc) == failure


def test_what_a_reader_is_told_is_made_of_any_exception_without_raising() -> None:
    class Careless(SourceFailed):
        def __init__(self) -> None:
            pass  # no super().__init__(), and so no failure

    class Unspeakable(LocalProtocolError):
        def __str__(self) -> str:
            raise RuntimeError("no text can be made")

    assert failure_from(Careless()) == Failure("source_error", "Careless")
    assert failure_from(Unspeakable()) == Failure("source_error", "Unspeakable")
