"""Characters of several bytes, and surrogates."""

from __future__ import annotations

import json

import pytest

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.dialect import Native, OpenAI, Text
from streamguard.core.wire import Binary, Ndjson, Plain, Sse, Wire
from streamguard.log.base import Retention
from tests.adapters.asgi_apps import exchange
from tests.adapters.logged_apps import OURS, Site, cursors, sid_of, text_of
from tests.adapters.servers import serving
from tests.scenarios.stacks import Stack, both, cuts, pipeline, read, write

MIXED = "汉字 👩‍👩‍👧 naïve"


@both()
def test_no_cut_of_the_bytes_leaves_a_replacement_character(stack: Stack) -> None:
    for pieces in cuts(b"".join(stack.write([MIXED]))):
        assert stack.read(pieces).text == MIXED


@both()
def test_a_source_may_cut_its_bytes_anywhere(stack: Stack) -> None:
    data = MIXED.encode()
    for at in range(len(data)):
        assert stack.read(stack.write([data[:at], data[at:]])).text == MIXED


@pytest.mark.parametrize("wire", [Sse(), Ndjson(), Binary(), Plain()], ids=lambda wire: wire.name)
def test_every_carrier_keeps_characters_whole(wire: Wire) -> None:
    dialect = Text() if wire.name == "plain" else Native()
    body = b"".join(write([MIXED], dialect=dialect, wire=wire))
    for pieces in cuts(body):
        assert read(pieces, wire=wire, dialect=dialect).text == MIXED


@both(naive_fails=False)
def test_a_byte_that_can_never_be_valid_is_one_replacement_character(stack: Stack) -> None:
    """The naive one passes: `errors="replace"` is right as long as no character is cut. Kept as the other side
    of joining pieces: what is broken must not swallow its neighbours."""
    assert stack.read(stack.write([b"a\xffb", b"\xc3", b"c"])).text == "a\ufffdb\ufffdc"


def test_both_sides_of_a_cut_character_are_kept() -> None:
    data = "before é after".encode()
    at = data.index(b"\xc3") + 1
    assert read(write([data[:at], data[at:]])).parts == ["before ", "é after"]


def test_a_character_of_three_tokens_is_shown_when_it_is_whole() -> None:
    first, second, third = "🙂".encode()[:1], "🙂".encode()[1:3], "🙂".encode()[3:]
    pipe = pipeline()
    opening = pipe.open()
    assert pipe.push(first, 0.0) == b""
    assert pipe.push(second, 0.0) == b""
    assert read([opening, pipe.push(third, 0.0)]).parts == ["🙂"]


def test_an_escaped_pair_is_one_character_wherever_the_json_is_cut() -> None:
    body = b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d\\ude42"}}]}\n\n'
    for pieces in cuts(body):
        assert [part for part in read(pieces).parts if part] == ["🙂"]


def test_a_pair_over_two_tokens_is_one_character() -> None:
    assert read(write(["a\ud83d", "\ude42b"])).parts == ["a", "🙂b"]


@pytest.mark.parametrize("tokens", [["a\ud83d"], ["\ude42b"], ["a", "\ud83d", "b"], ["\ud83d", "\ud83d\ude42"]])
@pytest.mark.parametrize("dialect", [None, OpenAI()], ids=["native", "openai"])
def test_a_lone_surrogate_becomes_a_replacement_character(tokens: list[str], dialect: OpenAI | None) -> None:
    """Unhandled it raises in the encoder, and the stream dies after its status line is out."""
    reading = read(write(tokens, dialect=dialect), dialect=dialect)
    assert reading.complete
    assert reading.text == "".join(tokens).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@both()
def test_a_surrogate_does_not_end_the_stream(stack: Stack) -> None:
    """The naive server raises UnicodeEncodeError in its generator: no text after it arrives."""
    reading = stack.read(stack.write(["before ", "\ud83d", " after"]))
    assert reading.text.endswith(" after")


def test_a_lone_surrogate_in_a_block_is_replaced() -> None:
    body = b"".join(write([{"choices": [], "note": "\ud83d"}], dialect=OpenAI()))
    assert json.dumps("\ufffd", ensure_ascii=False).encode() in body


# ---- kept for who comes back ------------------------------------------------------------------------------


def test_a_ring_loses_whole_frames_and_a_replay_begins_at_the_edge_of_one() -> None:
    """Whatever its bound: none of these falls on a character's edge, save by chance."""
    for bound in (1001, 1002, 1003):
        site = Site(*["🙂" * 3] * 20, retention=Retention(max_bytes=bound))
        with serving(site.app) as server:
            sid = sid_of(exchange(server.connect(), path="/tokens", **OURS))
            status = exchange(server.connect(), path="/streams/status", streamguard_stream=sid)
            first = json.loads(status.body)["first"]
            rest = exchange(server.connect(), path="/streams", last_event_id=first, **OURS)
        edge = Cursor.parse(first)
        assert 0 < edge.seq < 20
        assert edge.offset == edge.seq * len('"🙂🙂🙂"'.encode())
        assert [cursor.seq for cursor in cursors(rest.body)] == list(range(edge.seq + 1, 22))
        assert text_of(rest.body) == "🙂" * 3 * (20 - edge.seq)


def test_a_pair_over_two_tokens_is_stored_whole_and_replayed_as_it_was_sent() -> None:
    with serving(Site("a\ud83d", "\ude42b", "c").app) as server:
        live = exchange(server.connect(), path="/tokens", **OURS)
        zero = cursor_zero(sid_of(live))
        replay = exchange(server.connect(), path="/streams", last_event_id=str(zero), **OURS)
    assert text_of(live.body) == "a🙂bc"
    assert replay.body == live.body
