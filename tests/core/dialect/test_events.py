"""What holds in every dialect of events that open and close."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamguard.core.dialect import AgUi, Anthropic, Dialect, OpenAIResponses, Ui
from streamguard.core.errors import (
    Failure,
    LocalProtocolError,
    NotSerialisable,
    SourceFailed,
    StreamFinished,
    TextAfterFinish,
    UnsupportedItem,
)
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Block, Event, Finish, Item, tool_call
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Sse, SseDecoder
from tests.core.wire.streams import FAILURE, SID, Answer, chunkings, read, written

EACH: list[Any] = [Anthropic("m", "msg_1"), OpenAIResponses("m", "resp_1", 1), Ui("msg_1"), AgUi("t", "r")]
each = pytest.mark.parametrize("dialect", EACH, ids=lambda dialect: dialect.name)
REASONING, CALL = Block("reasoning", {"text": "so\u2028"}), tool_call("c", "f", '{"x":"é"}')


def events(items: list[Any], dialect: Dialect, **options: Any) -> list[Any]:
    """The data of every event, which bears the name that it should."""
    found = SseDecoder().feed(b"".join(written(items, dialect, Sse(), **options)))
    told = [event.data if event.data == "[DONE]" else json.loads(event.data) for event in found]
    named = dialect.name in ("anthropic", "openai-responses")
    for event, data in zip(found, told, strict=True):
        assert event.event == (data["type"] if named else "message")
    return told


def answer(items: list[Any], dialect: Dialect, **options: Any) -> Answer:
    """What our client makes of the stream, however its bytes are cut and whatever follows them."""
    body = b"".join(written(items, dialect, Sse(), **options))
    first = read(body, dialect=dialect.name)
    for chunks in chunkings(body):
        assert read(chunks, dialect=dialect.name).content == first.content
    trailed = read(body + b": one more\n\n", dialect=dialect.name)
    assert (trailed.content, trailed.verdict) == (first.content, first.verdict)
    more = read(body + b"data: {}\n\n", dialect=dialect.name)
    assert more.verdict is (Verdict.CORRUPT if first.verdict is Verdict.COMPLETE else Verdict.FAILED)
    return first


def test_items_come_out_as_they_went_in() -> None:
    items: list[Item] = ["é", '"b"\u2028', CALL, "c", REASONING, tool_call("d", "g", ""), "e", Finish("stop", {"n": 1})]
    for dialect in EACH:
        found = answer(items, dialect)
        assert (found.verdict, found.text) == (Verdict.COMPLETE, 'é"b"\u2028ce')
        assert found.blocks == [CALL, REASONING, tool_call("d", "g", "{}")]
        assert (found.receipt.finish_reason, found.receipt.usage) == ("stop", {"n": 1})


@each
def test_what_is_read_without_the_guard_is_the_same(dialect: Dialect) -> None:
    items = ["a", CALL, REASONING, Finish("stop", {"input_tokens": 1, "output_tokens": 2})]
    body = b"".join(written(items, dialect, Sse()))
    bare = b"".join([line + b"\n" for line in body.split(b"\n") if not line.startswith(b":")])
    found = read(bare, dialect=dialect.name)
    assert (found.verdict, found.text, found.blocks) == (Verdict.UNVERIFIED, "a", [CALL, REASONING])
    assert found.receipt.proved_by in ("marker", "marker+reason")
    blocks = bare.split(b"\n\n")
    for count in range(len(blocks) - 1):
        cut = read(b"".join([block + b"\n\n" for block in blocks[:count]]), dialect=dialect.name)
        assert cut.verdict in (Verdict.TRUNCATED, Verdict.FAILED)


@each
def test_an_empty_answer_begins_and_ends(dialect: Dialect) -> None:
    assert answer([], dialect).verdict is Verdict.COMPLETE
    for items in ([], ["a"], [CALL]):
        found = answer(items, dialect, fail=FAILURE)
        assert (found.verdict, found.receipt.failure) == (Verdict.FAILED, FAILURE)


@each
def test_a_failed_stream_has_no_marker_of_success(dialect: Dialect) -> None:
    told = json.dumps(events(["a", Finish("stop")], dialect, fail=FAILURE))
    for marker in ("message_stop", "message_delta", "response.completed", "response.incomplete", '"finish', "[DONE]"):
        assert marker not in told
    assert "RUN_FINISHED" not in told
    bare = b"".join([b"data: %b\n\n" % json.dumps(one).encode() for one in json.loads(told)])
    assert read(bare, dialect=dialect.name).verdict is Verdict.FAILED


@each
def test_a_cancelled_stream_says_so(dialect: Dialect) -> None:
    found = answer(["a"], dialect, fail=Failure("cancelled", "by its reader"), status="cancelled")
    assert (found.verdict, found.receipt.status) == (Verdict.FAILED, "cancelled")
    encoder = FramedEncoder(dialect, sid=SID)
    encoder.ending.status = "cancelled"
    assert b"cancelled" in (encoder.dialect.terminal(encoder.ending, 0, 0).extra or b"")


@each
def test_a_source_that_called_tools_and_returned_waits_for_them(dialect: Dialect) -> None:
    assert answer([CALL], dialect).receipt.finish_reason == "tool_calls"
    assert answer(["a"], dialect).receipt.finish_reason == "stop"
    assert answer(["a", Finish("abort")], dialect).code == "generation_aborted"


@each
def test_there_is_one_answer(dialect: Dialect) -> None:
    found = answer(["a", Finish("stop", choice=1)], dialect)
    assert found.verdict is Verdict.FAILED
    assert found.receipt.failure is not None
    assert "the end of choice 1" in found.receipt.failure.message


@each
def test_what_cannot_be_written_is_refused_and_leaves_nothing_half_open(dialect: Dialect) -> None:
    half = Block("tool_call", {"id": "c", "name": None})
    for bad in (half, Block("reasoning"), {"a": 1}, Event("[1]"), Event("x"), Event("[" * 100_000)):
        encoder = FramedEncoder(dialect, sid=SID)
        untouched = FramedEncoder(dialect, sid=SID)
        with pytest.raises(UnsupportedItem):
            encoder.item(bad)
        assert encoder.texts("a") == untouched.texts("a")
    with pytest.raises(UnsupportedItem, match="a serialised stream"):
        FramedEncoder(dialect).wire(b"x")
    with pytest.raises(NotSerialisable):
        FramedEncoder(dialect).item({"type": "data-x", "data": float("nan")})


@each
def test_a_text_is_several_frames(dialect: Dialect) -> None:
    encoder = FramedEncoder(dialect, sid=SID, max_text=4, max_block=300)
    assert (encoder.takes_text, encoder.plain_text) == (True, False)
    with pytest.raises(LocalProtocolError, match="`texts` makes them"):
        encoder.text("a")
    frames = encoder.texts("a")
    assert len(frames) > 1
    assert encoder.chars == 1
    assert len(encoder.texts("abcde")) == 5  # each of a frame's size, in the part that is open
    encoder.ending.merge(Finish("stop"))
    with pytest.raises(TextAfterFinish):
        encoder.texts("b")
    encoder.finish()
    with pytest.raises(StreamFinished):
        encoder.texts("c")


@each
def test_ids_are_random_unless_they_are_given(dialect: Any) -> None:
    kind = type(dialect)
    first, second = kind().encoder().settings(), kind().encoder().settings()
    assert first != second
    given = dialect.encoder().settings()
    assert kind(**given).encoder().settings() == given


@pytest.mark.parametrize("dialect", [Ui(), AgUi()], ids=lambda dialect: dialect.name)
def test_a_sources_own_error_fails_it(dialect: Dialect) -> None:
    for item in ({"type": "error", "errorText": "died"}, {"type": "RUN_ERROR", "message": "died", "code": "c"}):
        own = str(item["type"]).isupper() == (dialect.name == "ag-ui")
        encoder = FramedEncoder(dialect, sid=SID)
        if own:
            with pytest.raises(SourceFailed, match="died"):
                encoder.item(item)


@each
def test_text_of_another_dialect_is_not_taken_for_an_empty_answer(dialect: Dialect) -> None:
    body = b"".join(written(["a"], dialect, Sse()))
    *blocks, last = body.split(b"\n\n", 1)
    assert read(blocks[0] + b"\n\n" + last, dialect="native").verdict is not Verdict.COMPLETE
