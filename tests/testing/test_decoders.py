"""Each model of a client has its fault and no other; our default encoding is read right by all of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given

from streamguard.core.dialect import Dialect, Native, OpenAI
from streamguard.core.items import Finish
from streamguard.core.wire import Sse, SseDecoder
from streamguard.testing.chunks import prefixes, rechunkings
from streamguard.testing.decoders import (
    ChunkLines,
    Decoded,
    EofIsSuccess,
    JsonOnEverything,
    LineDecoder,
    LineFeedOnly,
    ShortLines,
    StickyId,
    UnicodeLines,
)
from tests.scenarios.stacks import write
from tests.strategies import token_cuts, whole

MODELS = [UnicodeLines, ChunkLines, LineFeedOnly, StickyId, ShortLines, JsonOnEverything, EofIsSuccess]
CHUNKED = [model for model in MODELS if model is not ChunkLines]  # the one that depends on the network's chunks
PLAIN = b'event: a\nid: 1\ndata: "x"\n\n: comment\nretry: 5\ndata: "y"\n\n'


def fed(decoder: LineDecoder, chunks: list[bytes]) -> list[Decoded]:
    return [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.end()


def data(decoder: LineDecoder, *chunks: bytes) -> list[str]:
    return [event.data for event in fed(decoder, list(chunks))]


# ---- the default encoding survives -------------------------------------------------------------------


def text_of(event: Decoded) -> str:
    """What a client of either dialect shows of an event."""
    if event.data.startswith("[DONE]"):
        return ""
    found = json.loads(event.data)
    if isinstance(found, str):
        return found
    return "".join(choice["delta"].get("content") or "" for choice in found.get("choices", []))


@pytest.mark.parametrize("dialect", [Native(), OpenAI()], ids=["native", "openai"])
@pytest.mark.parametrize("ids", ["comment", "id"])
@given(tokens=token_cuts())
def test_every_model_reads_what_we_write(dialect: Dialect, ids: Any, tokens: list[str]) -> None:
    chunks = write([*tokens, Finish("stop")], dialect=dialect, wire=Sse(ids=ids))
    for model in MODELS:
        assert "".join(map(text_of, fed(model(), chunks))) == whole("".join(tokens)), model


@given(tokens=token_cuts())
def test_they_do_in_any_chunks(tokens: list[str]) -> None:
    body = b"".join(write(tokens, dialect=OpenAI()))
    for name, chunks in rechunkings(body, rounds=2):
        for model in CHUNKED:
            assert "".join(map(text_of, fed(model(), chunks))) == whole("".join(tokens)), (model, name)


@pytest.mark.parametrize("dialect", [Native(), OpenAI()], ids=["native", "openai"])
def test_a_heartbeat_is_no_event_to_any_of_them(dialect: Dialect) -> None:
    """One LF behind it, not two: behind a blank line `StickyId` hands out an event, and JSON has nothing to parse."""
    beat = b": hb AAAAAAAAAAAAAAAAAAAAAA.1.3.00000000\n"
    chunks = write(["a", "b"], dialect=dialect, wire=Sse(ids="id"))
    beaten = [piece for chunk in chunks[:-1] for piece in (chunk, beat)] + chunks[-1:]
    for model in MODELS:
        assert data(model(), *beaten) == data(model(), *chunks), model
    with pytest.raises(ValueError, match="Expecting value"):
        data(JsonOnEverything(), *[piece.replace(beat, beat + b"\n") for piece in beaten])


def test_a_long_answer_of_ordinary_tokens_has_no_long_line() -> None:
    assert len(data(ShortLines(), *write(["word " * 1000] * 100))) > 100


# ---- each has its fault ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [LineDecoder, *CHUNKED])
def test_without_what_it_stumbles_on_each_reads_as_a_conforming_one(model: Any) -> None:
    good = [(event.event, event.data, event.last_event_id) for event in SseDecoder().feed(PLAIN)]
    for _, chunks in rechunkings(PLAIN, rounds=3):
        assert [(event.event, event.data, event.id) for event in fed(model(), chunks)] == good


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_the_line_ends_of_the_standard_are_known_but_to_those_that_say_so(end: str) -> None:
    body = PLAIN.replace(b"\n", end.encode()) + b":" + end.encode()
    for model in MODELS:
        if model in (LineFeedOnly, ChunkLines):
            continue
        for _, chunks in rechunkings(body, rounds=1):
            assert data(model(), *chunks) == ['"x"', '"y"'], model
    assert data(LineFeedOnly(), body) == (['"x"', '"y"'] if end == "\n" else [])


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_unicode_lines_loses_what_is_behind_a_separator(end: str) -> None:
    body = f"data: a{end}b\n\n".encode()
    assert data(LineDecoder(), body) == [f"a{end}b"]
    assert data(UnicodeLines(), body) == ["a"]
    assert data(ChunkLines(), body) == ["a"]


def test_unicode_lines_cuts_as_httpx_does() -> None:
    class Seen(UnicodeLines):
        def _field(self, line: str) -> None:
            seen.append(line)

    seen: list[str] = []
    text = "data: a\u2028b\r\ndata: c\x85d\rdata: e\n"
    for _, chunks in rechunkings(text.encode(), rounds=3):
        seen.clear()
        fed(Seen(), chunks)
        lines = list(
            httpx.Response(
                200, content=iter(chunks), headers={"content-type": "text/plain; charset=utf-8"}
            ).iter_lines()
        )
        assert seen == lines


def test_chunk_lines_breaks_what_the_network_cuts() -> None:
    body = "data: é!\n\n".encode()
    assert data(ChunkLines(), body) == ["é!"]
    assert data(ChunkLines(), body[:7], body[7:]) == ["\ufffd"]
    assert data(LineDecoder(), body[:7], body[7:]) == ["é!"]


def test_line_feed_only_keeps_a_carriage_return() -> None:
    assert data(LineFeedOnly(), b"data: a\rb\n\n") == ["a\rb"]
    assert data(LineDecoder(), b"data: a\rdata: b\n\n") == ["a\nb"]


def test_sticky_id_hands_out_an_empty_event_once_it_saw_an_id() -> None:
    assert data(StickyId(), b": ping\n\ndata: a\n\n: ping\n\n") == ["a"]
    assert data(StickyId(), b"id: 1\ndata: a\n\n: ping\n\n") == ["a", ""]
    assert data(LineDecoder(), b"id: 1\ndata: a\n\n: ping\n\n") == ["a"]


def test_sticky_id_is_what_the_openai_sdk_does() -> None:
    from openai._streaming import SSEDecoder

    for body in (b": ping\n\ndata: a\n\n: ping\n\n", b"id: 1\ndata: a\n\n: ping\n\n", b"event: x\n\ndata: b\n\n"):
        assert data(StickyId(), body) == [event.data for event in SSEDecoder().iter_bytes(iter([body]))]
    assert openai.__version__


def test_short_lines_refuses_a_long_line_as_asyncio_does() -> None:
    async def read(line: bytes) -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(line)
        reader.feed_eof()
        return await reader.readline()

    long = b"data: " + b"x" * 2**16 + b"\n"
    with pytest.raises(ValueError, match="limit"):
        asyncio.run(read(long))
    for chunks in ([long], [long[:-1]], [long[:100], long[100:]]):
        with pytest.raises(ValueError, match="a line is longer than 65536 bytes"):
            data(ShortLines(), *chunks)
    fits = b"data: " + b"x" * (2**16 - 6) + b"\n\n"
    assert len(data(ShortLines(), fits)[0]) == 2**16 - 6
    with pytest.raises(ValueError, match="longer than 9 bytes"):
        data(ShortLines(9), b"data: abcd\n\n")


def test_json_on_everything_parses_and_fails_on_what_is_none() -> None:
    found = fed(JsonOnEverything(), [b'data: {"a": 1}\n\ndata: [DONE]\n\ndata: nonsense\n\n'])
    assert [event.value for event in found] == [{"a": 1}, None]
    for wrong in (b"data: hello\n\n", b"id: 1\ndata: 1\n\n: ping\n\n", b"data: [1\n\n"):
        with pytest.raises(ValueError, match="Expecting"):
            data(JsonOnEverything(), wrong)


@pytest.mark.parametrize("dialect", [Native(), OpenAI()], ids=["native", "openai"])
def test_eof_is_success_believes_every_prefix(dialect: Dialect) -> None:
    """So a body of ours that is not complete must not end cleanly."""
    for prefix in prefixes(b"".join(write(["a", "b"], dialect=dialect))):
        client = EofIsSuccess()
        client.feed(prefix)
        assert not client.complete
        client.end()
        assert client.complete
