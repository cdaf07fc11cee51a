"""What an ended stream left open: handed out by its end, whole or as cut off, and never twice."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from streamguard.core.dialect import Raw
from streamguard.core.items import Block, Event, tool_call
from streamguard.core.receipt import Verdict
from streamguard.core.wire import Sse
from tests.core.wire.streams import read, written

ARGUMENTS = '{"eur":111}'
CALL = tool_call("c", "pay", ARGUMENTS)


def invalid(arguments: str, id: str = "c", name: str = "pay") -> Block:
    return Block("invalid_tool_call", {"id": id, "name": name, "arguments": arguments})


def blocks(*payloads: Any, dialect: str = "raw") -> list[Block]:
    """What a reader gets of these events, guarded or not."""
    data = [one if isinstance(one, str) else json.dumps(one) for one in payloads]
    plain = read(b"".join(b"data: %b\n\n" % one.encode() for one in data), dialect=dialect)
    assert plain.verdict is Verdict.UNVERIFIED
    if dialect == "raw":
        guarded = read(written([Event(one) for one in data], Raw(), Sse()), dialect="raw")
        assert (guarded.verdict, guarded.blocks) == (Verdict.COMPLETE, plain.blocks)
    return plain.blocks


def chunk(reason: str | None = None, *calls: dict[str, Any], **delta: Any) -> dict[str, Any]:
    inside = delta | ({"tool_calls": [*calls]} if calls else {})
    return {"choices": [{"index": 0, "delta": inside, "finish_reason": reason}]}


def piece(arguments: str, id: str | None = "c", name: str | None = "pay") -> dict[str, Any]:
    return {"index": 0, "id": id, "function": {"name": name, "arguments": arguments}}


class TestChat:
    @pytest.mark.parametrize(
        ("late", "found"),
        [
            ([piece(ARGUMENTS)], [CALL]),
            ([piece('{"eur":'), piece("111}", None, None)], [CALL]),
            ([piece('{"eur":')], [invalid('{"eur":')]),
            ([piece("{}", None, None)], [invalid("{}", "", "")]),  # of nobody knows which
            ([piece("", None, None)], []),
        ],
    )
    def test_a_call_behind_its_reason(self, late: list[dict[str, Any]], found: list[Block]) -> None:
        assert blocks(chunk(content="a"), chunk("stop"), *[chunk(None, one) for one in late], "[DONE]") == found

    def test_a_limit_makes_no_call_of_what_has_no_arguments(self) -> None:
        assert blocks(chunk("length"), chunk(None, piece("")), "[DONE]") == [invalid("")]

    def test_one_that_is_told_again_is_not_handed_out_again_nor_another_under_its_id(self) -> None:
        call = chunk("tool_calls", piece(ARGUMENTS))
        assert blocks(call, chunk(None, piece(ARGUMENTS)), "[DONE]") == [CALL]
        assert blocks(call, chunk(None, piece("{}")), "[DONE]") == [CALL, invalid("{}")]
        assert blocks(call, chunk("tool_calls"), chunk(None, piece(ARGUMENTS)), "[DONE]") == [CALL]

    def test_a_choice_without_a_reason_and_reasoning_and_refusals_behind_one(self) -> None:
        other = {"choices": [{"index": 1, "delta": {"tool_calls": [piece("")]}}]}
        late = chunk(reasoning="so", refusal="no")
        assert blocks(other, chunk("stop"), late, "[DONE]") == [
            Block("invalid_tool_call", {"id": "c", "name": "pay", "arguments": "", "choice": 1}),
            Block("reasoning", {"text": "so"}),
            Block("refusal", {"text": "no"}),
        ]


def start(id: str = "c", kind: str = "tool_use", **fields: Any) -> dict[str, Any]:
    block = {"type": kind, "id": id, "name": "pay", "input": {}, **fields}
    return {"type": "content_block_start", "index": 0, "content_block": block}


def input_delta(text: str) -> dict[str, Any]:
    delta = {"type": "input_json_delta", "partial_json": text}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


class TestAnthropic:
    def test_input_that_json_has_no_form_for_is_no_call_and_no_error(self) -> None:
        end = [{"type": "content_block_stop", "index": 0}]
        assert blocks(start(input={"eur": math.nan}), *end, *self.END) == [invalid("")]
        assert blocks(start(input={"eur": math.inf}), *self.END) == [invalid("")]

    END = ({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}, {"type": "message_stop"})

    @pytest.mark.parametrize(
        ("events", "found"),
        [
            ([start(), input_delta('{"eur":'), input_delta("111}")], [CALL]),
            ([start(), input_delta('{"eur":')], [invalid('{"eur":')]),
            ([start()], [invalid("")]),
            ([start(kind="thinking", thinking="so")], [Block("reasoning", {"text": "so"})]),
            ([start(), input_delta(ARGUMENTS), start("d"), input_delta("{}")], [CALL, tool_call("d", "pay", "{}")]),
            ([start(), input_delta("{}"), start(), input_delta(ARGUMENTS)], [invalid("{}"), CALL]),
        ],
    )
    def test_blocks_that_are_never_stopped(self, events: list[Any], found: list[Block]) -> None:
        assert blocks(*events, *self.END) == found


ITEM = {"type": "function_call", "id": "i", "call_id": "c", "name": "pay", "arguments": ARGUMENTS}
ADDED = {"type": "response.output_item.added", "output_index": 0, "item": {**ITEM, "arguments": ""}}
DONE = {"type": "response.output_item.done", "output_index": 0, "item": ITEM}


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "response.function_call_arguments.delta", "delta": text, **fields}


def completed(*output: Any, kind: str = "completed") -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": {"status": kind, "output": [*output]}}


class TestResponses:
    @pytest.mark.parametrize(
        ("events", "found"),
        [
            pytest.param([ADDED, said(ARGUMENTS), completed(ITEM)], [CALL], id="repeated-at-the-end"),
            pytest.param([completed({"type": "message"}, ITEM)], [CALL], id="told-at-the-end-only"),
            pytest.param([ADDED, said('{"eur":'), said("111}", item_id="i"), completed()], [CALL], id="not-repeated"),
            pytest.param([ADDED, said('{"eur":'), completed()], [invalid('{"eur":')], id="cut"),
            pytest.param([ADDED, completed()], [invalid("")], id="without-arguments"),
            pytest.param([ADDED, DONE, completed(ITEM)], [CALL], id="as-it-should-be"),
            pytest.param(
                [ADDED, DONE, completed({**ITEM, "id": "j", "call_id": "d", "arguments": "{ }"})],
                [CALL],
                id="other-ids",
            ),
            pytest.param(
                [DONE, completed({**ITEM, "id": "j", "call_id": "d"}, {**ITEM, "id": "k", "arguments": "{}"})],
                [CALL],
                id="one-by-its-words-and-one-by-its-id",
            ),
            pytest.param(
                [DONE, completed(ITEM, {**ITEM, "id": "j", "call_id": "d", "arguments": "{}"})],
                [CALL, tool_call("d", "pay", "{}")],
                id="one-of-two",
            ),
            pytest.param(
                [{**ADDED, "item": {**ITEM, "id": "other", "arguments": ""}}, DONE, completed(ITEM)],
                [CALL],
                id="begun-under-another-id",
            ),
            pytest.param(
                [completed({**ITEM, "arguments": "", "status": "incomplete"}, kind="incomplete")], [invalid("")],
                id="cut-by-a-limit",
            ),
        ],
    )  # fmt: skip
    def test_items_that_have_no_end_of_their_own(self, events: list[Any], found: list[Block]) -> None:
        assert blocks(*events) == found


class TestUi:
    def test_input_that_json_has_no_form_for_is_no_call_and_no_error(self) -> None:
        told = {"type": "tool-input-available", "toolCallId": "c", "toolName": "pay", "input": {"eur": math.nan}}
        assert blocks(told, *self.END, dialect="ui") == [invalid("")]

    END = ({"type": "finish"}, "[DONE]")

    def test_calls_and_reasoning_that_nothing_ends(self) -> None:
        begun = [{"type": "tool-input-start", "toolCallId": id, "toolName": "pay"} for id in "cde"]
        parts = [("c", ARGUMENTS), ("d", '{"eur":'), ("f", "")]
        deltas = [{"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": text} for id, text in parts]
        thought = {"type": "reasoning-delta", "id": "r", "delta": "so"}
        assert blocks(*begun, *deltas, thought, *self.END, dialect="ui") == [
            Block("reasoning", {"text": "so"}), CALL, invalid('{"eur":', "d"), invalid("", "e"), invalid("", "f", ""),
        ]  # fmt: skip


def run_chunk(delta: str | None = None, id: str | None = "c", name: str | None = "pay") -> dict[str, Any]:
    fields = {"toolCallId": id, "toolCallName": name, "delta": delta}
    return {"type": "TOOL_CALL_CHUNK", **{key: value for key, value in fields.items() if value is not None}}


class TestAgUi:
    @pytest.mark.parametrize(
        ("events", "found"),
        [
            ([run_chunk()], [tool_call("c", "pay", "{}")]),
            ([run_chunk('{"eur":')], [invalid('{"eur":')]),
            ([run_chunk("x}"), run_chunk("{}")], [invalid("x}{}")]),
            ([run_chunk(ARGUMENTS), run_chunk(""), run_chunk(" ")], [CALL]),
            ([run_chunk(ARGUMENTS), run_chunk("{}")], [CALL, invalid("{}")]),
            ([run_chunk('{"a":"\\'), run_chunk('"}'), run_chunk('"}')], [tool_call("c", "pay", '{"a":"\\"}"}')]),
            ([run_chunk('{"a":"\\\\'), run_chunk('"}')], [tool_call("c", "pay", '{"a":"\\\\"}')]),
            ([{"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "pay"}], [invalid("")]),
            (
                [{"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "pay"}] * 2
                + [{"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": ARGUMENTS}],
                [invalid("{}"), CALL],
            ),
            (
                [{"type": "REASONING_MESSAGE_CONTENT", "messageId": "m", "delta": "so"}],
                [Block("reasoning", {"text": "so"})],
            ),
        ],
    )
    def test_calls_and_reasoning_that_nothing_ends(self, events: list[Any], found: list[Block]) -> None:
        assert blocks(*events, {"type": "RUN_FINISHED"}, dialect="ag-ui") == found

    def test_the_pieces_of_a_call_are_parsed_once_however_many_braces_they_end_in(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from streamguard.core.dialect import agui

        parsed, once = [], agui.call_read
        monkeypatch.setattr(agui, "call_read", lambda *args, **more: parsed.append(1) or once(*args, **more))
        pieces = [run_chunk('{"a":{"b":"'), *[run_chunk("}")] * 50, run_chunk('"}'), run_chunk("}")]
        assert [one.type for one in blocks(*pieces, {"type": "RUN_FINISHED"}, dialect="ag-ui")] == ["tool_call"]
        assert len(parsed) == 1


def test_of_a_stream_that_failed_nothing_is_handed_out() -> None:
    body = b"data: %b\n\n" % json.dumps(chunk(None, piece(ARGUMENTS))).encode()
    assert read(body + b'data: {"error":"x"}\n\n', dialect="raw").blocks == []
    assert read(body, dialect="raw").blocks == []
