"""The binary carrier: records to the byte, lengths that are checked before they are believed."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import FieldRefused, FrameTooLarge, WireError
from streamguard.core.frame import Frame
from streamguard.core.states import FINAL_STATUSES
from streamguard.core.wire.base import Received
from streamguard.core.wire.binary import MAGIC, Binary, BinaryReader
from tests.core.wire.streams import SID, chunkings

ZERO = cursor_zero(SID)
AT = Cursor(SID, 1, 7, 0xABC)
ENCODER = Binary().encoder(ZERO, own_ids=True)
OPENING = MAGIC + SID.encode()


def facts(record: Received) -> tuple[Any, ...]:
    fields = (record.cursor, record.name, record.data, record.extra, record.reason, record.partial)
    return record.kind, *fields


def records(chunks: list[bytes]) -> list[tuple[Any, ...]]:
    reader = Binary().reader(own_ids=None)
    return [facts(record) for chunk in chunks for record in reader.feed(chunk)] + [facts(r) for r in reader.end()]


def record(
    kind: int = 0, name: bytes = b"", status: int = 0, data: bytes = b"x", crc: int = 0xABC, flip: int = 0
) -> bytes:
    """A record put together by the format's own description."""
    header = struct.pack(">BQQB", kind, 1, 7, len(name)) + name + struct.pack(">BI", status, len(data))
    return header + struct.pack(">I", crc32(header) ^ flip) + data + struct.pack(">I", crc)


class TestEncoder:
    def test_the_opening_is_the_magic_and_the_sid(self) -> None:
        assert ENCODER.opening(resume="/s") == b"SG\x01" + SID.encode()

    def test_records_are_what_the_format_says(self) -> None:
        assert ENCODER.frame(Frame(1, 7, 0xABC, b"x")) == record()
        assert ENCODER.frame(Frame(1, 7, 0xABC, b"x", "block")) == record(name=b"block")
        assert ENCODER.frame(Frame(1, 7, 0xABC, b"x", None, None, b"own")) == record()
        assert ENCODER.heartbeat(AT) == record(1, data=b"")
        assert ENCODER.heartbeat(AT, blocked=True) == record(1, b"blocked", data=b"")
        assert ENCODER.bye(AT, "rotate") == record(2, b"rotate", data=b"")

    @pytest.mark.parametrize(("status", "code"), list(zip(FINAL_STATUSES, range(1, 7), strict=True)))
    def test_a_terminal_has_its_statuss_number_and_its_summary_last(self, status: str, code: int) -> None:
        assert ENCODER.frame(Frame(1, 7, 0xABC, b"x", "end", status)) == record(0, b"end", code) + b"\0\0\0\0"
        assert (
            ENCODER.frame(Frame(1, 7, 0xABC, b"x", None, status, b"0a {}")) == record(status=code) + b"\0\0\0\x050a {}"
        )

    def test_a_name_is_at_most_255_bytes(self) -> None:
        assert records([OPENING + ENCODER.frame(Frame(1, 7, 0xABC, b"x", "é" * 127 + "x"))])[1][2] == "é" * 127 + "x"
        with pytest.raises(FieldRefused) as caught:
            ENCODER.frame(Frame(1, 7, 0xABC, b"x", "é" * 128))
        assert caught.value.field == "event"


