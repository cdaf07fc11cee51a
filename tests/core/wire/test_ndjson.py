"""The carrier `ndjson`: what is written to the byte, and what is made of every line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import FieldRefused, FrameTooLarge, WireError
from streamguard.core.frame import Frame
from streamguard.core.wire.base import Received
from streamguard.core.wire.ndjson import Ndjson, NdjsonReader
from tests.core.wire.streams import SID, chunkings

ZERO = cursor_zero(SID)
AT = Cursor(SID, 1, 7, 0xABC)
ENCODER = Ndjson().encoder(ZERO, own_ids=True)


def facts(record: Received) -> tuple[Any, ...]:
    fields = (record.cursor, record.name, record.data, record.extra, record.reason, record.partial)
    return record.kind, *fields


def records(chunks: list[bytes]) -> list[tuple[Any, ...]]:
    reader = Ndjson().reader(own_ids=None)
    return [facts(record) for chunk in chunks for record in reader.feed(chunk)] + [facts(r) for r in reader.end()]


class TestEncoder:
    def test_every_line_is_one_object(self) -> None:
        assert ENCODER.opening(resume="/s") == f'{{"open":"{ZERO}"}}\n'.encode()
        assert ENCODER.frame(Frame(1, 7, 0xABC, b'"He"')) == f'{{"id":"{AT}","data":"\\"He\\""}}\n'.encode()
        assert ENCODER.heartbeat(AT) == f'{{"hb":"{AT}"}}\n'.encode()
        assert ENCODER.heartbeat(AT, blocked=True) == f'{{"hb":"{AT}","blocked":true}}\n'.encode()
        assert ENCODER.bye(AT, "ro\ntate") == f'{{"bye":"{AT}","reason":"ro\\ntate"}}\n'.encode()

    def test_a_named_frame_a_terminal_and_an_own_id_have_their_keys(self) -> None:
        assert ENCODER.frame(Frame(1, 7, 0xABC, b"x", "block")) == (
            f'{{"id":"{AT}","event":"block","data":"x"}}\n'.encode()
        )
        assert ENCODER.frame(Frame(1, 7, 0xABC, b"x", None, "complete", b'0a {"a":1}')) == (
            f'{{"id":"{AT}.complete","data":"x","end":"0a {{\\"a\\":1}}"}}\n'.encode()
        )
        assert ENCODER.frame(Frame(1, 7, 0xABC, b"x", None, None, b"17")) == (
            f'{{"id":"{AT}","data":"x","own":"17"}}\n'.encode()
        )
        assert (
            ENCODER.frame(Frame(1, 7, 0xABC, b"", None, "complete")) == f'{{"id":"{AT}.complete","data":""}}\n'.encode()
        )

    @pytest.mark.parametrize("bad", ["a\nb", "a\rb"])
    def test_a_name_of_two_lines_is_refused(self, bad: str) -> None:
        with pytest.raises(FieldRefused) as caught:
            ENCODER.frame(Frame(1, 7, 0xABC, b"x", bad))
        assert caught.value.field == "event"


class TestReader:
    def test_every_record_is_read_back(self) -> None:
        data = (
            ENCODER.opening()
            + ENCODER.frame(Frame(1, 7, 0xABC, "é\u2028\0".encode(), "block"))
            + b"\n \t\r\n"
            + ENCODER.heartbeat(AT, blocked=True)
            + ENCODER.frame(Frame(1, 7, 0xABC, b"x", None, "complete", b"0a {}"))
            + ENCODER.frame(Frame(1, 7, 0xABC, b"y", None, None, b"17"))
            + ENCODER.bye(AT, "rotate")
        )
        for chunks in chunkings(data):
            assert records(chunks) == [
                ("opening", str(ZERO).encode(), None, b"", None, "", False),
                ("frame", str(AT).encode(), "block", "é\u2028\0".encode(), None, "", False),
                ("beat", str(AT).encode(), None, b"", None, "", False),
                ("frame", f"{AT}.complete".encode(), None, b"x", "0a {}", "", False),
                ("frame", str(AT).encode(), None, b"y", None, "", False),
                ("bye", str(AT).encode(), None, b"", None, "rotate", False),
            ]

    def test_absent_keys_are_absent(self) -> None:
        assert records([b'{"data":"x"}\n{"data":"","event":""}\n{"bye":"c"}\n']) == [
            ("frame", None, None, b"x", None, "", False),
            ("frame", None, None, b"", None, "", False),
            ("bye", b"c", None, b"", None, "", False),
        ]

    @pytest.mark.parametrize(
        "line",
        [b"x", b"[]", b'"data"', b"{}", b'{"data":1}', b'{"data":null}', b'{"id":"a"}', b'{"data":"x","id":[]}',
         b'{"other":"x"}', b'{"blocked":true}', b"\xff", b"[" * 100_000, b'{"data":"a\xff"}', b'{"data":"x"} 1'],
    )  # fmt: skip
    def test_a_line_that_is_no_record_is_an_error_after_the_good_ones(self, line: bytes) -> None:
        for chunks in (
            [b'{"data":"a"}\n' + line + b'\n{"data":"b"}\n'],
            [b'{"data":"a"}\n', line, b"\n", b'{"data":"b"}\n'],
        ):
            reader = NdjsonReader()
            read = []
            with pytest.raises(WireError, match="no record of this carrier"):
                for chunk in chunks:
                    read += reader.feed(chunk)
                reader.feed(b"")
            assert [record.data for record in read] == [b"a"]
            for later in (lambda r=reader: r.feed(b'{"data":"c"}\n'), reader.end):
                with pytest.raises(WireError):
                    later()

    def test_the_message_shows_only_the_beginning_of_a_bad_line(self) -> None:
        with pytest.raises(WireError) as caught:
            NdjsonReader().feed(b"y" * 200 + b"\n")
        assert str(caught.value) == f"a line that is no record of this carrier: {b'y' * 80!r}"
        odd = b'{"other":"' + b"y" * 100 + b'"}'
        with pytest.raises(WireError) as caught:
            NdjsonReader().feed(odd + b"\n")
        assert str(caught.value) == f"a line that is no record of this carrier: {odd[:80]!r}"

    def test_a_lone_surrogate_becomes_a_question_mark(self) -> None:
        assert records([b'{"data":"a\\ud800","id":"\\udfff"}\n'])[0][:4] == ("frame", b"?", None, b"a?")
        assert records([b'{"event":"\\ud800","data":"a"}\n'])[0][:4] == ("frame", None, "?", b"a")

    @pytest.mark.parametrize(
        ("rest", "read"),
        [(b'{"data":"x"}', 1), (b'{"hb":"x"}', 1), (b'{"data":"x"', 0), (b"  ", 0), (b"{}", 0), (b"", 0)],
    )
    def test_a_last_line_without_its_end_is_marked_or_dropped(self, rest: bytes, read: int) -> None:
        for chunks in chunkings(b'{"data":"a"}\n' + rest):
            found = records(chunks)
            assert [record[-1] for record in found] == [False] + [True] * read

    def test_the_limit_is_on_the_data_to_the_byte(self) -> None:
        for text, size in ((b"x", 1), (b"\\u0001", 1), ("é".encode(), 2), (b"\\u2028", 3)):
            for count in (3000 // size, 3000 // size + 1):
                for chunks in chunkings(b'{"data":"%b"}\n' % (text * count)):
                    reader = NdjsonReader(3000)
                    if count * size <= 3000:
                        assert [len(r.data) for chunk in chunks for r in reader.feed(chunk)] == [count * size]
                        continue
                    with pytest.raises(FrameTooLarge) as caught:
                        for chunk in chunks:
                            reader.feed(chunk)
                    assert (caught.value.size, caught.value.limit) == (count * size, 3000)

    def test_a_line_without_an_end_is_bounded(self) -> None:
        reader = NdjsonReader(100)
        reader.feed(b"x" * (6 * 100 + 4096))
        with pytest.raises(FrameTooLarge) as caught:
            reader.feed(b"x")
        assert (caught.value.size, caught.value.limit) == (4697, 100)
        with pytest.raises(FrameTooLarge):
            reader.end()

    def test_a_whole_line_has_the_same_bound(self) -> None:
        line = b'{"data":"x"}'.ljust(6 * 100 + 4096)
        assert [record.data for record in NdjsonReader(100).feed(line + b"\n")] == [b"x"]
        with pytest.raises(FrameTooLarge) as caught:
            NdjsonReader(100).feed(line + b" \n")
        assert (caught.value.size, caught.value.limit) == (4697, 100)

    def test_lines_that_ended_do_not_count_with_the_next(self) -> None:
        reader = NdjsonReader(100)
        reader.feed(b'{"da')
        assert len(reader.feed(b'ta":"x"}\n' + b"x" * (6 * 100 + 4096))) == 1
        with pytest.raises(FrameTooLarge):
            reader.feed(b"x")
        reader = NdjsonReader(100)
        reader.feed(b'{"da')
        assert len(reader.feed(b'ta":"x"}\n')) == 1
        assert reader.feed(b"x" * (6 * 100 + 4096)) == []  # which the line before would have raised at once
        reader = NdjsonReader(100)
        for _ in range(20):
            assert len(reader.feed(b'"x"}\n{"data":' if reader._parts else b'{"data":"x"}\n{"data":')) == 1

    def test_a_line_of_600_kb_in_pieces_is_never_copied_before_its_end(self) -> None:
        reader = NdjsonReader()
        chunks = [b'{"data":"' + b"x" * 7991, *[bytes([97 + at % 26]) * 8000 for at in range(74)]]
        for chunk in chunks:
            assert reader.feed(chunk) == []
        assert [id(part) for part in reader._parts] == [id(chunk) for chunk in chunks]
        (record,) = reader.feed(b'"}\n')
        assert len(record.data) == 599_991
        assert reader._parts == []

    def test_the_default_limit_is_sixteen_mebibytes(self) -> None:
        assert NdjsonReader().max_frame == Ndjson().reader(own_ids=None).max_frame == 16 * 1024 * 1024


@given(st.text().map(lambda text: text.encode("utf-8", "replace").decode()), st.integers(0, 99))
def test_any_data_is_read_back_in_any_chunking(text: str, seed: int) -> None:
    data = ENCODER.frame(Frame(1, 7, 0xABC, text.encode()))
    assert data.count(b"\n") == 1
    for chunks in chunkings(data, seed):
        assert records(chunks) == [("frame", str(AT).encode(), None, text.encode(), None, "", False)]
