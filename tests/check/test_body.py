"""The bytes of an answer: which API it is, its tokens, and what its end proves."""

from __future__ import annotations

import json

import pytest

from streamguard import AgUi, Anthropic, Native, OpenAI, OpenAIResponses, Ui
from streamguard.check.body import End, StreamBody, open_body
from streamguard.core.cursor import cursor_zero
from streamguard.core.dialect import Dialect
from streamguard.core.errors import Failure
from streamguard.core.negotiate import Answer as Promise
from streamguard.core.negotiate import write_answer
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Binary, Ndjson, Sse, Wire
from tests.check.faulty import DONE, chunk
from tests.core.test_recorded import ROWS, recorded
from tests.core.wire.streams import FAILURE, SID, written
from tests.cuts import Row, profile_of

SSE = {"content-type": "text/event-stream; charset=utf-8"}
LINES = {"content-type": "application/x-ndjson"}
TEXT = "one two three"
NAMES = {
    "openai-chat": "OpenAI chat completions", "openai-completions": "OpenAI completions",
    "openai-responses": "OpenAI Responses", "anthropic-messages": "Anthropic Messages",
}  # fmt: skip


def read(
    data: bytes, headers: dict[str, str] = SSE, *, profile: str = "openai", size: int = 7
) -> tuple[StreamBody, End]:
    """A body that comes in pieces of `size`, and what is known of its end."""
    body = open_body(headers, profile)
    assert body is not None
    for at in range(0, len(data), size):
        body.feed(data[at : at + size])
    return body, body.end(clean=True)


def texts(data: bytes, headers: dict[str, str] = SSE) -> list[str]:
    body = open_body(headers)
    assert body is not None
    return [text for text in body.feed(data).texts if text]


def promised(dialect: str, wire: str) -> dict[str, str]:
    """The header of a guarded answer."""
    return {"streamguard": write_answer(Promise(cursor_zero(SID), dialect, wire))}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"].removesuffix(".sse"))
def test_a_recorded_stream_is_whole_where_it_is(row: Row) -> None:
    body, end = read(recorded(row), profile=profile_of(row), size=500)
    assert end.whole == (row["verdict"] == "complete")
    assert (end.error is not None) == (row["verdict"] == "failed"), end
    if row["verdict"] == "complete":
        assert body.api == NAMES[row["api"]]
        assert not body.guarded


DIALECTS = [OpenAI(), OpenAIResponses(), Anthropic(), Ui(), AgUi()]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("guarded", [True, False])
def test_each_api_is_told_from_its_first_events(dialect: Dialect, guarded: bool) -> None:
    data = b"".join(written(["one ", "two ", "three"], dialect, Sse()))
    if not guarded:
        data = b"".join(line for line in data.splitlines(keepends=True) if not line.startswith(b":"))
    body, end = read(data)
    assert body.api in {*NAMES.values(), "AI SDK UI message stream", "AG-UI"}
    assert (end.whole, end.marker, body.guarded) == (True, True, guarded)
    assert (end.receipt is not None) == guarded
    assert "".join(texts(data)) == TEXT
    cut = data[: data.index(b"three")]
    assert not read(cut)[1].whole


@pytest.mark.parametrize("wire", [Sse(), Ndjson(), Binary()], ids=lambda wire: wire.name)
def test_streamguards_own_form_is_verified(wire: Wire) -> None:
    headers = {"content-type": wire.content_type, **promised("native", wire.name)}
    data = b"".join(written(["one ", "two ", "three"], Native(), wire))
    body, end = read(data, headers)
    assert body.api in ("streamguard", "lines of JSON", "streamguard, binary")
    assert end.receipt is not None
    assert end.receipt.verdict is Verdict.COMPLETE
    failed = read(b"".join(written(["one "], Native(), wire, fail=FAILURE)), headers)[1]
    assert failed.receipt is not None
    assert (failed.receipt.verdict, failed.whole) == (Verdict.FAILED, False)
    damaged = read(data.replace(b"two", b"too"), headers)[1]
    assert damaged.receipt is not None
    assert damaged.receipt.verdict is Verdict.CORRUPT
    assert damaged.fault


def test_signs_of_life_are_counted_and_are_no_tokens() -> None:
    body = open_body(SSE)
    assert body is not None
    news = body.feed(b": ping\n\n: hb x\nevent: ping\ndata:\n\n" + chunk("a").encode() + b": sg x\n")
    assert (news.beats, news.texts) == (3, ["a"])
    lines = open_body(LINES)
    assert lines is not None
    assert lines.feed(b'{"hb": "x"}\n\n{"response": "a"}\n').beats == 2
    native = open_body({**SSE, **promised("native", "sse")})
    assert native is not None
    assert native.feed(b"event: ping\ndata: {}\n\n").beats == 1


