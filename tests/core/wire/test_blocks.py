"""Lines and blocks of server-sent events: the kept cases of other projects, limits, and the work it takes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from streamguard.core.errors import FrameTooLarge
from streamguard.core.wire.sse import SseDecoder, SseEvent, SseReader
from tests.core.wire.streams import chunkings

CASES = json.loads((Path(__file__).parents[2] / "cases" / "sse_cases.json").read_text(encoding="utf-8"))

# Cases that this decoder answers otherwise, and why. None so far.
EXCEPTIONS: dict[str, str] = {}


def decoded(chunks: list[bytes]) -> tuple[list[SseEvent], SseDecoder, list[str]]:
    comments: list[str] = []
    decoder = SseDecoder(comments.append)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.end(), decoder, comments


def case_bytes(case: dict[str, Any]) -> bytes:
    return bytes.fromhex(case["input_hex"]) if "input_hex" in case else case["input"].encode()


@pytest.mark.parametrize("case", CASES["parse"], ids=lambda case: case["name"])
def test_every_kept_case_is_decoded_as_the_standard_says_in_any_chunking(case: dict[str, Any]) -> None:
    if case["name"] in EXCEPTIONS:
        pytest.xfail(EXCEPTIONS[case["name"]])
    whole = case_bytes(case)
    cuts = list(chunkings(whole)) + [[whole[:at], whole[at:]] for at in range(len(whole))]
    if "chunks" in case:
        pieces = [bytes.fromhex(piece) for piece in case["chunks"]]
        assert b"".join(pieces) == whole
        cuts.append(pieces)
    for chunks in cuts:
        events, decoder, comments = decoded(chunks)
        assert [
            {"type": event.event, "data": event.data, "lastEventId": event.last_event_id} for event in events
        ] == case["events"]
        assert decoder.last_event_id == case["final"]["lastEventId"]
        assert decoder.retry == case["final"]["retry"]
        if "comments" in case:
            assert comments == case["comments"]


def parts(spec: list[dict[str, Any]]) -> str:
    text = ""
    for part in spec:
        if "for" in part:
            text += "".join([part["s"].replace("{i}", str(i)) for i in range(part["from"], part["to"] + 1)])
        else:
            text += part["repeat"] * part["n"] if "repeat" in part else part["s"]
    return text


@pytest.mark.parametrize("case", CASES["parse_generated"], ids=lambda case: case["name"])
def test_every_generated_case_is_decoded(case: dict[str, Any]) -> None:
    whole = parts(case["input_parts"]).encode()
    if isinstance(case["events"], str):
        expected = [f"message {i}" for i in range(100)]
    else:
        expected = [parts(event["data_parts"]) for event in case["events"]]
    for size in (len(whole), 65_536):
        events, decoder, _ = decoded([whole[at : at + size] for at in range(0, len(whole), size)])
        assert [event.event for event in events] == ["message"] * len(expected)
        assert [event.data for event in events] == expected
        assert (decoder.last_event_id, decoder.retry) == ("", None)


def test_a_block_has_its_own_fields_beside_the_committed_ones() -> None:
    first, second = decoded([b": a\nid: 1\nretry: 7\nevent: e\ndata: x\n:b\n\ndata: y\n\n"])[0]
    assert (first.event, first.data, first.id, first.retry) == ("e", "x", "1", 7)
    assert (first.last_event_id, first.comments) == ("1", [" a", "b"])
    assert (second.event, second.data, second.id, second.retry) == ("message", "y", None, None)
    assert (second.last_event_id, second.comments) == ("1", [])
    assert repr(first) == "SseEvent(event='e', data='x', id='1')"


def test_bytes_that_are_no_utf8_become_replacement_characters() -> None:
    (event,) = decoded([b"event: \xff\nid: \xfe\ndata: \xc3(\n\n"])[0]
    assert (event.event, event.id, event.data) == ("\ufffd", "\ufffd", "\ufffd(")


@pytest.mark.parametrize(
    ("line", "retry"),
    [
        (b"retry: 0", 0),
        (b"retry: " + b"0" * 97 + b"123", 123),
        (b"retry: " + b"0" * 98 + b"123", None),
        (b"retry: " + b"9" * 100_000, None),
        (b"retry: -1", None),
        (b"retry: 1_0", None),
        (b"retry: " + "١".encode(), None),
        (b"retry:", None),
    ],
)
def test_a_reconnection_time_is_at_most_a_hundred_digits(line: bytes, retry: int | None) -> None:
    assert decoded([line + b"\n"])[1].retry == retry


def test_an_event_without_its_blank_line_is_handed_out_only_if_asked_for() -> None:
    for ending in (b"", b"\n", b"\r", b"\r\n"):
        strict, lenient = SseDecoder(), SseDecoder(lenient=True)
        assert strict.feed(b"data: x" + ending) + strict.end() == []
        assert [event.data for event in lenient.feed(b"data: x" + ending) + lenient.end()] == ["x"]
    assert SseDecoder(lenient=True).end() == []


def test_only_the_first_byte_order_mark_is_removed() -> None:
    mark = b"\xef\xbb\xbf"
    for chunks in chunkings(mark + b"data: a\n\ndata: " + mark + b"b\n\n"):
        assert [event.data for event in decoded(chunks)[0]] == ["a", "\ufeffb"]
    for beginning in (b"\xef", b"\xef\xbb", b"\xef\xbbdata: x\n\n"):
        for chunks in chunkings(beginning):
            assert decoded(chunks)[0] == []


class TestLimits:
    """`max_frame` bounds the data of one block, whatever the line ends, the chunking and the field names."""

    @pytest.mark.parametrize("form", [b"data: %b\n\n", b"data:%b\n\n", b"id: 1\nevent: e\ndata: %b\n\n"])
    def test_the_limit_is_on_the_data_to_the_byte(self, form: bytes) -> None:
        for chunks in chunkings(form % (b"x" * 2000)):
            decoder = SseDecoder(max_frame=2000)
            assert [len(event.data) for chunk in chunks for event in decoder.feed(chunk)] == [2000]
        for chunks in chunkings(form % (b"x" * 2001)):
            decoder = SseDecoder(max_frame=2000)
            with pytest.raises(FrameTooLarge) as caught:
                for chunk in chunks:
                    decoder.feed(chunk)
            assert (caught.value.size, caught.value.limit) == (2001, 2000)

    def test_many_lines_of_one_byte_count_as_their_data(self) -> None:
        for line in (b"data:x\n", b"data: x\n"):
            decoder = SseDecoder(max_frame=2001)
            assert [len(event.data) for event in decoder.feed(line * 1001 + b"\n")] == [2001]
            with pytest.raises(FrameTooLarge):
                SseDecoder(max_frame=2000).feed(line * 1001 + b"\n")

    @pytest.mark.parametrize("field", [b"data: ", b"id: ", b"event: ", b"retry: ", b": ", b"unknown: ", b""])
    def test_a_line_of_any_field_is_bounded_while_it_has_no_end(self, field: bytes) -> None:
        decoder = SseDecoder(max_frame=100)  # 1,024 bytes are for the other fields of a block
        decoder.feed(field + b"x" * (1124 - len(field)))
        with pytest.raises(FrameTooLarge) as caught:
            decoder.feed(b"x")
        assert (caught.value.size, caught.value.limit) == (1125, 100)
        for later in (lambda: decoder.feed(b"\n\ndata: x\n\n"), decoder.end):
            with pytest.raises(FrameTooLarge):
                later()

    @pytest.mark.parametrize("field", [b"data: ", b"id: ", b"event: ", b"retry: ", b": ", b"unknown: ", b""])
    def test_a_whole_line_has_the_same_bound(self, field: bytes) -> None:
        SseDecoder(max_frame=100).feed(field + b"x" * (1124 - len(field)) + b"\n")
        with pytest.raises(FrameTooLarge) as caught:
            SseDecoder(max_frame=100).feed(field + b"x" * (1125 - len(field)) + b"\n")
        assert (caught.value.size, caught.value.limit) == (1125, 100)

    @pytest.mark.parametrize("line", [b"id: 1\n", b"event: e\n", b"retry: 1\n", b": c\n", b":\n", b"data\n"])
    def test_a_block_that_never_ends_is_bounded(self, line: bytes) -> None:
        decoder = SseDecoder(max_frame=100)
        with pytest.raises(FrameTooLarge):
            for _ in range(1200):
                decoder.feed(line)

    @pytest.mark.parametrize(
        ("first", "counts"),
        [
            (b":" + b"x" * 1000, 1001),
            (b"data:" + b"x" * 50, 51),
            (b"data: " + b"x" * 50, 51),
            (b"data", 1),
            (b"id: " + b"x" * 50, 54),
            (b"event:" + b"x" * 50, 56),
            (b"retry: 123", 10),
        ],
    )
    def test_what_is_kept_counts_to_the_byte(self, first: bytes, counts: int) -> None:
        for rest in (b"%b", b"%b\n"):
            SseDecoder(max_frame=100).feed(first + b"\n" + rest % (b"x" * (1124 - counts)))
            with pytest.raises(FrameTooLarge) as caught:
                SseDecoder(max_frame=100).feed(first + b"\n" + rest % (b"x" * (1125 - counts)))
            assert caught.value.size == 1125

    def test_a_block_that_ended_does_not_count_with_the_next(self) -> None:
        decoder = SseDecoder(max_frame=100)
        for block in (b": c\nid: 1\nevent: e\ndata: x\n\n", b": c\n\n", b"id: 1\n\n"):
            decoder.feed(block)
            decoder.feed(b"u" * 1124 + b"\n")
        with pytest.raises(FrameTooLarge):
            decoder.feed(b"u" * 1125 + b"\n")

    def test_what_is_not_kept_does_not_count(self) -> None:
        decoder = SseDecoder(max_frame=100)
        for _ in range(1200):
            assert decoder.feed(b"unknown: x\nid: \0\nretry: x\n") == []
        assert [event.data for event in decoder.feed(b"data: x\n\n")] == ["x"]

    def test_heartbeats_of_a_long_silence_never_add_up_to_a_large_frame(self) -> None:
        reader = SseReader(own_ids=False, max_frame=100)
        beats = [reader.feed(b": hb x" + b" " * 500 + b"\n") for _ in range(50)]
        assert [record.kind for records in beats for record in records] == ["beat"] * 50
        assert [record.data for record in reader.feed(b"data: x\n\n")] == [b"x"]

    def test_what_came_before_a_large_event_is_handed_out_first(self) -> None:
        large = b"data: " + b"x" * 2000 + b"\n\n"
        decoder = SseDecoder(max_frame=100)
        assert [event.data for event in decoder.feed(b"data: a\n\n" + large)] == ["a"]
        with pytest.raises(FrameTooLarge) as caught:
            decoder.feed(b"")
        assert (caught.value.size, caught.value.limit) == (2006, 100)

    def test_the_default_is_sixteen_mebibytes(self) -> None:
        assert SseDecoder().max_frame == SseReader(own_ids=None).max_frame == 16 * 1024 * 1024


def calls_of(feed: Any, chunks: list[bytes]) -> int:
    """How many calls, of Python and of C, feeding `chunks` makes."""
    count = 0

    def count_one(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_one)
    try:
        for chunk in chunks:
            feed(chunk)
    finally:
        sys.setprofile(None)
    return count


class TestWork:
    """The work is linear in the input: an unfinished line waits in pieces, and is joined once."""

    @pytest.mark.parametrize("decoder", [SseDecoder(), SseReader(own_ids=None)], ids=["decoder", "reader"])
    def test_a_line_of_600_kb_in_pieces_is_never_copied_before_its_end(self, decoder: Any) -> None:
        chunks = [b"data: " + b"x" * 8000, *[bytes([97 + at % 26]) * 8000 for at in range(74)]]
        for chunk in chunks:
            assert decoder.feed(chunk) == []
        assert [id(part) for part in decoder._line] == [id(chunk) for chunk in chunks]
        (event,) = decoder.feed(b"\n\n")
        assert len(event.data) == 600_000
        assert decoder._line == []

    @pytest.mark.parametrize("size", [1, 100, 8000])
    def test_a_feed_makes_a_bounded_number_of_calls(self, size: int) -> None:
        for decoder in (SseDecoder(), SseReader(own_ids=None)):
            decoder.feed(b"data: " + b"x" * 4000)
            chunk = b"y" * size
            few, many = (calls_of(decoder.feed, [chunk] * count) for count in (100, 1000))
            assert many <= 10 * few

    def test_many_events_in_one_chunk_cost_the_same_each(self) -> None:
        block = b"id: 1\ndata: x\n\n"
        few, many = (calls_of(SseDecoder().feed, [block * count]) for count in (100, 10_000))
        assert many <= 100 * few
