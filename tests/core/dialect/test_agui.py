"""`ag-ui`: the events of a run, to the letter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamguard.core.dialect import AgUi
from streamguard.core.dialect.agui import AgUiReader
from streamguard.core.errors import UnsupportedItem
from streamguard.core.items import Block, Event, Finish, tool_call
from streamguard.core.receipt import Verdict
from tests.core.dialect.test_events import FAILURE, answer, events
from tests.core.wire.streams import read

DIALECT = AgUi("t", "r")
RUN = {"threadId": "t", "runId": "r"}


def between(*items: Any) -> list[Any]:
    told = events([*items], DIALECT)
    assert told[0] == {"type": "RUN_STARTED", **RUN}
    assert told[-1] == {"type": "RUN_FINISHED", **RUN}
    return told[1:-1]


def text(id: str, *pieces: str) -> list[dict[str, Any]]:
    return [
        {"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"},
        *[{"type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": piece} for piece in pieces],
        {"type": "TEXT_MESSAGE_END", "messageId": id},
    ]


def test_text_calls_results_and_reasoning_are_messages() -> None:
    result = Block("tool_result", {"id": "c", "content": {"y": 2}})
    items = ["a", "b", tool_call("c", "f", "{}"), result, Block("reasoning", {"text": "so"}), "c"]
    assert between(*items) == [
        *text("r-1", "a", "b"),
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "f", "parentMessageId": "r-1"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{}"},
        {"type": "TOOL_CALL_END", "toolCallId": "c"},
        {"type": "TOOL_CALL_RESULT", "messageId": "r-2", "toolCallId": "c", "content": '{"y":2}', "role": "tool"},
        {"type": "REASONING_START", "messageId": "r-3"},
        {"type": "REASONING_MESSAGE_START", "messageId": "r-3", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r-3", "delta": "so"},
        {"type": "REASONING_MESSAGE_END", "messageId": "r-3"},
        {"type": "REASONING_END", "messageId": "r-3"},
        *text("r-4", "c"),
    ]
    assert answer(items, DIALECT).blocks[1] == Block("tool_result", {"id": "c", "content": '{"y":2}'})


def test_what_is_empty_has_no_content() -> None:
    told = between(tool_call("c", "f", ""), Block("reasoning", {"text": ""}))
    assert [event["type"] for event in told] == [
        "TOOL_CALL_START", "TOOL_CALL_END",
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_END", "REASONING_END",
    ]  # fmt: skip
    assert "parentMessageId" not in told[0]


def test_other_blocks_and_its_own_states_stand_inside_a_message() -> None:
    state, step = {"type": "STATE_DELTA", "delta": []}, {"type": "STEP_STARTED", "stepName": "s"}
    items = ["a", Block("mine", {"x": 1}), state, Event(json.dumps(state)), "b", step, "c"]
    start, *rest = text("r-1", "a", "b")
    custom = {"type": "CUSTOM", "name": "mine", "value": {"x": 1}}
    assert between(*items) == [start, rest[0], custom, state, state, *rest[1:], step, *text("r-2", "c")]
    assert answer(items, DIALECT).blocks == [Block("mine", {"x": 1})]


def test_a_source_may_begin_and_end_the_run() -> None:
    own = [{"type": "RUN_STARTED", "runId": "o"}, {"type": "RUN_FINISHED", "result": 1}]
    assert events(own, DIALECT) == [own[0], {"type": "RUN_FINISHED", "threadId": "t", "runId": "o", "result": 1}]
    with pytest.raises(UnsupportedItem, match="a second RUN_STARTED"):
        events(["a", own[0]], DIALECT)


def test_usage_is_told_in_its_words() -> None:
    told = events(["a", Finish("stop", {"prompt_tokens": 1, "output_tokens": 2, "total_tokens": "x"})], DIALECT)[-1]
    assert told["usage"] == [{"inputTokens": 1, "outputTokens": 2}]
    assert bare(told).receipt.usage == {"input_tokens": 1, "output_tokens": 2}


def test_a_failure_is_an_error() -> None:
    assert events(["a"], DIALECT, fail=FAILURE)[-1] == {
        "type": "RUN_ERROR", "message": "RuntimeError", "code": "source_error",
    }  # fmt: skip


def bare(*found: Any) -> Any:
    body = [event if isinstance(event, str) else json.dumps(event) for event in found]
    return read(b"".join([b"data: %b\n\n" % text.encode() for text in body]), dialect="ag-ui")


FINISHED: dict[str, Any] = {"type": "RUN_FINISHED"}


@pytest.mark.parametrize(
    ("found", "verdict", "code"),
    [
        ([FINISHED], Verdict.UNVERIFIED, None),
        ([{**FINISHED, "usage": [{}, {}]}, ""], Verdict.UNVERIFIED, None),
        (["{", "[1]", {"type": "RUN_STARTED"}, FINISHED], Verdict.UNVERIFIED, None),
        ([{"type": "RUN_STARTED"}], Verdict.TRUNCATED, None),
        ([FINISHED, {"type": "RAW"}], Verdict.FAILED, "unproven_end"),
        ([{"type": "RUN_ERROR", "code": "c", "message": "m"}, {"type": "RUN_ERROR"}], Verdict.FAILED, "c"),
        ([{"type": "RUN_ERROR"}, FINISHED], Verdict.FAILED, "upstream_error"),
    ],
)
def test_a_bare_run_is_judged_by_its_end(found: list[Any], verdict: Verdict, code: str | None) -> None:
    told = bare(*found)
    assert told.verdict is verdict
    assert (told.receipt.failure.code if told.receipt.failure else None) == code


def call(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"TOOL_CALL_{kind}", **fields}


def test_calls_whose_pieces_alternate_are_both_whole() -> None:
    found = bare(
        call("START", toolCallId="a", toolCallName="f"), call("START", toolCallId="b", toolCallName="g"),
        call("ARGS", toolCallId="a", delta='{"x": '), call("ARGS", toolCallId="b", delta="{}"),
        call("ARGS", toolCallId="a", delta="1}"), call("END", toolCallId="b"), call("END", toolCallId="a"),
        call("ARGS", toolCallId="lost", delta="{}"), call("END", toolCallId="lost"), call("OTHER"),
    )  # fmt: skip
    assert found.blocks == [tool_call("b", "g", "{}"), tool_call("a", "f", '{"x": 1}')]


def test_chunks_of_calls_are_whole_when_their_arguments_are() -> None:
    found = bare(
        call("CHUNK", toolCallId="a", toolCallName="f", delta='{"x": '),
        call("CHUNK", delta="{}"), call("CHUNK", delta="}"),
        call("CHUNK", toolCallId="b", toolCallName="g", delta='{"y": "}'), {"type": "TEXT_MESSAGE_CHUNK", "delta": "t"},
    )  # fmt: skip
    assert found.blocks == [tool_call("a", "f", '{"x": {}}')]
    assert found.text == "t"


def test_a_custom_value_of_any_kind_is_a_block() -> None:
    assert bare({"type": "CUSTOM", "name": "n", "value": 1}).blocks == [Block("n", {"value": 1})]
    assert bare({"type": "CUSTOM", "name": "n", "value": {"type": "t"}}).blocks == [Block("n", {})]
    assert AgUiReader().read(None, "") is None
