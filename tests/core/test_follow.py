"""A stream that another encoder goes on with: the frames are those that the first one would have made.

At any frame a second encoder is made of what a log keeps (where the stream stands, the dialect's settings, the frames
so far), and both make the rest. That is what a reader relies on whose server died in the middle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import AgUi, Anthropic, Dialect, Native, OpenAI, OpenAIResponses, Raw, Text, Ui
from streamguard.core.errors import Failure, SourceFailed
from streamguard.core.flush import EveryTokens
from streamguard.core.frame import Frame
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Block, Finish, tool_call
from streamguard.core.pipeline import FrameStage

SID = "AAAAAAAAAAAAAAAAAAAAAA"


def chunk(text: str = "", reason: str | None = None, **more: Any) -> dict[str, Any]:
    """A provider's own chunk."""
    delta = {"content": text} if text else {}
    return {
        "id": "theirs",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        **more,
    }


STREAMS: dict[str, tuple[Dialect, list[Any]]] = {
    "native": (Native(), ["a", Block("image", {"url": "u"}), "b", "c"]),
    "openai text": (OpenAI(model="m", include_usage=True), ["a", "b", "c"]),
    "openai tools": (OpenAI(), [tool_call("1", "f", "{}"), "a", tool_call("2", "g", "{}"), tool_call("3", "h", "{}")]),
    "openai chunks": (OpenAI(include_usage=True), [chunk("a"), chunk("b"), chunk(reason="length", usage={"n": 1})]),
    "openai text like a tool": (OpenAI(), ['"tool_calls":[', tool_call("1", "f", "{}")]),
    "text": (Text(), ["a", "b"]),
}
REASONING, CALL = Block("reasoning", {"text": "so"}), tool_call("1", "f", '{"x":1}')
RESULT = Block("tool_result", {"id": "1", "content": "y"})
OWN: dict[str, list[Any]] = {
    "anthropic": [
        {"type": "message_start", "message": {"id": "theirs"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "1", "name": "f"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    ],
    "openai-responses": [
        {"type": "response.created", "sequence_number": 0, "response": {"id": "theirs"}},
        {"type": "response.output_text.delta", "sequence_number": 1, "delta": "a"},
    ],
}
for _dialect in (Anthropic("m"), OpenAIResponses("m"), Ui(), AgUi()):
    _some = ["a", "b", CALL, REASONING, "c", tool_call("2", "g", "{}"), "d"]
    STREAMS[_dialect.name] = (_dialect, _some)
    if _dialect.name in OWN:
        STREAMS[f"{_dialect.name} of a provider"] = (_dialect, OWN[_dialect.name])
    else:
        STREAMS[f"{_dialect.name} with results"] = (_dialect, ["a", CALL, RESULT, Block("mine"), "b"])
STREAMS["ui with its own"] = (Ui(), [{"type": "start"}, {"type": "start-step"}, "a", {"type": "finish-step"}, "b"])
STREAMS["ag-ui with its own"] = (
    AgUi(), [{"type": "RUN_STARTED", "runId": "r"}, "a", {"type": "STATE_DELTA"}, "b", {"type": "STEP_STARTED"}, "c"],
)  # fmt: skip


def cursor_of(frame: Frame) -> Cursor:
    return Cursor(SID, frame.seq, frame.offset, frame.crc)


def push(encoder: FramedEncoder, item: Any) -> list[Frame]:
    return encoder.texts(item) if isinstance(item, str) else encoder.item(item)


def gone_on(first: FramedEncoder, dialect: Dialect, frames: list[Frame]) -> FramedEncoder:
    """Another encoder, of what a log keeps."""
    settings: Mapping[str, Any] = json.loads(json.dumps(first.dialect.settings()))
    dialect = attrs.evolve(dialect, **settings)  # type: ignore[misc]  # each is of attrs
    second = FramedEncoder(dialect, at=cursor_of(frames[-1]) if frames else cursor_zero(SID))
    second.follow(frames)
    return second


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("end", ["finish", "fail"])
def test_another_encoder_makes_the_frames_that_the_first_would_have_made(name: str, end: str) -> None:
    dialect, items = STREAMS[name]
    for at in range(len(items) + 1):
        first = FramedEncoder(dialect, sid=SID)
        before = [frame for item in items[:at] for frame in push(first, item)]
        second = gone_on(first, dialect, before)
        assert (second.cursor, second.zero) == (first.cursor, cursor_zero(SID))
        ends = []
        for encoder in (first, second):
            frames = [frame for item in items[at:] for frame in push(encoder, item)]
            frames += encoder.finish() if end == "finish" else encoder.fail(Failure("x", "y"))
            ends.append(frames)
        assert ends[0] == ends[1], at
        unproven = end == "fail" or name.endswith("of a provider")
        assert ends[1][-1].status == ("failed" if unproven else "complete")


@pytest.mark.parametrize("dialect", [Anthropic(), OpenAIResponses(), Ui(), AgUi()], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("block", [CALL, REASONING], ids=lambda block: block.type)
def test_half_a_block_is_followed_by_a_failure_and_nothing_else(dialect: Dialect, block: Block) -> None:
    """Whoever goes on with the stream cannot make the block whole, and must not let it be taken for that."""
    first = FramedEncoder(dialect, sid=SID)
    before = push(first, "a")
    before += push(first, block)[:-2]
    for item in ("b", REASONING, {"type": "custom"}):
        with pytest.raises(SourceFailed, match="died inside a block"):
            push(gone_on(first, dialect, before), item)
    terminal = gone_on(first, dialect, before).finish()[-1]
    assert terminal.status == "failed"
    assert b"unproven_end" in (terminal.extra or b"")


@given(st.lists(st.one_of(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.just(None)), max_size=6))
def test_any_text_and_any_tool_calls_are_followed(items: list[str | None]) -> None:
    dialect = OpenAI()
    first = FramedEncoder(dialect, sid=SID)
    before = [frame for item in items for frame in push(first, tool_call("1", "f", "{}") if item is None else item)]
    second = gone_on(first, dialect, before)
    for item in ("x", tool_call("2", "g", "{}")):
        assert push(second, item) == push(first, item)


def test_a_provider_s_reason_and_usage_are_taken_from_its_chunks() -> None:
    dialect = OpenAI(include_usage=True)
    first = FramedEncoder(dialect, sid=SID)
    before = first.item(chunk("a")) + first.item(chunk(reason="length", usage={"n": 1}))
    second = gone_on(first, dialect, before)
    assert (second.ending.finish_reason, second.ending.usage) == ("length", {"n": 1})
    assert [frame.data for frame in second.finish()] == [b"[DONE]"]


def test_the_end_of_a_serialised_stream_is_known_from_what_was_there() -> None:
    first = FramedEncoder(Raw(), sid=SID)
    body = [f"data: {json.dumps(chunk(text))}\n\n".encode() for text in ("a", "b")]
    last = f"data: {json.dumps(chunk(reason='stop'))}\n\n".encode()
    before = first.wire(body[0])
    assert first.dialect.settings() == {}
    second = gone_on(first, Raw(), before)
    ends = []
    for encoder in (first, second):
        frames = [frame for piece in (body[1], last, b"data: [DONE]\n\n") for frame in encoder.wire(piece)]
        ends.append([*frames, *encoder.finish()])
    assert ends[0] == ends[1]
    assert ends[1][-1].status == "complete"


def test_the_text_that_is_held_for_one_that_goes_away_is_framed_without_an_end() -> None:
    stage = FrameStage(EveryTokens(9, first="policy"), FramedEncoder("native", sid=SID))
    assert stage.push("a", 0.0) == []
    stage.push(Finish(usage={"n": 1}), 0.0)
    (frame,) = stage.drain()
    assert (frame.data, frame.status) == (b'"a"', None)
    assert stage.drain() == []
    assert not stage.encoder.finished
    assert stage.encoder.ending.items == 1