class TestReader:
    def test_every_record_is_read_back(self) -> None:
        data = (
            ENCODER.opening()
            + ENCODER.frame(Frame(1, 7, 0xABC, b"\0\xff", "block"))
            + ENCODER.heartbeat(AT, blocked=True)
            + ENCODER.frame(Frame(1, 7, 0xABC, b""))
            + ENCODER.bye(AT, "rotate")
            + ENCODER.frame(Frame(1, 7, 0xABC, b"x", None, "complete", b"0a {}"))
            + ENCODER.frame(Frame(1, 7, 0xABC, b"y", "end", "shutdown"))
        )
        at = str(AT).encode()
        for chunks in chunkings(data):
            assert records(chunks) == [
                ("opening", None, None, SID.encode(), None, "", False),
                ("frame", at, "block", b"\0\xff", None, "", False),
                ("beat", at, None, b"", None, "blocked", False),
                ("frame", at, None, b"", None, "", False),
                ("bye", at, None, b"", None, "rotate", False),
                ("frame", at + b".complete", None, b"x", "0a {}", "", False),
                ("frame", at + b".shutdown", "end", b"y", None, "", False),
            ]

    def test_half_a_record_is_never_handed_out(self) -> None:
        data = OPENING + record(name=b"block", status=1) + b"\0\0\0\x02{}"
        for size in range(len(data)):
            assert len(records([data[:size]])) == (size >= len(OPENING))
        assert len(records([data])) == 2

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            (record(flip=1), "^a record's header does not match its checksum$"),
            (record(kind=3), "^a record of unknown kind 3 or status 0$"),
            (record(status=7) + b"\0\0\0\0", "^a record of unknown kind 0 or status 7$"),
        ],
    )
    def test_a_record_that_cannot_be_is_an_error_after_the_good_ones(self, bad: bytes, message: str) -> None:
        for chunks in chunkings(OPENING + record() + bad + record()):
            reader = BinaryReader()
            read = []
            with pytest.raises(WireError, match=message):
                for chunk in chunks:
                    read += reader.feed(chunk)
                reader.feed(b"")
            assert [found.kind for found in read] == ["opening", "frame"]
            for later in (lambda r=reader: r.feed(record()), reader.end):
                with pytest.raises(WireError, match=message):
                    later()

    def test_another_format_is_refused_at_its_first_bytes(self) -> None:
        with pytest.raises(WireError) as caught:
            BinaryReader().feed(b"data: x\n\ndata: y\n\ndata: z\n\n")
        assert str(caught.value) == "not a streamguard binary stream: b'data: x\\n'"

    def test_a_length_above_the_limit_is_refused_with_both_sizes_before_its_data_comes(self) -> None:
        for chunks in chunkings(OPENING + record(data=b"x" * 100) + record(data=b"x" * 101)[:-100]):
            reader = BinaryReader(100)
            read = []
            with pytest.raises(FrameTooLarge) as caught:
                for chunk in chunks:
                    read += reader.feed(chunk)
                reader.feed(b"")
            assert [len(found.data) for found in read] == [22, 100]
            assert (caught.value.size, caught.value.limit) == (101, 100)

    def test_a_length_is_looked_at_as_soon_as_its_checksum_is_there(self) -> None:
        header = record(name=b"n", data=b"x" * 101)[: 18 + 1 + 5 + 4]
        reader = BinaryReader(100)
        assert len(reader.feed(OPENING + header[:-1])) == 1
        with pytest.raises(FrameTooLarge):
            reader.feed(header[-1:])

    def test_a_summary_above_the_limit_is_refused_too(self) -> None:
        assert len(BinaryReader(100).feed(OPENING + record(status=1) + b"\0\0\0\x64" + b"s" * 100)) == 2
        reader = BinaryReader(100)
        reader.feed(OPENING)
        with pytest.raises(FrameTooLarge) as caught:
            reader.feed(record(status=1) + b"\0\0\0\x65")
        assert (caught.value.size, caught.value.limit) == (101, 100)

    def test_a_record_of_600_kb_in_pieces_is_looked_at_a_bounded_number_of_times(self) -> None:
        reader = BinaryReader()
        looks = 0
        one = reader._one

        def counted(at: int) -> Any:
            nonlocal looks
            looks += 1
            return one(at)

        reader._one = counted  # type: ignore[method-assign]
        data = OPENING + record(name=b"block", status=1, data=b"x" * 600_000) + b"\0\0\0\x02{}"
        read = [found for at in range(0, len(data), 50) for found in reader.feed(data[at : at + 50])]
        assert [len(found.data) for found in read] == [22, 600_000]
        assert looks == 4  # the opening, a header of unknown length, all lengths, all of it
        assert len(reader._buffer) == 0

    def test_byte_by_byte_a_record_is_looked_at_once_for_each_length_it_holds(self) -> None:
        reader = BinaryReader()
        looks = []
        one = reader._one
        reader._one = lambda at: looks.append(len(reader._buffer)) or one(at)  # type: ignore[func-returns-value,method-assign]
        for byte in OPENING + record(name=b"n", status=1, data=b"xy") + b"\0\0\0\x02{}":
            reader.feed(bytes([byte]))
        assert looks == [25, 18, 28, 38, 40]  # opening, name's length, all but the summary's length, that, the end

    def test_what_was_read_is_dropped_from_the_buffer_once_a_feed(self) -> None:
        reader = BinaryReader()
        reader.feed(OPENING + record() * 100 + record()[:10])
        assert bytes(reader._buffer) == record()[:10]

    def test_the_default_limit_is_sixteen_mebibytes(self) -> None:
        assert BinaryReader().max_frame == Binary().reader(own_ids=None).max_frame == 16 * 1024 * 1024


@given(st.lists(st.tuples(st.binary(max_size=80), st.text("aé", max_size=9)), max_size=5), st.integers(0, 99))
def test_any_data_is_read_back_in_any_chunking(frames: list[tuple[bytes, str]], seed: int) -> None:
    data = OPENING + b"".join([ENCODER.frame(Frame(1, 7, 0xABC, data, name)) for data, name in frames])
    for chunks in chunkings(data, seed):
        assert records(chunks)[1:] == [
            ("frame", str(AT).encode(), name or None, data, None, "", False) for data, name in frames
        ]
