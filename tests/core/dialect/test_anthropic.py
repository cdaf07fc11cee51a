"""`anthropic`: the events of Messages, to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from streamguard.core.dialect import Anthropic
from streamguard.core.errors import UnsupportedItem
from streamguard.core.framing import FramedEncoder
from streamguard.core.items import Block, Event, Finish, tool_call
from streamguard.core.receipt import Verdict
from tests.core.dialect.test_events import FAILURE, answer, events

DIALECT = Anthropic("m", "msg_1")


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **fields: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def test_text_a_call_and_reasoning_are_blocks() -> None:
    signed = Block("reasoning", {"text": "so", "signature": "s"})
    begun, *told = events(["a", "b", tool_call("c", "f", "{}"), signed, tool_call("d", "g", "")], DIALECT)
    assert begun["message"]["id"] == "msg_1"
    assert begun["message"]["model"] == "m"
    assert told == [
        start(0, type="text", text=""), delta(0, type="text_delta", text="a"), delta(0, type="text_delta", text="b"),
        stop(0),
        start(1, type="tool_use", id="c", name="f", input={}),
        delta(1, type="input_json_delta", partial_json="{}"), stop(1),
        start(2, type="thinking", thinking="", signature=""), delta(2, type="thinking_delta", thinking="so"),
        delta(2, type="signature_delta", signature="s"), stop(2),
        start(3, type="tool_use", id="d", name="g", input={}), stop(3),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
         "usage": {"output_tokens": 0}},
        {"type": "message_stop"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "told"), [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal"), ("x", "x")]
)
def test_reasons_and_usage_are_told_in_its_words(reason: str, told: str) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "more": 3}
    last = events(["a", Finish(reason, usage)], DIALECT)[-2]
    assert last["delta"]["stop_reason"] == told
    assert last["usage"] == {"input_tokens": 1, "output_tokens": 2, "more": 3}


def test_a_failure_is_an_error() -> None:
    told = events(["a"], DIALECT, fail=FAILURE)[-1]
    error = {"type": "api_error", "message": "RuntimeError", "code": "source_error"}
    assert told == {"type": "error", "error": error}


@pytest.mark.parametrize("type", ["image", "tool_result", "mine"])
def test_other_blocks_have_no_place(type: str) -> None:
    with pytest.raises(UnsupportedItem, match=f"'{type}'.*'anthropic'.*room for: tool_call, reasoning"):
        FramedEncoder(DIALECT).item(Block(type))
    with pytest.raises(UnsupportedItem, match="arguments are no JSON object"):
        FramedEncoder(DIALECT).item(tool_call("c", "f", "{"))


OWN: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "theirs", "usage": {"input_tokens": 3}}},
    {"type": "ping"},
    start(0, type="text", text=""),
    delta(0, type="text_delta", text="a"),
    stop(0),
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]


@pytest.mark.parametrize("own", [OWN, [Event(str(one).replace("'", '"')) for one in OWN]], ids=["mappings", "events"])
def test_a_providers_own_events_are_the_whole_stream(own: list[Any]) -> None:
    assert events([*own, Event("[DONE]")], DIALECT) == OWN
    found = answer(own, DIALECT)
    assert (found.verdict, found.text, found.receipt.finish_reason) == (Verdict.COMPLETE, "a", "end_turn")
    assert found.receipt.usage == {"input_tokens": 3, "output_tokens": 2}
    cut = answer(own[:-1], DIALECT)
    assert (cut.verdict, cut.code) == (Verdict.FAILED, "unproven_end")
    assert events(own[:-1], DIALECT)[-1]["type"] == "error"


def test_they_are_not_mixed_with_text() -> None:
    for first, second, what in (("a", OWN[0], "own event"), (OWN[0], "a", "text"), (OWN[0], Block("x"), "a block")):
        encoder = FramedEncoder(DIALECT)
        for item in (first, second):
            push = encoder.texts if isinstance(item, str) else encoder.item
            if item is first:
                push(item)  # type: ignore[operator]
            else:
                with pytest.raises(UnsupportedItem, match=what):
                    push(item)  # type: ignore[operator]
