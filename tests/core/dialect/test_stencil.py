"""A stencil cuts out what the long way reads, and nothing else: with it and without it every stream is the same."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamguard.core.dialect import Raw
from streamguard.core.dialect.provider import ProviderStream
from streamguard.core.dialect.raw import RawEncoder
from streamguard.core.dialect.stencil import Stencil
from streamguard.core.errors import ItemTooLarge, LocalProtocolError, failure_from
from streamguard.core.flush import Immediate
from streamguard.core.framing import MAX_BLOCK, FramedEncoder
from streamguard.core.guard import CompletionGuard
from streamguard.core.items import Ending, Event
from streamguard.core.pipeline import FrameStage, Pipeline
from streamguard.core.wire import Binary, Ndjson, Sse, SseDecoder
from tests.core.wire.streams import SID


def chunk(text: str, ascii: bool = True, **more: Any) -> str:
    fields = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}}], **more}
    return json.dumps(fields, ensure_ascii=ascii)


STOP = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
FIRST = f"data: {chunk('a')}\n\n".encode()
ERROR = b'data: {"error": {"text": "%b"}}\n\n'
NAMED = b'event: d\ndata: {"type": "content_block_delta", "delta": {"text": "%b"}}\n\n'
INSIDE = chunk("|").encode().split(b"|")


def likely(text: bytes) -> bytes:
    """A piece like the first, with these bytes between the quotes of its text."""
    return b"data: " + text.join(INSIDE) + b"\n\n"


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
PIECES = st.one_of(
    TEXTS.map(lambda text: f"data: {chunk(text)}\n\n".encode()),
    TEXTS.map(lambda text: f"data: {chunk(text, ascii=False)}\n\n".encode()),
    st.binary(max_size=4).map(likely),
    st.sampled_from([rb"\u12", rb"\uD800", b"\\", b'"', b'\\"', b"\xed\xa0\x80", b"\xc0\xaf", b"a\rb"]).map(likely),
    st.sampled_from(
        [
            FIRST,
            f"data:{chunk('b')}\n\n".encode(),
            f"data: {chunk('b')}\r\n\r\n".encode(),
            f"event: x\ndata: {chunk('b')}\n\n".encode(),
            f"id: 7\ndata: {chunk('b')}\n\n".encode(),
            f"data: {chunk('b', usage={'n': 2})}\n\n".encode(),
            f"data: {STOP}\n\n".encode(),
            FIRST + FIRST,
            FIRST + b"data: \0\n\n",
            FIRST[:30],
            FIRST[30:],
            FIRST[:-1],
            b"\n",
            b": ping\n\n",
            b": ping\n",
            b"data: [DONE]\n\n",
            b'event: d\ndata: {"type": "content_block_delta", "delta": {"text": "a"}}\n\n',
            b'event: d\ndata: {"type": "content_block_delta", "delta": {"text": "b"}}\n\n',
            b'event: d\ndata: {"type": "content_block_delta", "delta": {"text": "c"}}\n\n',
            b'event: message\ndata: {"token": "a"}\n\n',
            b'event: message\ndata: {"token": "b"}\n\n',
            b'data: {"error": {"text": "a"}}\n\n',
            b'data: {"error": {"text": ""}}\n\n',
            b'data: {"type": "response.x", "sequence_number": 1, "delta": "a"}\n\n',
            b'data: {"type": "message_delta", "delta": {"stop_reason": "x", "text": ""}}\n\n',
            b'data: {"error": {"message": "no"}}\n\n',
            b"data: " + b"\0" + b"\n\n",
            b"",
        ]
    ),
)  # fmt: skip


def relayed(pieces: list[bytes], wire: Any, stencil: bool) -> tuple[list[bytes], Any]:
    """Each piece's bytes, or the error that it raised; and how it ended."""
    encoder = FramedEncoder(Raw("known"), sid=SID)
    if not stencil:
        encoder.dialect.stencil.read = lambda *_, **__: None  # type: ignore[attr-defined]
    pipeline = Pipeline(Immediate(), encoder, CompletionGuard(wire))
    out = [pipeline.open()]
    for piece in pieces:
        try:
            out.append(pipeline.push(piece, 0.0))
        except Exception as exc:
            out.append(str(failure_from(exc)).encode())
    out.append(pipeline.finish(0.0))
    return out, (pipeline.status, pipeline.ending.failure, pipeline.cursor, pipeline.items, pipeline.sent)


@settings(max_examples=60)
@given(st.lists(PIECES, max_size=8), st.sampled_from([Sse(), Ndjson(), Binary()]))
@example([NAMED % b"a", NAMED % b"b", NAMED % b"c", NAMED % b"", FIRST], Sse())
@example([b": x", ERROR % b"a", ERROR % b"b"], Sse())  # the first is the rest of a comment
@example([FIRST + b"data: \0\n\n", likely(b"b")], Sse())  # refused, with a good event before it
def test_a_stream_with_a_stencil_is_written_as_without(pieces: list[bytes], wire: Any) -> None:
    pieces = [FIRST, FIRST, *pieces]
    assert relayed(pieces, wire, stencil=True) == relayed(pieces, wire, stencil=False)


