"""The carrier `sse`: what is written to the byte, and what our reader makes of ours and of anybody's bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import FieldRefused, FrameTooLarge
from streamguard.core.frame import Frame
from streamguard.core.wire.base import Received
from streamguard.core.wire.blocks import Blocks
from streamguard.core.wire.sse import Sse, SseDecoder, SseEncoder, SseReader
from tests.core.wire.streams import SID, chunkings

ZERO = cursor_zero(SID)
AT = Cursor(SID, 1, 7, 0xABC)
TEXT = Frame(1, 7, 0xABC, b'"Hello"')


def encoder(own_ids: bool = False, **options: Any) -> SseEncoder:
    return Sse(**options).encoder(ZERO, own_ids=own_ids)


def facts(record: Received) -> tuple[Any, ...]:
    fields = (record.cursor, record.name, record.data, record.extra, record.reason, record.partial)
    return record.kind, *fields


def records(chunks: list[bytes], own_ids: bool | None = False, **options: Any) -> list[tuple[Any, ...]]:
    reader = SseReader(own_ids=own_ids, **options)
    return [facts(record) for chunk in chunks for record in reader.feed(chunk)] + [facts(r) for r in reader.end()]


def frame(cursor: bytes | None, name: str | None, data: bytes, extra: str | None = None) -> tuple[Any, ...]:
    return "frame", cursor, name, data, extra, "", False


class TestEncoder:
    def test_the_cursor_stands_directly_before_the_data_in_either_place(self) -> None:
        cursor = SID.encode() + b".1.7.00000abc"
        assert encoder().frame(TEXT) == b": sg " + cursor + b'\ndata: "Hello"\n\n'
        assert encoder(ids="id").frame(TEXT) == b"id: " + cursor + b'\ndata: "Hello"\n\n'
        assert encoder(own_ids=True).frame(TEXT) == b"id: " + cursor + b'\ndata: "Hello"\n\n'

    def test_the_opening_is_a_comment_and_in_native_an_event_too(self) -> None:
        comment = b": streamguard 1 " + str(ZERO).encode() + b"\n"
        assert encoder().opening() == encoder(ids="id").opening(resume="/s") == comment
        assert encoder(own_ids=True).opening(resume="/s") == (
            comment + b"event: open\nretry: 2000\nid: " + str(ZERO).encode() + b'\ndata: {"v":1,"resume":"/s"}\n\n'
        )

    def test_a_named_frame_of_several_lines_is_one_block(self) -> None:
        written = encoder().frame(Frame(1, 7, 0xABC, b"a\n\nb", "block"))
        assert written == f"event: block\n: sg {AT}\ndata: a\ndata: \ndata: b\n\n".encode()

    def test_a_terminal_bears_its_status_and_its_summary_comes_first(self) -> None:
        terminal = Frame(1, 7, 0xABC, b"[DONE]", None, "complete", b"0000000a {}")
        assert encoder().frame(terminal) == f": end 0000000a {{}}\n: sg {AT}.complete\ndata: [DONE]\n\n".encode()
        assert encoder(ids="id").frame(terminal) == (
            f": end 0000000a {{}}\nid: {AT}.complete\ndata: [DONE]\n\n".encode()
        )

    def test_a_terminal_without_a_marker_is_one_comment_line(self) -> None:
        assert encoder().frame(Frame(1, 7, 0xABC, b"", None, "complete")) == f": end {AT}.complete\n".encode()
        assert encoder().frame(Frame(1, 7, 0xABC, b"")) == f": sg {AT}\ndata: \n\n".encode()

    def test_an_id_of_the_providers_own_stays_and_the_cursor_goes_beside_it(self) -> None:
        own = Frame(1, 7, 0xABC, b"x", "token", None, b"17")
        for ids in ("id", "comment"):
            assert encoder(ids=ids).frame(own) == f"event: token\nid: 17\n: sg {AT}\ndata: x\n\n".encode()

    def test_a_heartbeat_is_one_comment_line_without_a_blank_one(self) -> None:
        assert encoder().heartbeat(AT) == f": hb {AT}\n".encode()
        assert encoder().heartbeat(AT, blocked=True) == f": hb {AT} blocked\n".encode()

    def test_a_padded_heartbeat_is_two_kilobytes(self) -> None:
        beat = encoder(heartbeat="padded").heartbeat(AT)
        assert beat == f": hb {AT}".encode().ljust(2050) + b"\n"
        blocked = encoder(heartbeat="padded").heartbeat(AT, blocked=True)
        assert blocked == f": hb {AT} blocked".encode().ljust(2050) + b"\n"

    def test_one_silence_holds_at_most_64_kilobytes_of_padding(self) -> None:
        made = encoder(heartbeat="padded")
        for at in (ZERO, AT, Cursor(SID, 2, 9, 0xABC)):
            beats = [made.heartbeat(at) for _ in range(40)]
            padded = [beat for beat in beats if len(beat) > 2048]
            assert beats[: len(padded)] == padded  # those after it are short
            assert 62 * 1024 < sum(map(len, padded)) <= 64 * 1024
            assert made.heartbeat(at) == encoder().heartbeat(at)

    def test_a_ping_event_is_for_native_only(self) -> None:
        beat = encoder(own_ids=True, heartbeat="ping").heartbeat(AT)
        assert beat == f'event: ping\ndata: {{"cursor":"{AT}"}}\n\n'.encode()
        blocked = encoder(own_ids=True, heartbeat="ping").heartbeat(AT, blocked=True)
        assert blocked == f'event: ping\ndata: {{"cursor":"{AT}","blocked":true}}\n\n'.encode()
        said = "^`ping` events are visible to SDK clients: choose them with dialect `native` only$"
        with pytest.raises(ValueError, match=said):
            encoder(heartbeat="ping")

    def test_a_bye_has_no_id_and_no_frame(self) -> None:
        assert encoder().bye(AT, "rotate") == f": bye {AT} rotate\n".encode()
        lines = encoder(own_ids=True).bye(AT, "rotate").split(b"\n")
        assert [lines[0], *lines[2:]] == [
            b"event: bye", f'data: {{"cursor":"{AT}","reason":"rotate"}}'.encode(), b"", b"",
        ]  # fmt: skip

    def test_a_bye_to_an_event_source_says_when_to_come_back_and_not_to_all_of_them_the_same(self) -> None:
        """A server that goes away says it to every reader at once."""
        times = [SseDecoder().feed(encoder(own_ids=True).bye(AT, "shutdown"))[0].retry for _ in range(200)]
        assert all(time is not None and 1000 <= time < 3000 for time in times)
        assert len(set(times)) > 100

    @pytest.mark.parametrize("bad", ["\n", "\r", "\0", "a\nid: 1", "a\r\ndata: x"])
    def test_no_field_can_begin_another(self, bad: str) -> None:
        for field, made in (
            ("event", Frame(1, 7, 1, b"x", bad)),
            ("id", Frame(1, 7, 1, b"x", None, None, bad.encode())),
            ("comment", Frame(1, 7, 1, b"x", None, "complete", bad.encode())),
        ):
            with pytest.raises(FieldRefused) as caught:
                encoder().frame(made)
            assert caught.value.field == field
        with pytest.raises(FieldRefused) as caught:
            encoder().bye(AT, bad)
        assert caught.value.field == "comment"

    @pytest.mark.parametrize("bad", [b"a\rb", b"a\0b"])
    def test_data_holds_no_cr_and_no_nul(self, bad: bytes) -> None:
        with pytest.raises(FieldRefused) as caught:
            encoder().frame(Frame(1, 7, 1, bad))
        assert caught.value.field == "data"

    def test_settings_that_do_not_exist_are_refused(self) -> None:
        options: Any
        for options, said in (
            ({"ids": "ids"}, "^ids is one of 'id', 'comment', not 'ids'$"),
            ({"heartbeat": "none"}, "^heartbeat is one of 'comment', 'padded', 'ping', not 'none'$"),
        ):
            with pytest.raises(ValueError, match=said):
                Sse(**options)


class TestReader:
    def test_both_places_of_the_cursor_are_read_and_the_comment_wins(self) -> None:
        data = b"id: a\ndata: 1\n\n: sg b\ndata: 2\n\nid: c\n: sg d e\nevent: n\ndata: 3\n\ndata: 4\n\n"
        for chunks in chunkings(data):
            assert records(chunks) == [
                frame(b"a", None, b"1"),
                frame(b"b", None, b"2"),
                frame(b"d e", "n", b"3"),
                frame(None, None, b"4"),
            ]

    def test_an_event_named_message_is_unnamed(self) -> None:
        assert records([b"event: message\ndata: x\n\nevent:\ndata: y\n\n"]) == [
            frame(None, None, b"x"),
            frame(None, None, b"y"),
        ]

    def test_our_comments_are_records_and_others_are_not(self) -> None:
        data = f": streamguard 1 {ZERO}\n: hb {AT} blocked\n: bye {AT} rotate\n".encode()
        foreign = b":\n: ping\n: streamguard 2 x\n:hbx\n: sgx y\n: byebye\n\n"
        for chunks in chunkings(data + foreign):
            assert records(chunks) == [
                ("opening", str(ZERO).encode(), None, b"", None, "", False),
                ("beat", f"{AT} blocked".encode(), None, b"", None, "", False),
                ("bye", str(AT).encode(), None, b"", None, "rotate", False),
            ]

    def test_the_reason_of_a_bye_is_all_that_follows_its_cursor(self) -> None:
        assert [(record[1], record[5]) for record in records([b": bye c two words\n: bye c\n"])] == [
            (b"c", "two words"), (b"c", ""),
        ]  # fmt: skip

    def test_a_setting_hands_its_reader_what_the_dialect_says_of_ids(self) -> None:
        opened = f"event: open\nid: {ZERO}\ndata: x\n\n".encode()
        for own_ids, kind in ((False, "frame"), (True, "opening"), (None, "opening")):
            assert [record.kind for record in Sse().reader(own_ids=own_ids).feed(opened)] == [kind]

    def test_a_terminal_without_a_marker_is_a_frame_without_data(self) -> None:
        data = f"data: x\n\n: end {AT}.complete\n".encode()
        for chunks in chunkings(data):
            assert records(chunks) == [frame(None, None, b"x"), frame(f"{AT}.complete".encode(), None, b"")]

    def test_a_summary_belongs_to_its_block(self) -> None:
        data = f": end 0000000a {{}}\n: sg {AT}.complete\ndata: [DONE]\n\ndata: x\n\n".encode()
        for chunks in chunkings(data):
            assert records(chunks) == [
                frame(f"{AT}.complete".encode(), None, b"[DONE]", "0000000a {}"),
                frame(None, None, b"x"),
            ]

    @pytest.mark.parametrize("own_ids", [True, None])
    def test_in_native_open_bye_and_ping_are_no_frames(self, own_ids: bool | None) -> None:
        made = SseEncoder(ZERO, ids="id", own_ids=True, beat="ping")
        data = made.opening() + made.frame(TEXT) + made.heartbeat(AT) + made.bye(AT, "rotate")
        for chunks in chunkings(data):
            assert records(chunks, own_ids) == [
                ("opening", str(ZERO).encode(), None, b"", None, "", False),
                ("opening", str(ZERO).encode(), "open", b"", None, "", False),
                frame(str(AT).encode(), None, b'"Hello"'),
                ("beat", str(AT).encode(), None, b"", None, "", False),
                ("bye", str(AT).encode(), None, b"", None, "rotate", False),
            ]

    def test_elsewhere_events_of_these_names_are_the_sources_own(self) -> None:
        data = (
            f"event: open\nid: 7\ndata: x\n\nevent: ping\nid: {ZERO}\ndata: {{}}\n\nevent: open\ndata: y\n\n".encode()
        )
        for own_ids in (False, None):
            assert records([data], own_ids) == [
                frame(b"7", "open", b"x"),
                frame(str(ZERO).encode(), "ping", b"{}"),
                frame(None, "open", b"y"),
            ]
        opened = f"event: open\nid: {ZERO}\ndata: x\n\n".encode()
        assert [kind for kind, *_ in records([opened], False)] == ["frame"]
        assert [kind for kind, *_ in records([opened], None)] == ["opening"]

    @pytest.mark.parametrize(
        ("data", "cursor"),
        [
            (b"{}", b"None"),
            (b"[1]", b"None"),
            (b"{", b"None"),
            (b"[" * 100_000, b"None"),
            (b'{"cursor":"\\ud800"}', b"?"),
        ],
    )
    def test_a_ping_or_bye_that_cannot_be_read_is_one_all_the_same(self, data: bytes, cursor: bytes) -> None:
        assert records([b"event: ping\ndata: " + data + b"\n\n"], True) == [
            ("beat", cursor, None, b"", None, "", False)
        ]
        assert records([b"event: bye\ndata: " + data + b"\n\n"], True) == [("bye", cursor, None, b"", None, "", False)]

    @pytest.mark.parametrize("lines", [b"id: a\ndata: x\n", b"id: a\ndata: x", b": sg a\nevent: n\ndata: x", b": hb a"])
    def test_a_record_whose_end_is_missing_is_marked(self, lines: bytes) -> None:
        for chunks in chunkings(lines):
            (record,) = records(chunks)
            assert record[-1] is True
        assert [record[-1] for record in records([b"data: a\n\n" + lines])] == [False, True]

    def test_an_end_may_be_told_twice(self) -> None:
        reader = SseReader(own_ids=False)
        reader.feed(b"data: a\n\n")
        reader.feed(b"id: a\ndata: x")
        assert [record.data for record in reader.end()] == [b"x"]
        assert reader.end() == []
        assert [record.data for record in reader.feed(b"data: y\n\n")] == [b"y"]  # nothing is left in between

    def test_frames_of_text_are_read_the_same_whether_one_or_many_come_in_a_chunk(self) -> None:
        first, rest = b"data: first\n\n", b"id: a\ndata: 1\n\n: sg b\ndata: \xff\n\nid: c\ndata: \n\n"
        expected = [
            frame(None, None, b"first"),
            frame(b"a", None, b"1"),
            frame(b"b", None, b"\xff"),
            frame(b"c", None, b""),
        ]
        for chunks in chunkings(rest):
            assert records([first, *chunks]) == expected
        assert records([first, rest[:28], rest[28:]]) == expected
        assert records([first, rest + b"event: e\ndata: x\n\n"]) == [*expected, frame(None, "e", b"x")]

    def test_the_beginning_of_a_small_frame_waits_and_a_large_one_is_not_copied(self) -> None:
        reader = SseReader(own_ids=False)
        assert reader.feed(b"data: first\n\n") != []  # until then a byte-order mark may come
        assert reader.feed(b"id: a\ndata: " + b"x" * 2035) == []
        assert (len(reader._waiting), reader._line) == (2047, [])
        assert reader.feed(b"x") == []
        assert (reader._waiting, len(reader._line)) == (b"", 1)
        assert [facts(record) for record in reader.feed(b"\n\n")] == [frame(b"a", None, b"x" * 2036)]

    def test_frames_of_text_take_the_short_way_only(self) -> None:
        frames = b"id: a\ndata: 1\n\n: sg b\ndata: 2\n\nid: c\ndata: 3\n\n"
        reader = SseReader(own_ids=False, max_frame=len(frames))
        assert reader.feed(b"data: first\n\n") != []  # until then a byte-order mark may come
        reader._lines = None  # type: ignore[assignment,method-assign]  # the line decoder's
        for chunks in ([frames], [frames[:20], frames[20:]]):
            assert [record.data for chunk in chunks for record in reader.feed(chunk)] == [b"1", b"2", b"3"]

    def test_a_byte_order_mark_after_the_first_frame_is_none(self) -> None:
        marked = b"\xef\xbb\xbfdata: x\n\n"
        for chunks in ([b"id: a\ndata: 1\n\n", marked], [b"id: a\ndata: 1\n\n" + marked]):
            assert records(chunks) == [frame(b"a", None, b"1")]

    def test_a_cr_ends_a_line_in_frames_of_text_too(self) -> None:
        for lines, data in ((b"id: a\r\ndata: x\n\n", b"x"), (b"id: a\ndata: x\rdata: y\n\n", b"x\ny")):
            assert records([b"data: first\n\n", lines])[1:] == [frame(b"a", None, data)]

    def test_a_frame_above_the_limit_is_refused_with_its_size_after_the_good_ones(self) -> None:
        good = b"id: a\ndata: y\n\n"
        large = b"id: b\ndata: " + b"x" * 3000 + b"\n\n"
        for chunks in chunkings(good + good + large + good):
            reader = SseReader(own_ids=False, max_frame=2500)
            read: list[Received] = []
            with pytest.raises(FrameTooLarge) as caught:
                for chunk in chunks:
                    read += reader.feed(chunk)
                reader.feed(b"")
            assert [record.data for record in read] == [b"y", b"y"]
            assert (caught.value.size, caught.value.limit) == (3000, 2500)
            with pytest.raises(FrameTooLarge):
                reader.end()

    def test_a_large_frame_alone_is_refused_at_once(self) -> None:
        reader = SseReader(own_ids=False, max_frame=2500)
        reader.feed(b"data: first\n\n")
        with pytest.raises(FrameTooLarge) as caught:
            reader.feed(b"data: " + b"x" * 4000)
        assert (caught.value.size, caught.value.limit) == (4006, 2500)

    def test_the_limit_is_on_the_data_to_the_byte(self) -> None:
        for chunks in chunkings(b"data: y\n\nid: a\ndata: " + b"x" * 2500 + b"\n\n"):
            assert [len(record[3]) for record in records(chunks, max_frame=2500)] == [1, 2500]
        for chunks in chunkings(b"data: y\n\nid: a\ndata: " + b"x" * 2501 + b"\n\n"):
            reader = SseReader(own_ids=False, max_frame=2500)
            with pytest.raises(FrameTooLarge) as caught:
                for chunk in [*chunks, b""]:
                    reader.feed(chunk)
            assert (caught.value.size, caught.value.limit) == (2501, 2500)

    def test_the_limit_holds_for_a_whole_frame_of_text_in_one_chunk(self) -> None:
        reader = SseReader(own_ids=False, max_frame=2500)
        reader.feed(b"data: first\n\n")
        assert [len(record.data) for record in reader.feed(b"id: a\ndata: " + b"x" * 2500 + b"\n\n")] == [2500]
        with pytest.raises(FrameTooLarge) as caught:
            reader.feed(b"id: a\ndata: " + b"x" * 2501 + b"\n\n")
        assert (caught.value.size, caught.value.limit) == (2501, 2500)


LINES = st.sampled_from(
    [
        *(
            "id: a",
            "id: b\0",
            "id:c",
            ": sg d",
            ": sg",
            "data: x",
            "data: \xe9",
            "data:y",
            "data",
            "event: e",
            ": end q",
        ),
        *("data: \0", ": hb h", "retry: 1", "x: y", "", "", "", "\ufeffdata: z", "id: \u2028", "data: " + "l" * 3000),
        *("id: a\ndata: x\n", ": sg b\ndata: \xe9\n", "id: a\0\ndata: x\n", "id: a\ndata: x\0\n", "id: a\ndata: x"),
        *("id: a\ndata: " + "l" * 3000 + "\n", "id: a\ndata: x\n", "id: b\ndata: y\n", "id: a\nevent: e\ndata: x\n"),
        *("id: \ndata: x\n", ": sg  \ndata: \n"),
    ]
)
BREAKS = st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"])


@st.composite
def anybodys_bytes(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.tuples(LINES, BREAKS), max_size=24))
    return "".join([line + end for line, end in lines]).encode()


@given(anybodys_bytes(), st.lists(st.integers(0, 4000), max_size=6))
def test_the_short_way_through_reads_the_same_as_the_line_decoder_in_any_chunking(data: bytes, cuts: list[int]) -> None:
    by_line = SseReader(own_ids=False)
    expected = [facts(record) for record in Blocks.feed(by_line, data) + by_line.end()]
    edges = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    for chunks in ([data], [data[a:b] for a, b in pairwise(edges)], [bytes([b]) for b in data]):
        assert records([b"\n", *chunks]) == expected or data.startswith(b"\xef\xbb\xbf")


@given(anybodys_bytes())
def test_the_reader_and_the_conforming_decoder_see_the_same_events(data: bytes) -> None:
    events = SseDecoder(lenient=True)
    decoded = events.feed(data) + events.end()
    read = [record for record in records([data]) if record[0] == "frame"]
    assert [(event.data, event.event) for event in decoded] == [
        (data.decode("utf-8", "replace"), name or "message") for _, _, name, data, *_ in read
    ]
