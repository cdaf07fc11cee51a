"""The carrier `plain`: the data of frames and nothing else."""

from __future__ import annotations

from streamguard.core.cursor import cursor_zero
from streamguard.core.frame import Frame
from streamguard.core.wire.plain import Plain
from tests.core.wire.streams import SID, chunkings

ZERO = cursor_zero(SID)


def test_nothing_but_data_is_written() -> None:
    encoder = Plain().encoder(ZERO, own_ids=False)
    assert encoder.opening(resume="/s") == encoder.heartbeat(ZERO, blocked=True) == encoder.bye(ZERO, "rotate") == b""
    assert encoder.frame(Frame(1, 3, 0, "é\n".encode())) == "é\n".encode()


def test_text_is_read_back_in_any_chunking() -> None:
    for chunks in chunkings("é\r\n你好 👍".encode()):
        reader = Plain().reader(own_ids=None)
        records = [record for chunk in chunks for record in reader.feed(chunk)] + reader.end()
        assert "".join([record.data.decode() for record in records]) == "é\r\n你好 👍"
        assert all(record.data and record.kind == "frame" and record.cursor is None for record in records)


def test_a_cut_character_becomes_one_replacement_character_at_the_end() -> None:
    reader = Plain().reader(own_ids=None)
    assert [record.data for record in reader.feed(b"a\xf0\x9f\x91")] == [b"a"]
    assert [record.data for record in reader.end()] == ["\ufffd".encode()]
    assert Plain().reader(own_ids=None).end() == []
