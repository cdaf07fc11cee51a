"""What a WebSocket carries is what the carrier carries, record by record, and its last message says how it ended."""

from __future__ import annotations

import pytest

from streamguard.core.cursor import chain, cursor_zero
from streamguard.core.frame import Frame
from streamguard.core.wire import Binary, Ndjson, Wire
from streamguard.core.wire.messages import messages, parting_word

ZERO = cursor_zero("A" * 22)
CARRIERS = [pytest.param(Ndjson(), False, id="ndjson"), pytest.param(Binary(), True, id="binary")]


def frame(data: bytes, status: str | None = None, extra: bytes | None = None) -> Frame:
    return Frame(1, len(data), chain(ZERO.crc, "end" if status else None, status, data), data, "end", status, extra)


def written(wire: Wire) -> list[bytes]:
    encoder = wire.encoder(ZERO, own_ids=False)
    return [
        encoder.opening(),
        encoder.frame(Frame(1, 4, 7, b'"a\\n"')),
        encoder.frame(Frame(2, 4, 7, b"", "block")),
        encoder.heartbeat(ZERO),
        encoder.heartbeat(ZERO, blocked=True),
        encoder.frame(frame(b"{}", "failed", b'{"status":"failed"}')),
        encoder.frame(frame(b"{}", "complete")),
        encoder.bye(ZERO, "rotate"),
    ]


@pytest.mark.parametrize(("wire", "binary"), CARRIERS)
def test_a_carriers_bytes_are_taken_apart_into_its_records(wire: Wire, binary: bool) -> None:
    records = written(wire)
    found = messages(b"".join(records), binary=binary)
    assert found == [record.removesuffix(b"\n") if not binary else record for record in records]
    assert messages(b"", binary=binary) == []


@pytest.mark.parametrize(("wire", "binary"), CARRIERS)
def test_the_last_message_says_how_a_connection_ended(wire: Wire, binary: bool) -> None:
    words = [parting_word(record, binary=binary) for record in written(wire)]
    assert words == [("", "")] * 5 + [("end", "failed"), ("end", "complete"), ("bye", "rotate")]


@pytest.mark.parametrize(("wire", "binary"), CARRIERS)
def test_messages_are_read_by_the_carriers_reader(wire: Wire, binary: bool) -> None:
    reader = wire.reader(own_ids=False)
    kinds = []
    for message in messages(b"".join(written(wire)), binary=binary):
        kinds += [record.kind for record in reader.feed(message if binary else message + b"\n")]
    assert kinds == ["opening", "frame", "frame", "beat", "beat", "frame", "frame", "bye"]
