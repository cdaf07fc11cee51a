"""The terminal signal: missing, doubled or contradictory, and a broken stream that looks like a whole one."""

from __future__ import annotations

import pytest

from streamguard.core.dialect import OpenAI, Raw
from streamguard.core.errors import FailedStream, Failure, StreamFinished, TruncatedStream
from streamguard.core.flush import EveryTokens
from streamguard.core.items import Block, tool_call
from streamguard.core.receipt import Verdict
from tests.scenarios.stacks import Stack, both, chat_chunk, cuts, pipeline, read, write

RESET = ConnectionResetError("the upstream went away")


@both()
def test_a_source_whose_upstream_was_reset_is_no_whole_answer(stack: Stack) -> None:
    assert not stack.read(stack.write(["a", "b", "c", RESET])).complete


@pytest.mark.parametrize("dialect", [None, OpenAI(), Raw()], ids=["native", "openai", "raw"])
def test_a_reset_upstream_gives_no_stop_and_no_done_marker(dialect: OpenAI | None) -> None:
    items = ["a", "b", "c"] if dialect is None else [chat_chunk("a"), chat_chunk("b")]
    chunks = write([*items, RESET], dialect=dialect)
    assert b"[DONE]" not in b"".join(chunks)
    assert b'"stop"' not in b"".join(chunks)
    assert read(chunks).verdict is Verdict.FAILED


def test_half_of_a_tool_call_from_a_provider_is_a_truncated_stream() -> None:
    piece = chat_chunk(tool_calls=[{"index": 0, "id": "1", "function": {"name": "f", "arguments": '{"a":'}}])
    pipe = pipeline(dialect=OpenAI())
    reading = read([pipe.open(), pipe.push(piece, 0.0)])
    assert reading.verdict is Verdict.TRUNCATED
    assert reading.receipt is not None
    assert reading.receipt.finish_reason is None


def test_a_tool_call_is_handed_out_whole_or_not_at_all() -> None:
    pipe = pipeline()
    opening = pipe.open()
    block = pipe.push(tool_call("1", "f", '{"a":1}'), 0.0)
    for head, _ in cuts(block)[:-2]:
        reading = read([opening, head])
        assert not reading.parts
        assert reading.verdict is Verdict.TRUNCATED


@both()
def test_an_accepted_request_without_data_is_no_empty_answer(stack: Stack) -> None:
    assert not stack.read([]).complete


def test_an_empty_body_says_that_nothing_was_verified() -> None:
    reading = read([pipeline().open()])
    assert isinstance(reading.error, TruncatedStream)
    assert reading.error.cursor is not None  # the place to resume at: before the first frame
    assert reading.error.cursor.seq == 0


@both()
def test_a_clean_end_of_body_without_a_terminal_is_an_error(stack: Stack) -> None:
    chunks = [chunk for chunk in stack.write(["a", "b", "c"]) if b"end" not in chunk and b"DONE" not in chunk]
    assert not stack.read(chunks).complete


def test_a_truncated_stream_carries_what_was_received_and_where_it_stopped() -> None:
    pipe = pipeline()
    reading = read([pipe.open(), pipe.push("two ", 0.0), pipe.push("deltas", 0.0)])
    assert isinstance(reading.error, TruncatedStream)
    assert reading.error.received == "two deltas"
    assert reading.error.cursor is not None
    assert reading.error.cursor.seq == 2


def test_the_terminal_needs_no_time_to_pass() -> None:
    """All that is held and the terminal leave in one call, at the time of the last token."""
    pipe = pipeline(EveryTokens(100))
    head = pipe.open() + pipe.push("first", 0.0) + pipe.push(" last", 0.0)
    reading = read([head, pipe.finish(0.0)])
    assert reading.text == "first last"
    assert reading.complete
    assert pipe.deadline() is None


@pytest.mark.parametrize("tokens", [[], ["a", "b"]], ids=["before the first token", "after two"])
def test_a_failure_ends_the_stream_in_the_same_call(tokens: list[str]) -> None:
    pipe = pipeline(EveryTokens(100, first="policy"))
    head = pipe.open() + b"".join(pipe.push(token, 0.0) for token in tokens)
    reading = read([head, pipe.fail(Failure("boom", "it broke"), 0.0)])
    assert reading.text == "".join(tokens)
    assert isinstance(reading.error, FailedStream)
    assert reading.error.code == "boom"


@both()
def test_a_failed_stream_has_exactly_one_end(stack: Stack) -> None:
    body = b"".join(stack.write(["a", "b", ValueError("boom")]))
    assert body.count(b"event: end\n") == 1


def test_nothing_can_be_written_after_the_terminal() -> None:
    pipe = pipeline()
    pipe.open()
    pipe.push("a", 0.0)
    pipe.fail(Failure("boom", "it broke"), 0.0)
    for more in (lambda: pipe.push("b", 0.0), lambda: pipe.finish(0.0), pipe.heartbeat):
        with pytest.raises(StreamFinished):
            more()


@pytest.mark.parametrize("second", ["the same stream again", "another stream"])
def test_a_second_start_is_refused(second: str) -> None:
    """A proxy whose first upstream failed went on with a second one and sent both beginnings."""
    first = pipeline()
    begun = [first.open(), first.push("half an ", 0.0)]
    again = write(["answer"]) if second == "the same stream again" else list(begun)
    reading = read([*begun, *again])
    assert reading.verdict is Verdict.CORRUPT
    assert reading.text == "half an "


@both()
def test_what_follows_the_terminal_is_not_part_of_the_answer(stack: Stack) -> None:
    """Two answers on one connection: a reader that stops at the first marker never learns of the second."""
    chunks = stack.write(["whole"])
    reading = stack.read([*chunks, *stack.write(["more"])])
    assert reading.text == "whole"
    assert not reading.complete


def test_a_block_is_atomic() -> None:
    image = Block("image", {"url": "data:image/png;base64,AAAA"})
    assert read(write(["a", image, "b"], EveryTokens(9))).parts == ["a", image, "b"]
