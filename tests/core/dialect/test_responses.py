"""`openai-responses`: the events of Responses, to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from streamguard.core.dialect import OpenAIResponses
from streamguard.core.errors import UnsupportedItem
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Block, Finish, tool_call
from streamguard.core.receipt import Verdict
from tests.core.dialect.test_events import FAILURE, answer, events

DIALECT = OpenAIResponses("m", "resp_1", 1)
BLOCKS = [
    tool_call("c", "f", "{}"), tool_call("d", "g", ""), Block("reasoning", {"text": "so"}),
    Block("refusal", {"text": "no"}), Block("image", {"data": "AA=="}),
]  # fmt: skip


def test_every_event_has_its_number_and_the_last_tells_all() -> None:
    told = events(["a", "b", *BLOCKS, "c"], DIALECT)
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    assert [one["type"] for one in told[:8]] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.delta", "response.output_text.done",
        "response.content_part.done",
    ]  # fmt: skip
    assert told[6]["text"] == "ab"
    output = told[-1]["response"]["output"]
    assert [one["item"] for one in told if one["type"] == "response.output_item.done"] == output
    assert [(item["type"], item["id"]) for item in output] == [
        ("message", "msg_1_0"), ("function_call", "fc_1_1"), ("function_call", "fc_1_2"), ("reasoning", "rs_1_3"),
        ("message", "msg_1_4"), ("image_generation_call", "ig_1_5"), ("message", "msg_1_6"),
    ]  # fmt: skip
    assert output[1] == {
        "id": "fc_1_1", "type": "function_call", "status": "completed", "call_id": "c", "name": "f", "arguments": "{}",
    }  # fmt: skip
    assert output[5]["result"] == "AA=="
    assert told[-1]["type"] == "response.completed"


def test_blocks_come_back() -> None:
    found = answer(["a", *BLOCKS], DIALECT)
    assert found.blocks == [BLOCKS[0], tool_call("d", "g", "{}"), *BLOCKS[2:]]


@pytest.mark.parametrize("kind", ["length", "content_filter"])
def test_a_limit_or_a_filter_makes_it_incomplete(kind: str) -> None:
    told = events(["a", Finish(kind)], DIALECT)[-1]
    reason = {"length": "max_output_tokens"}.get(kind, kind)
    assert (told["type"], told["response"]["status"]) == ("response.incomplete", "incomplete")
    assert told["response"]["incomplete_details"] == {"reason": reason}
    assert answer(["a", Finish(kind)], DIALECT).verdict is Verdict.COMPLETE


@pytest.mark.parametrize(
    ("usage", "told"),
    [
        (None, None),
        ({"prompt_tokens": 1, "completion_tokens": 2}, (1, 2, 3)),
        ({"input_tokens": 1, "total_tokens": 9}, (1, 0, 9)),
        ({"prompt_tokens": None, "completion_tokens": 3, "total_tokens": None}, (0, 3, 3)),
        ({"prompt_tokens": "5", "completion_tokens": 3}, ("5", 3, 3)),
        ({"input_tokens": 1.5, "output_tokens_details": None}, (1.5, 0, 1.5)),
    ],
)
def test_usage_is_told_in_its_words(usage: dict[str, Any] | None, told: tuple[Any, ...] | None) -> None:
    found = events(["a", Finish("stop", usage)], DIALECT)[-1]["response"]["usage"]
    if told is None:
        assert found is None
    else:
        assert (found["input_tokens"], found["output_tokens"], found["total_tokens"]) == told
        assert found["output_tokens_details"] == {"reasoning_tokens": 0}


def test_a_failure_is_told_twice_since_sdks_raise_at_the_second() -> None:
    failed, error = events(["a"], DIALECT, fail=FAILURE)[-2:]
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "source_error", "message": "RuntimeError"}
    assert error["type"] == "error"
    assert error["error"] == {"code": "source_error", "message": "RuntimeError", "param": None, "type": "failed"}


def test_what_has_no_place_is_refused() -> None:
    for block in (Block("tool_result"), Block("image", {"url": "u"})):
        with pytest.raises(UnsupportedItem):
            FramedEncoder(DIALECT).item(block)


def test_a_providers_own_events_are_the_whole_stream() -> None:
    own: list[dict[str, Any]] = [
        {"type": "response.created", "sequence_number": 0, "response": {"id": "theirs"}},
        {"type": "response.output_text.delta", "sequence_number": 1, "delta": "a"},
        {"type": "response.completed", "sequence_number": 2, "response": {"id": "theirs", "status": "completed"}},
    ]
    assert events(own, DIALECT) == own
    assert answer(own, DIALECT).text == "a"
    told = events(own[:2], DIALECT)
    assert [one["type"] for one in told[2:]] == ["response.failed", "error"]
    assert answer(own[:2], DIALECT).code == "unproven_end"


def test_an_id_of_another_form_names_its_items_too() -> None:
    told = events(["a"], OpenAIResponses("m", "x", 1))
    assert told[-1]["response"]["output"][0]["id"] == "msg_x_0"


def test_the_time_is_now_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1234.9)
    assert OpenAIResponses().encoder().settings()["created"] == 1234
