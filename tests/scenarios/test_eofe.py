"""The last event without its closing blank line."""

from __future__ import annotations

import json

import pytest

from streamguard.core.errors import TruncatedStream
from streamguard.core.items import Finish
from streamguard.core.receipt import Verdict
from streamguard.core.wire import SseDecoder
from tests.naive import client
from tests.scenarios.stacks import Stack, both, cuts, pipeline, read, write

ENDED = [Finish("length", {"completion_tokens": 7})]
BODY = b"".join(write(["some text", *ENDED]))
NATIVE_END = b"\n\n"
assert BODY.endswith(NATIVE_END)


@both()
def test_an_answer_without_its_end_is_no_whole_one(stack: Stack) -> None:
    body = b"".join(stack.write(["some ", "text"]))
    marker = max(body.rfind(b"event: end"), body.rfind(b"data: [DONE]"))
    assert not stack.read([body[:marker]]).complete


@pytest.mark.parametrize("newlines", [0, 1])
def test_a_terminal_without_its_blank_line_is_truncated_by_default(newlines: int) -> None:
    reading = read([BODY.rstrip(b"\n") + b"\n" * newlines])
    assert reading.verdict is Verdict.TRUNCATED
    assert reading.text == "some text"
    assert "unfinished last event" in str(reading.error)


@pytest.mark.parametrize("newlines", [0, 1, 2])
def test_a_terminal_whose_checks_hold_is_accepted_if_asked_to(newlines: int) -> None:
    reading = read([BODY.rstrip(b"\n") + b"\n" * newlines], lenient=True)
    assert reading.verdict is Verdict.COMPLETE
    assert reading.receipt is not None
    assert (reading.receipt.finish_reason, reading.receipt.usage) == ("length", {"completion_tokens": 7})


def test_a_reason_and_usage_are_never_lost_without_a_sign() -> None:
    """Whatever is missing at the end of the terminal: either they are there, or the reader is told."""
    start = BODY.rindex(b"event: end")
    for at in range(start, len(BODY)):
        for lenient in (False, True):
            reading = read([BODY[:at]], lenient=lenient)
            told = reading.error is not None
            assert reading.receipt is not None
            assert told or reading.receipt.usage == {"completion_tokens": 7}, (at, lenient)


def test_half_an_event_is_never_handed_out() -> None:
    pipe = pipeline()
    first = pipe.open() + pipe.push("whole ", 0.0)
    second = pipe.push("cut", 0.0)
    for head, _ in cuts(second)[:-2]:
        for lenient in (False, True):
            reading = read([first + head], lenient=lenient)
            assert reading.text == "whole "
            assert reading.verdict is Verdict.TRUNCATED


def test_a_hop_that_strips_the_last_newline_is_found_and_can_be_allowed() -> None:
    assert read([BODY[:-1]]).verdict is Verdict.TRUNCATED
    assert read([BODY[:-1]], lenient=True).verdict is Verdict.COMPLETE
    damaged = BODY[:-1].replace(b"some text", b"same text")
    assert read([damaged], lenient=True).verdict is Verdict.CORRUPT


def test_a_plain_event_without_its_blank_line_is_not_dispatched() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: x\n") == []
    assert decoder.end() == []
    lenient = SseDecoder(lenient=True)
    lenient.feed(b"data: x\n")
    assert [event.data for event in lenient.end()] == ["x"]


def test_a_plain_stream_says_that_its_last_event_was_dropped() -> None:
    reading = read([b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n'])
    assert isinstance(reading.error, TruncatedStream)
    assert "unfinished last event" in reading.error.detail


@both()
def test_protocol_bytes_never_become_text(stack: Stack) -> None:
    body = b"".join(stack.write(["good"]))
    cut = body[: body.index(b"good") + 4]
    reading = stack.read([cut + b'"\n\nid: 1\nevent: delta\ndata: {"type":"tok'])
    assert "{" not in reading.text


def test_two_data_lines_are_one_text_with_a_newline() -> None:
    assert [event.data for event in SseDecoder().feed(b"data: one\ndata: two\n\n")] == ["one\ntwo"]
    assert client.blocks(b"data: one\ndata: two\n\n") == ["one\ntwo"]


@both()
def test_a_newline_in_a_token_comes_back(stack: Stack) -> None:
    assert stack.read(stack.write(["one\ntwo"])).text == "one\ntwo"


def test_a_cut_in_mid_frame_names_the_last_whole_one() -> None:
    pipe = pipeline()
    body = pipe.open() + pipe.push("whole", 0.0)
    at = pipe.cursor
    reading = read([body + pipe.push("cut", 0.0)[:10]])
    assert isinstance(reading.error, TruncatedStream)
    assert reading.error.cursor == at
    assert json.loads('"whole"') == reading.error.received