CHAT = chunk("a")
ENDS = {
    "whole": (CHAT + chunk(reason="stop") + DONE, "marker"),
    "no reason": (CHAT + DONE, "marker unproven"),
    "one choice of two": (
        'data: {"choices": [{"index": 1, "delta": {"content": "b"}}]}\n\n' + chunk(reason="stop") + DONE,
        "marker unproven",
    ),
    "no marker": (CHAT + chunk(reason="stop"), "finished"),
    "neither": (CHAT, ""),
    "an error, then the marker": (CHAT + 'data: {"error": {"message": "no"}}\n\n' + DONE, "marker error"),
    "aborted": (CHAT + chunk(reason="abort") + DONE, "marker error finished"),
    "events behind it": (CHAT + chunk(reason="stop") + DONE + CHAT, "marker unproven"),
    "torn": (CHAT + chunk(reason="stop") + DONE[:-1], "finished torn"),
    "the AI SDK's, without `finish`": ('data: {"type": "start"}\n\n' + DONE, "marker unproven"),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_an_end_proves(name: str) -> None:
    data, known = ENDS[name]
    _, end = read(data.encode())
    facts = {"marker": end.marker, "unproven": end.unproven, "error": end.error, "torn": end.torn}
    facts["finished"] = end.finished and (not end.marker or end.error is not None)
    assert {fact for fact, holds in facts.items() if holds} == set(known.split())
    assert end.whole == (known == "marker")


@pytest.mark.parametrize(
    ("data", "marker"),
    [
        ("data: one\n\ndata: two\n\n", False),
        ("data: one\n\ndata: [DONE]\n\n", True),
        ("data: one\n\nevent: done\ndata: x\n\n", True),
        ('data: {"token": "one"}\n\ndata: {"done": true}\n\n', True),
        ('data: {"token": "one"}\n\ndata: {"type": "end"}\n\n', True),
    ],
)
def test_events_of_nobodys_api_end_with_the_usual_words(data: str, marker: bool) -> None:
    body, end = read(data.encode())
    assert body.api == "server-sent events"
    assert (end.marker, end.known) == (marker, marker)
    assert texts(data.encode())[0] == "one"


def test_an_error_event_of_nobodys_api_is_an_error() -> None:
    assert read(b"data: one\n\nevent: error\ndata: it broke\n\n")[1].error is not None


def test_lines_of_json_end_as_ollama_ends_them() -> None:
    lines = [{"message": {"content": "one "}}, {"response": "two"}, {"done": True}]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert texts(data, LINES) == ["one ", "two"]
    body, end = read(data, LINES)
    assert (body.api, end.whole, end.torn) == ("lines of JSON", True, False)
    assert read(data[:-1], LINES)[1].torn
    assert read(data + b"{}\n", LINES)[1].unproven
    assert not read(b"no json\n", LINES)[1].known
    assert read(b'{"error": "no"}\n', LINES)[1].error == Failure("upstream_error", "no")
    assert read(b'{"error": 0.25}\n{"error": 7}\n', LINES)[1].error is None
    assert open_body({"content-type": "application/x-ndjson-v2"}) is not None


def test_text_proves_nothing_and_other_types_are_no_stream() -> None:
    body, end = read(b" one  two", {"content-type": "text/plain"})
    assert body.feed(b" three four\n").texts == [" ", "three ", "four\n"]
    assert (end.api, end.known, end.whole) == ("text", False, False)
    assert open_body({"content-type": "application/json"}) is None
    assert open_body({}) is None


@pytest.mark.parametrize("promise", [("native", "ndjson"), ("text", "sse"), ("strange", "sse")])
def test_a_promise_that_is_not_this_answers_is_no_reason_to_stumble(promise: tuple[str, str]) -> None:
    _, end = read((CHAT + chunk(reason="stop") + DONE).encode(), {**SSE, **promised(*promise)})
    assert end.api


@pytest.mark.parametrize("data", [b'data: {"type": "TOOL_CALL_ARGS", "toolCallId": {}}\n\n', b'data: 1\n\n'])
def test_events_of_a_strange_form_are_no_reason_to_stumble(data: bytes) -> None:
    for dialect in ("native", "ui", "ag-ui", "openai", "anthropic"):
        assert not read(data, {**SSE, **promised(dialect, "sse")})[1].whole


def test_the_ai_sdks_header_names_its_stream() -> None:
    body, end = read(b"data: [DONE]\n\n", {**SSE, "x-vercel-ai-ui-message-stream": "v1"})
    assert (body.api, end.marker, end.whole) == ("AI SDK UI message stream", True, False)


def test_an_event_above_its_bound_is_an_error() -> None:
    body = open_body(SSE)
    assert body is not None
    body.feed(b"data: " + b"x" * (17 << 20))
    body.feed(b"\n\n")
    end = body.end(clean=True)
    assert end.error is not None
    assert end.error.code == "too_large"