@settings(max_examples=30)
@given(st.lists(PIECES, max_size=8))
def test_frames_for_a_log_are_the_same(pieces: list[bytes]) -> None:
    def made(stencil: bool) -> list[Any]:
        encoder = FramedEncoder(Raw("known"), sid=SID)
        if not stencil:
            encoder.dialect.stencil.read = lambda *_, **__: None  # type: ignore[attr-defined]
        stage, frames = FrameStage(Immediate(), encoder), list[Any]()
        for piece in [FIRST, FIRST, *pieces]:
            try:
                frames += stage.push(piece, 0.0)
            except Exception as exc:
                frames.append(failure_from(exc))
        return [*frames, *stage.finish(0.0)]

    assert made(True) == made(False)


def reads(stencil: Stencil, piece: bytes, rests: bool = True, noted: object = 1) -> None:
    stencil.begin()
    stencil.read(piece, rests=rests, noted=noted)


def learned(piece: bytes = FIRST) -> Stencil:
    """Of the first piece something may be noted, and it may begin anywhere."""
    stencil = Stencil()
    reads(stencil, b": hello\n\n")
    reads(stencil, piece)
    return stencil


@pytest.mark.parametrize("text", ["", "b", "\u20ac", "\U0001f600", '"', "\\", "\n", "\u2028", "\x7f", "é" * 1000])
@pytest.mark.parametrize("edge", ["\n\n", "\r\n\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("ascii", [True, False])
def test_what_it_cuts_out_is_the_data_to_the_byte(text: str, edge: str, ascii: bool) -> None:
    stencil = learned(f"data: {chunk('a')}{edge}".encode())
    assert stencil.cut is not None
    data = chunk(text, ascii)
    assert stencil.cut(f"data: {data}{edge}".encode()) == data.encode()


@pytest.mark.parametrize("text", [b"\n", b"\r", b"\0", b"\x1f", b'"', b"\\", b"\\a", b"\\u12g4", b"\xff", b"\xe2\x82"])
def test_what_is_no_string_of_json_is_left_to_the_long_way(text: bytes) -> None:
    stencil = learned()
    assert stencil.cut is not None
    assert stencil.cut(likely(text)) is None


def test_a_large_piece_is_left_to_the_long_way() -> None:
    stencil = learned()
    assert stencil.cut is not None
    assert stencil.cut(likely(b"a" * 65536)) is None


@pytest.mark.parametrize(
    "piece",
    [
        FIRST + FIRST,
        FIRST[:-1],
        likely(b"\xff"),
        f"data: {STOP}\n\n".encode(),
        b": ping\n\n",
        b"id: 1\n" + FIRST,
        b'data: ["text", "a"]\n\n',
        b'data: "text": "a"\n\n',
        b"data: [DONE]\n\n",
        b"event: \xff\n" + FIRST,
    ],
    ids=["two", "cut", "no text", "no key", "a comment", "with an id", "a list", "torn", "a marker", "no name"],
)
def test_nothing_is_learned_of_a_piece_that_is_not_one_event_of_the_form(piece: bytes) -> None:
    assert learned(piece).cut is None


def test_behind_a_piece_that_ends_inside_an_event_the_next_is_read_the_long_way() -> None:
    stencil = learned()
    reads(stencil, b": ping\n", True, 1)
    assert stencil.cut is None
    reads(stencil, b": ping\n\n", True, 1)
    assert stencil.cut is not None
    reads(stencil, b"data: [DONE]\n\n", False, 1)
    assert stencil.cut is None


def test_nothing_is_learned_of_an_event_of_which_something_was_noted() -> None:
    stencil = Stencil()
    for noted in range(3):
        reads(stencil, FIRST, True, noted)
        assert stencil.cut is None
    reads(stencil, FIRST, True, 2)
    assert stencil.cut is not None


def test_what_was_learned_is_dropped_when_something_else_is_noted() -> None:
    stencil = learned()
    reads(stencil, b": ping\n\n", True, 2)
    assert stencil.cut is None
    reads(stencil, FIRST, True, 2)
    assert stencil.cut is not None


SAYS = ["abort", "stop", "length", None]
SAID = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(SAYS), st.sampled_from([None, 1, 2])).map(
    lambda said: {
        "choices": [{"index": 0, "delta": {"content": said[0]}, "finish_reason": said[1]}],
        **({} if said[2] is None else {"usage": {"n": said[2]}}),
    }
)


@settings(max_examples=60)
@given(st.lists(SAID, max_size=8))
@example([{"choices": [{"delta": {"content": "a"}, "finish_reason": SAYS[n]}]} for n in (0, 0, 0, 1, 0)])
def test_how_a_stream_is_cut_into_pieces_makes_no_difference_to_how_it_is_judged(said: list[Any]) -> None:
    pieces = [f"data: {json.dumps(payload)}\n\n".encode() for payload in said] + [b"data: [DONE]\n\n"]

    def judged(pieces: list[bytes]) -> Any:
        encoder, ending = Raw().encoder(), Ending()
        made = [payload for piece in pieces for payload in encoder.wire(piece, ending)]
        return made, encoder.judge(ending), ending.reasons, ending.usage

    assert judged(pieces) == judged([b"".join(pieces)])


def test_a_stream_of_events_that_all_differ_is_looked_into_no_further() -> None:
    stencil = Stencil()
    for number in range(40):
        reads(stencil, f"data: {chunk('a', n=number)}\n\n".encode(), True, 1)
    assert (stencil.tries, stencil.cut is None) == (0, False)


@pytest.mark.parametrize(
    ("piece", "name"),
    [
        ('event: delta\ndata: {"type":"content_block_delta","delta":{"text":"%s"}}\n\n', "delta"),
        ('event: message\ndata: {"token":"%s"}\n\n', None),
        ('event:x\r\ndata:{"delta":"%s","n":[1,{"text":"b"}]}\r\n\r\n', "x"),
    ],
    ids=["named", "message", "CRLF"],
)
def test_a_named_event_of_any_api_has_its_stencil(piece: str, name: str | None) -> None:
    stencil = learned((piece % "a").encode())
    assert stencil.name == name
    assert stencil.cut is not None
    found = stencil.cut((piece % "another").encode())
    assert found is not None
    assert "another" in json.loads(found).get("delta", json.loads(found)).__str__()


def test_a_rule_of_ones_own_is_shown_every_event() -> None:
    shown: list[str] = []

    def rule(event: Event) -> bool:
        shown.append(event.data)
        return False

    out = FramedEncoder(Raw(rule), sid=SID)
    for text in "abc":
        out.wire(f"data: {chunk(text)}\n\n".encode())
    assert shown == [chunk(text) for text in "abc"]


def test_an_item_between_two_pieces_is_not_overtaken() -> None:
    encoder = FramedEncoder(Raw(), sid=SID)
    encoder.wire(FIRST)
    encoder.wire(FIRST)
    assert encoder.item(Event('{"error": "died"}')) == []
    assert [frame.data for frame in encoder.wire(FIRST)] == [b'{"error": "died"}', chunk("a").encode()]


def test_a_stream_says_what_it_has_noted() -> None:
    stream = ProviderStream()
    seen = [stream.noted()]
    for data in (chunk("a"), chunk("b"), STOP, "[DONE]"):
        stream.observe(None, data)
        seen.append(stream.noted())
    assert [before == after for before, after in itertools.pairwise(seen)] == [False, True, False, False]


def pipeline(max_block: int = MAX_BLOCK) -> Pipeline:
    made = Pipeline(Immediate(), FramedEncoder(Raw(), sid=SID, max_block=max_block), CompletionGuard(Sse()))
    made.open()
    made.push(FIRST, 0.0)
    return made


def test_what_is_above_the_limit_of_an_item_is_refused_however_it_is_read() -> None:
    made = pipeline(max_block=100)
    made.push(FIRST, 0.0)
    with pytest.raises(ItemTooLarge):
        made.push(likely(b"a" * 100), 0.0)
    made.push(FIRST, 0.0)
    assert made.cursor.seq == 3


def test_what_was_made_before_an_item_that_is_refused_leaves_before_the_next() -> None:
    made = pipeline(max_block=100)
    made.push(FIRST, 0.0)
    with pytest.raises(ItemTooLarge):
        made.push(likely(b"b") + likely(b"a" * 100), 0.0)
    assert [event.data for event in SseDecoder().feed(made.push(likely(b"c"), 0.0))] == [chunk("b"), chunk("c")]


def test_after_its_end_a_stream_takes_no_piece() -> None:
    made = pipeline()
    made.push(FIRST, 0.0)
    made.finish(0.0)
    with pytest.raises(LocalProtocolError):
        made.push(FIRST, 0.0)


def test_an_event_that_its_carrier_refuses_leaves_a_stream_that_can_fail() -> None:
    made = pipeline()
    made.push(FIRST, 0.0)
    at = made.cursor
    made.push(FIRST, 0.0)
    before = made.guard.encoder.text

    def refuses(fields: Any) -> bytes:
        raise LocalProtocolError("not that one")

    made.guard.encoder.text = refuses  # type: ignore[method-assign]
    with pytest.raises(LocalProtocolError, match="not that one"):
        made.push(FIRST, 0.0)
    made.guard.encoder.text = before  # type: ignore[method-assign]
    assert made.cursor.seq == at.seq + 1
    made.push(FIRST, 0.0)
    made.finish(0.0)
    assert made.status == "failed"


def test_an_encoder_knows_the_form_of_what_it_has_relayed() -> None:
    encoder = Raw().encoder()
    assert isinstance(encoder, RawEncoder)
    assert encoder.stencil.cut is None
