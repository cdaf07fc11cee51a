"""`ui`: the UI message stream of the AI SDK, to the letter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamguard.core.dialect import Ui
from streamguard.core.dialect.ui import UiReader
from streamguard.core.errors import SourceFailed, UnsupportedItem
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Block, Event, Finish, tool_call
from streamguard.core.receipt import Verdict
from tests.core.dialect.test_events import FAILURE, answer, events
from tests.core.wire.streams import read

DIALECT = Ui("m1")
BEGIN = [{"type": "start", "messageId": "m1"}, {"type": "start-step"}]
END = [{"type": "finish-step"}, {"type": "finish"}, "[DONE]"]


def between(*items: Any) -> list[Any]:
    told = events([*items], DIALECT)
    assert told[:2] == BEGIN
    assert told[-3:] == END
    return told[2:-3]


def test_text_is_a_part() -> None:
    assert between("a", "b") == [
        {"type": "text-start", "id": "part-1"},
        {"type": "text-delta", "id": "part-1", "delta": "a"},
        {"type": "text-delta", "id": "part-1", "delta": "b"},
        {"type": "text-end", "id": "part-1"},
    ]


NAMED = {"toolCallId": "c", "toolName": "f"}
START = {"type": "tool-input-start", **NAMED}


@pytest.mark.parametrize(
    ("block", "chunks", "back"),
    [
        (
            tool_call("c", "f", '{"x": 1}'),
            [
                START,
                {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": '{"x": 1}'},
                {"type": "tool-input-available", **NAMED, "input": {"x": 1}},
            ],
            tool_call("c", "f", '{"x": 1}'),
        ),
        (
            tool_call("c", "f", ""),
            [START, {"type": "tool-input-available", **NAMED, "input": {}}],
            tool_call("c", "f", "{}"),
        ),
        (
            tool_call("c", "f", "{"),
            [
                START,
                {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": "{"},
                {"type": "tool-input-error", **NAMED, "input": "{", "errorText": "the arguments are no JSON object"},
            ],
            Block("invalid_tool_call", {"id": "c", "name": "f", "arguments": "{"}),
        ),
        (
            Block("tool_result", {"id": "c", "content": [1]}),
            [{"type": "tool-output-available", "toolCallId": "c", "output": [1]}],
            Block("tool_result", {"id": "c", "content": [1]}),
        ),
        (
            Block("tool_result", {"id": "c", "content": {"a": 1}, "is_error": True}),
            [{"type": "tool-output-error", "toolCallId": "c", "errorText": '{"a":1}'}],
            Block("tool_result", {"id": "c", "content": '{"a":1}', "is_error": True}),
        ),
        (
            Block("reasoning", {"text": "so"}),
            [
                {"type": "reasoning-start", "id": "part-1"},
                {"type": "reasoning-delta", "id": "part-1", "delta": "so"},
                {"type": "reasoning-end", "id": "part-1"},
            ],
            Block("reasoning", {"text": "so"}),
        ),
        (
            Block("image", {"url": "u"}),
            [{"type": "file", "url": "u", "mediaType": "image/png"}],
            Block("image", {"url": "u", "media_type": "image/png"}),
        ),
        (Block("mine", {"a": 1}), [{"type": "data-mine", "data": {"a": 1}}], Block("mine", {"a": 1})),
    ],
)  # fmt: skip
def test_every_block_has_a_place(block: Block, chunks: list[Any], back: Block) -> None:
    assert between(block) == chunks
    assert answer([block], DIALECT).blocks == [back]


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1e999}'])
def test_arguments_that_no_json_can_hold_are_an_input_with_an_error(text: str) -> None:
    call = tool_call("c", "f", text)
    told = {"type": "tool-input-error", **NAMED, "input": text, "errorText": "the arguments are no JSON object"}
    assert between(call) == [START, {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": text}, told]
    assert answer([call], DIALECT).blocks == [Block("invalid_tool_call", call.fields)]


def test_a_call_that_has_its_result_is_not_waited_for() -> None:
    call, result = tool_call("c", "f", "{}"), Block("tool_result", {"id": "c", "content": 1})
    assert answer([call, result], DIALECT).receipt.finish_reason == "stop"


def test_a_failure_is_an_error_and_a_cancel_an_abort() -> None:
    assert events(["a"], DIALECT, fail=FAILURE)[-1] == {"type": "error", "errorText": "RuntimeError"}
    told = events(["a"], DIALECT, fail=FAILURE, status="cancelled")
    # No `text-end`: the text is not whole.
    assert told[-3:] == [{"type": "text-delta", "id": "part-1", "delta": "a"}, {"type": "abort"}, "[DONE]"]


def test_chunks_of_its_own_stand_between_the_rest() -> None:
    data = {"type": "data-x", "data": 1}
    assert between("a", data, Event(json.dumps(data)), Event(" [DONE] "))[3:] == [data, data]
    assert answer([data], DIALECT).blocks == [Block("x", {"data": 1})]
    own = [
        {"type": "start", "messageId": "o"}, {"type": "start-step"}, {"type": "text-delta", "id": "1", "delta": "a"},
        {"type": "finish-step"}, {"type": "finish", "finishReason": "tool-calls"},
    ]  # fmt: skip
    assert events(own, DIALECT) == [*own, "[DONE]"]
    found = answer(own, DIALECT)
    assert (found.text, found.receipt.finish_reason) == ("a", "tool_calls")
    with pytest.raises(UnsupportedItem, match="a second start"):
        events(["a", {"type": "start"}], DIALECT)
    with pytest.raises(SourceFailed, match="cancelled: why"):
        FramedEncoder(DIALECT).item({"type": "abort", "reason": "why"})
    encoder = FramedEncoder(DIALECT)
    encoder.ending.merge(Finish("stop"))
    assert encoder.item({"type": "finish"}) == []


def bare(*chunks: Any) -> Any:
    body = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return read(b"".join([b"data: %b\n\n" % text.encode() for text in body]), dialect="ui")


FINISH = {"type": "finish", "finishReason": "content-filter"}


@pytest.mark.parametrize(
    ("chunks", "verdict", "code", "proof"),
    [
        ([FINISH, "[DONE]"], Verdict.UNVERIFIED, None, "marker+reason"),
        ([{"type": "finish"}, "[DONE]"], Verdict.UNVERIFIED, None, "marker"),
        ([FINISH], Verdict.TRUNCATED, None, None),
        (["[DONE]"], Verdict.FAILED, "unproven_end", None),
        ([FINISH, "[DONE]", {"type": "finish"}], Verdict.FAILED, "unproven_end", None),
        ([{"type": "error", "errorText": "x"}], Verdict.FAILED, "upstream_error", None),
        ([{"type": "error"}, {"type": "abort"}, FINISH, "[DONE]"], Verdict.FAILED, "upstream_error", None),
        ([{"type": "abort"}, "[DONE]"], Verdict.FAILED, "cancelled", None),
        (["{", "[1]", {"a": 1}, FINISH, "[DONE]"], Verdict.UNVERIFIED, None, "marker+reason"),
    ],
)
def test_a_bare_stream_is_judged_by_its_finish_and_its_marker(
    chunks: list[Any], verdict: Verdict, code: str | None, proof: str | None
) -> None:
    found = bare(*chunks)
    assert (found.verdict, found.receipt.proved_by) == (verdict, proof)
    assert (found.receipt.failure.code if found.receipt.failure else None) == code


def test_what_others_write_is_read_too() -> None:
    available = {"type": "tool-input-available", **NAMED, "input": {"x": 2}}
    delta = {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": '{"x": 1}'}
    told = tool_call("c", "f", '{"x":2}')
    assert bare(available, delta, available, FINISH, "[DONE]").blocks == [told, told]
    assert bare({**available, "input": 1}).blocks == [
        Block("invalid_tool_call", {"id": "c", "name": "f", "arguments": "1"})
    ]
    assert bare({"type": "reasoning-end", "id": "1"}).blocks == [Block("reasoning", {"text": ""})]
    file = {"type": "file", "url": "u", "mediaType": "text/csv"}
    assert bare(file).blocks == [Block("file", {"url": "u", "media_type": "text/csv"})]
    assert bare({"type": "data-x", "data": {"type": "t", "a": 1}}).blocks == [Block("x", {"a": 1})]
    assert UiReader().read(None, "") is None
