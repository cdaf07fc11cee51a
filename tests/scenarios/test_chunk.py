"""Chunk boundaries: events that come cut, and events that come joined."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.items import Block
from streamguard.core.wire import Binary, Ndjson, Sse, SseDecoder, Wire
from tests.scenarios.stacks import Stack, both, cuts, read, rechunked, write

TOKENS = [f"tok{n} " for n in range(1000)]


@both()
def test_an_event_is_the_same_wherever_it_is_cut(stack: Stack) -> None:
    body = b"".join(stack.write(["naïve ☃ text"]))
    for pieces in cuts(body):
        assert stack.read(pieces).text == "naïve ☃ text"


@pytest.mark.parametrize("wire", [Sse(), Ndjson(), Binary()], ids=lambda wire: wire.name)
@given(sizes=st.lists(st.integers(1, 4096), max_size=60))
def test_a_hop_that_cuts_anew_changes_nothing(wire: Wire, sizes: list[int]) -> None:
    reading = read(rechunked(b"".join(write(TOKENS, wire=wire)), sizes), wire=wire)
    assert reading.text == "".join(TOKENS)
    assert reading.complete
    assert reading.receipt is not None
    assert reading.receipt.frames == len(TOKENS) + 1


def test_an_event_cut_before_its_inner_newline_is_one_event() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"event: delta") == []
    assert [event.data for event in decoder.feed(b"\ndata: x\n\n")] == ["x"]


@both(naive_fails=False)
def test_payloads_that_come_in_one_read_are_parsed_one_by_one(stack: Stack) -> None:
    """The naive reader passes: it takes lines one by one. Kept for readers that parse a whole read as one JSON text."""
    chunks = stack.write(["a", "b", "c"])
    assert stack.read([b"".join(chunks)]).parts == ["a", "b", "c"]


def test_a_block_after_text_in_one_read_is_parsed_by_itself() -> None:
    control = Block("tool_call", {"id": "1"})
    assert read([b"".join(write(["a", "b", "c", control]))]).parts == ["a", "b", "c", control]


def test_a_payload_over_two_data_lines_is_joined_and_parsed_once() -> None:
    (event,) = SseDecoder().feed(b'data: {"a":\ndata: 1}\n\n')
    assert json.loads(event.data) == {"a": 1}
    reading = read([b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"x"}}]}\n\n'])
    assert reading.text == "x"
