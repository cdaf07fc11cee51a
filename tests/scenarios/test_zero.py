"""Answers without text, and usage that comes after the reason."""

from __future__ import annotations

import pytest

from streamguard.core.dialect import Dialect, Native, OpenAI
from streamguard.core.items import Finish
from streamguard.core.receipt import Verdict
from streamguard.core.wire import SseDecoder
from tests.scenarios.stacks import Stack, both, pipeline, read, write

DIALECTS = pytest.mark.parametrize("dialect", [Native(), OpenAI()], ids=lambda dialect: dialect.name)


@DIALECTS
def test_a_source_that_yields_nothing_is_complete_and_empty(dialect: Dialect) -> None:
    reading = read(write([], dialect=dialect), dialect=dialect)
    assert reading.verdict is Verdict.COMPLETE
    assert reading.text == ""
    assert reading.receipt is not None
    assert reading.receipt.finish_reason == "stop"


@both()
def test_an_empty_answer_and_a_cut_one_are_told_apart(stack: Stack) -> None:
    empty = stack.write([])
    assert stack.read(empty).complete
    assert not stack.read([]).complete


def test_an_empty_answer_says_that_it_holds_nothing() -> None:
    end = SseDecoder().feed(b"".join(write([])))[-1]
    assert '"items":0' in end.data
    pipe = pipeline()
    pipe.open()
    pipe.finish(0.0)
    assert pipe.items == 0


def test_empty_tokens_make_no_frames() -> None:
    reading = read(write(["", b"", ""]))
    assert reading.parts == []
    assert reading.complete


@DIALECTS
@pytest.mark.parametrize(
    "finishes",
    [
        pytest.param([Finish("stop"), Finish(usage={"completion_tokens": 2})], id="reason, usage"),
        pytest.param([Finish(usage={"completion_tokens": 2}), Finish("stop")], id="usage, reason"),
        pytest.param([Finish("stop", {"completion_tokens": 2})], id="both at once"),
    ],
)
def test_usage_is_in_the_terminal_whenever_it_comes(dialect: Dialect, finishes: list[Finish]) -> None:
    reading = read(write(["text", *finishes], dialect=dialect), dialect=dialect)
    assert reading.receipt is not None
    assert (reading.receipt.finish_reason, reading.receipt.usage) == ("stop", {"completion_tokens": 2})


def test_a_providers_usage_after_its_reason_is_in_the_terminal() -> None:
    reason = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"completion_tokens": 2}}
    reading = read(write([reason, usage], dialect=OpenAI()), dialect=OpenAI())
    assert reading.receipt is not None
    assert reading.receipt.usage == {"completion_tokens": 2}
