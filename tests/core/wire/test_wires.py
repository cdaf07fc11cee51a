"""Which carrier: by name, by content type; and the same stream in each of them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from streamguard.core.cursor import cursor_zero
from streamguard.core.dialect import Native
from streamguard.core.errors import FieldRefused
from streamguard.core.frame import Frame
from streamguard.core.framing import MAX_BLOCK
from streamguard.core.items import Block
from streamguard.core.receipt import Verdict
from streamguard.core.wire import MAX_FRAME, Binary, Ndjson, Plain, Sse, Wire, wire_for_content_type, wire_named
from tests.core.wire.streams import SID, read, written


@pytest.mark.parametrize(("name", "kind"), [("sse", Sse), ("ndjson", Ndjson), ("binary", Binary), ("plain", Plain)])
def test_a_carrier_has_a_name_and_a_content_type(name: str, kind: type[Wire]) -> None:
    wire = wire_named(name)
    assert type(wire) is kind
    assert wire.name == name
    assert wire_for_content_type(wire.content_type) is wire
    assert wire_for_content_type(f" {wire.content_type.partition(';')[0].upper()} ; a=b") is wire


def test_a_setting_is_returned_as_it_is() -> None:
    wire = Sse(ids="id")
    assert wire_named(wire) is wire


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown carrier 'xml'; known: sse, ndjson, binary, plain"):
        wire_named("xml")
    assert wire_for_content_type("application/json") is wire_for_content_type("") is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Sse, "wire is the class Sse: give an instance, Sse()"),
        (7, "wire is 'sse', 'ndjson', 'binary', 'plain', or an instance such as Sse(), not 7"),
        (None, "wire is 'sse', 'ndjson', 'binary', 'plain', or an instance such as Sse(), not None"),
        (Native(), "wire is 'sse', 'ndjson', 'binary', 'plain', or an instance such as Sse(), not Native()"),
    ],
)
def test_what_is_no_carrier_is_refused_with_what_is_one(wrong: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        wire_named(wrong)


@pytest.mark.parametrize("wire", [Sse(), Sse(ids="id"), Ndjson(), Binary(), Plain()], ids=repr)
@pytest.mark.parametrize("crc", [0, 0xABC, 0x0FFFFFFF, 0x10000000, 0xFFFFFFFF])
def test_the_hot_path_writes_what_any_frame_would_be(wire: Wire, crc: int) -> None:
    encoder = wire.encoder(cursor_zero(SID), own_ids=False)
    for data in (b"", b'"x"', b"a\nb"):
        assert encoder.text((12, 345, crc, data)) == encoder.frame(Frame(12, 345, crc, data))


@pytest.mark.parametrize("wire", [Sse(), Sse(ids="id"), Ndjson(), Binary(), Plain()], ids=repr)
@pytest.mark.parametrize("data", [b'"x"', b"a\nb"])
def test_several_texts_are_written_one_after_the_other(wire: Wire, data: bytes) -> None:
    encoder = wire.encoder(cursor_zero(SID), own_ids=False)
    checksums = [0, 0xABC, 0x0FFFFFFF, 0x10000000, 0xFFFFFFFF]
    rows = [(seq, 10 * seq, crc, data if seq == 3 else b'"%d"' % seq) for seq, crc in enumerate(checksums, 1)]
    for some in (rows, rows[:2], rows[2:3], rows[3:4]):
        assert encoder.texts(some) == b"".join([encoder.frame(Frame(*row)) for row in some])


@pytest.mark.parametrize("data", [b"a\rb", b"a\0b"])
def test_the_hot_path_refuses_what_would_end_a_field(data: bytes) -> None:
    with pytest.raises(FieldRefused):
        Sse().encoder(cursor_zero(SID), own_ids=True).text((1, 3, 0, data))


@pytest.mark.parametrize("wire", [Sse(), Ndjson(), Binary()], ids=lambda wire: wire.name)
@pytest.mark.parametrize("fill", ["x", "\u0085", '"'], ids=["plain", "escaped", "quoted"])
def test_the_largest_block_that_is_written_is_read_by_the_default_reader(wire: Wire, fill: str) -> None:
    room = MAX_BLOCK - len('{"type":"image","data":""}')
    each = {"x": 1, "\u0085": 6, '"': 2}[fill]
    assert MAX_FRAME == MAX_BLOCK
    block = Block("image", {"data": fill * (room // each) + "x" * (room % each)})
    answer = read(written([block], Native(), wire), wire=wire, dialect="native")
    assert answer.verdict is Verdict.COMPLETE
    assert answer.frames[0].item == block
    assert len(answer.frames[0].raw) == MAX_BLOCK


@pytest.mark.parametrize("data", [b"\r", b"a\0"])
def test_one_of_several_texts_that_has_no_place_on_the_wire_refuses_them_all(data: bytes) -> None:
    encoder = Sse().encoder(cursor_zero(SID), own_ids=False)
    with pytest.raises(FieldRefused):
        encoder.texts([(1, 3, 0, b'"a"'), (2, 3 + len(data), 0, data)])
