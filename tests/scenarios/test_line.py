"""Line ends, spaces, and the byte-order mark."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.dialect import OpenAI
from streamguard.core.items import Finish
from streamguard.core.wire import SseDecoder, SseEvent
from tests.naive import client
from tests.scenarios.stacks import Stack, both, chat_chunk, cuts, read, write

ODD_ENDS = "\u2028\u2029\x85"


def events(chunks: list[bytes]) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def data_of(chunks: list[bytes]) -> list[str]:
    return [event.data for event in events(chunks)]


def test_raw_line_separators_inside_data_are_text() -> None:
    """400 events with 14 raw U+2028 in them, as a provider sends them."""
    texts = [f"event {n}" + ("\u2028" if n % 28 == 0 and n < 392 else "") for n in range(400)]
    assert sum("\u2028" in text for text in texts) == 14
    chunks = [f"data: {json.dumps(chat_chunk(text), ensure_ascii=False)}\n\n".encode() for text in texts]
    end = [b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n', b"data: [DONE]\n\n"]
    reading = read([*chunks, *end])
    assert [part if isinstance(part, str) else "" for part in reading.parts[:400]] == texts
    assert reading.complete
    assert "".join(client.events(chunks)) != "".join(data_of(chunks))  # `splitlines` cuts them


def test_a_terminal_with_a_line_separator_in_it_is_seen() -> None:
    reason = "stopped\u2028here"
    reading = read(write(["text", Finish(reason)]))
    assert reading.complete
    assert reading.receipt is not None
    assert reading.receipt.finish_reason == reason


@given(st.lists(st.text(alphabet="ab" + ODD_ENDS, min_size=1), max_size=6))
def test_no_unicode_line_end_is_written_raw(tokens: list[str]) -> None:
    for dialect in (None, OpenAI()):
        body = b"".join(write(tokens, dialect=dialect))
        assert not any(end.encode() in body for end in ODD_ENDS)
        assert read([body], dialect=dialect).text == "".join(tokens)


@both()
def test_unicode_line_ends_in_tokens_come_back(stack: Stack) -> None:
    assert stack.read(stack.write([f"a{ODD_ENDS}b"])).text == f"a{ODD_ENDS}b"


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"], ids=["LF", "CR", "CRLF"])
def test_every_line_end_of_the_standard_is_read(end: bytes) -> None:
    body = b"event: a\ndata: x\ndata: y\n\ndata: z\n\n".replace(b"\n", end)
    for pieces in cuts(body):
        assert [(event.event, event.data) for event in events(pieces)] == [("a", "x\ny"), ("message", "z")]


def test_mixed_line_ends_are_read() -> None:
    assert data_of([b"data: x\rdata: y\r\ndata: z\n\r\n"]) == ["x\ny\nz"]


@given(st.lists(st.text(), max_size=5))
def test_we_write_line_feeds_only(tokens: list[str]) -> None:
    assert b"\r" not in b"".join(write(tokens))


def test_a_reader_that_knows_only_lf_reads_us() -> None:
    body = b"".join(write(["a\r\nb", "c"], dialect=OpenAI()))
    chunks = [json.loads(data) for data in client.blocks(body) if data != "[DONE]"]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "a\r\nb" + "c"


def test_a_cut_between_cr_and_lf_makes_no_event() -> None:
    assert data_of([b"data: x\r", b"\ndata: y\r\n\r\n"]) == ["x\ny"]


def test_all_cuts_of_a_crlf_event_give_the_same_event() -> None:
    body = b'event: delta\r\ndata: {"text": "x"}\r\n\r\n'
    for pieces in cuts(body):
        assert [json.loads(data) for data in data_of(pieces)] == [{"text": "x"}]


def test_data_that_does_not_parse_is_an_error_and_is_not_skipped() -> None:
    chunks = write(["good ", "text"])
    broken = [chunk.replace(b'"text"', b'"text') for chunk in chunks]
    reading = read(broken)
    assert not reading.complete
    assert reading.text == "good "


@pytest.mark.parametrize("token", ["\n", "\n\n\n", "a\n", "\nb", ""], ids=repr)
def test_tokens_of_newlines_come_back_exactly(token: str) -> None:
    assert read(write(["x", token, "y"])).text == f"x{token}y"


@both()
def test_a_blank_line_inside_a_token_ends_nothing(stack: Stack) -> None:
    assert stack.read(stack.write(["a\n\nb"])).text == "a\n\nb"


@both(naive_fails=False)
def test_a_leading_space_is_kept(stack: Stack) -> None:
    """The naive one passes: it takes one space off, as the standard says. Kept for readers that strip the value."""
    assert stack.read(stack.write(["Hello", " world"])).text == "Hello world"


def test_one_byte_order_mark_is_removed_and_only_one() -> None:
    mark = b"\xef\xbb\xbf"
    body = mark + b"data: first\n\ndata: " + mark + b"second\n\n"
    for pieces in cuts(body):
        assert data_of(pieces) == ["first", "\ufeffsecond"]
    assert data_of([mark + mark + b"data: x\n\n"]) == []
