"""The tail of the text: lost, held back, or out of order at the end of a stream."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.errors import StreamFinished
from streamguard.core.flush import EveryTokens, HoldBack, Within
from streamguard.core.items import Block, Finish
from streamguard.core.receipt import Verdict
from tests.naive.server import sliced
from tests.scenarios.stacks import Naive, Stack, both, pipeline, read, write

TOOL = Block("tool_call", {"id": "1", "name": "look", "arguments": "{}"})


@both()
def test_text_that_may_begin_a_stop_string_arrives_when_the_source_ends(stack: Stack) -> None:
    reading = stack.read(stack.write(["ple", "as"], hold="ask"))
    assert reading.text == "pleas"


@both()
def test_a_lone_angle_bracket_at_the_end_is_text(stack: Stack) -> None:
    reading = stack.read(stack.write(["a ", "<"], hold="<think>"))
    assert reading.text == "a <"


@given(st.text("<think>ab", max_size=24), st.lists(st.integers(0, 24), max_size=6))
def test_no_cut_of_a_text_loses_a_held_character(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(text)]
    tokens = [text[start:stop] for start, stop in pairwise(edges)]
    assert read(write(tokens, HoldBack(["<think>", "</think>"], flush=EveryTokens(3)))).text == text


@both()
def test_steps_without_text_cost_no_character(stack: Stack) -> None:
    """A detokeniser answers nothing for two steps and then catches up; a counter of steps would slice text away."""
    steps = ["", "", "日本語", " text"]
    tokens = sliced(steps) if isinstance(stack, Naive) else steps
    assert stack.read(stack.write(tokens)).text == "".join(steps)


@both()
def test_a_batch_that_was_not_sent_is_noticed(stack: Stack) -> None:
    """Three batches of three tokens; the send of the second one timed out and the code around it went on."""
    chunks = stack.write([f"t{n} " for n in range(9)], batch=3)
    lost = next(index for index, chunk in enumerate(chunks) if b"t3" in chunk)
    assert not stack.read(chunks[:lost] + chunks[lost + 1 :]).complete


def test_a_batch_that_was_not_sent_is_a_gap_at_the_frame_after_it() -> None:
    chunks = write([f"t{n} " for n in range(9)], EveryTokens(3, first="policy"))
    lost = next(index for index, chunk in enumerate(chunks) if b"t3" in chunk)
    reading = read(chunks[:lost] + chunks[lost + 1 :])
    assert reading.verdict is Verdict.GAP
    assert reading.text == "t0 t1 t2 "


@both()
def test_a_reason_without_text_is_not_dropped_with_its_empty_text(stack: Stack) -> None:
    reading = stack.read(stack.write(["text", Finish("length", {"completion_tokens": 1})]))
    assert reading.receipt is not None
    assert (reading.receipt.finish_reason, reading.receipt.usage) == ("length", {"completion_tokens": 1})


def test_an_empty_last_text_and_its_reason_make_one_terminal() -> None:
    body = b"".join(write(["text", "", Finish("stop", {"completion_tokens": 1})]))
    assert body.count(b"event: end\n") == 1


@both()
def test_a_tool_call_does_not_overtake_the_text_before_it(stack: Stack) -> None:
    parts = stack.read(stack.write(["a", TOOL, "b"], batch=2)).parts
    assert ["block" if isinstance(part, Block) else part for part in parts] == ["a", "block", "b"]


def test_a_time_window_is_emptied_before_a_block_and_at_the_end() -> None:
    pipe = pipeline(Within(0.05, first="policy"))
    early = pipe.open() + pipe.push("a", 0.00) + pipe.push("b", 0.01)
    block = pipe.push(TOOL, 0.02)
    late = pipe.push("c", 0.03)
    assert late == b""  # held, its window is open
    reading = read([early, block, late, pipe.finish(0.04)])
    assert reading.parts == ["ab", TOOL, "c"]
    assert reading.complete


def test_a_time_window_is_emptied_at_its_deadline() -> None:
    pipe = pipeline(Within(0.05, first="policy"))
    opening = pipe.open()
    assert pipe.push("a", 1.0) == b""
    assert pipe.deadline() == pytest.approx(1.05)
    assert pipe.tick(1.04) == b""
    assert read([opening, pipe.tick(1.05)]).text == "a"
    assert pipe.deadline() is None


def test_a_heartbeat_stands_between_frames_and_never_after_the_terminal() -> None:
    pipe = pipeline(EveryTokens(4, first="policy"))
    body = [pipe.open(), pipe.push("a", 0.0), pipe.heartbeat(), pipe.push("b", 0.0), pipe.finish(0.0)]
    assert read(body).text == "ab"
    with pytest.raises(StreamFinished):
        pipe.heartbeat()
