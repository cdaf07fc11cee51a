"""The binary carrier (`application/vnd.streamguard.v1`), both directions, length-checked.

    "SG" 0x01, 22 bytes of sid, then records, big-endian:

    u8 kind (0 frame, 1 heartbeat, 2 bye)   u64 seq   u64 offset
    u8 name length, name                    u8 status   u32 data length
    u32 CRC-32 of the header so far         data        u32 chained CRC
    in a terminal: u32 length, extra

The header's own CRC is checked before its length is believed: a flipped bit in a length would make
a reader wait for data that never comes. A heartbeat is a record without data at the last frame's
position, its name `blocked` while the sender waits; a bye's name is its reason.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final
from zlib import crc32

import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.errors import FieldRefused, FrameTooLarge, WireError
from streamguard.core.frame import Frame, TextFields
from streamguard.core.states import FINAL_STATUSES
from streamguard.core.wire.base import MAX_FRAME, Received

__all__ = ["Binary", "BinaryEncoder", "BinaryReader", "MAGIC"]

MAGIC: Final = b"SG\x01"

_HEAD: Final = struct.Struct(">BQQB")  # kind, seq, offset, name length
_TAIL: Final = struct.Struct(">BI")  # status, data length
_U32: Final = struct.Struct(">I")
_STATUS: Final = {status: code for code, status in enumerate(FINAL_STATUSES, 1)}
_KINDS: Final = ("frame", "beat", "bye")
_PREAMBLE: Final = len(MAGIC) + 22


def _record(kind: int, seq: int, offset: int, name: str, status: int, data: bytes, crc: int) -> bytes:
    label = name.encode()
    if len(label) > 255:
        raise FieldRefused("event")
    header = _HEAD.pack(kind, seq, offset, len(label)) + label + _TAIL.pack(status, len(data))
    return b"%b%b%b%b" % (header, _U32.pack(crc32(header)), data, _U32.pack(crc))


class BinaryEncoder:
    """Writes one connection's records."""

    def __init__(self, zero: Cursor) -> None:
        self._zero = zero

    def opening(self, *, resume: str | None = None, at: Cursor | None = None) -> bytes:
        return MAGIC + self._zero.sid.encode()

    def frame(self, frame: Frame) -> bytes:
        status = 0 if frame.status is None else _STATUS[frame.status]
        record = _record(0, frame.seq, frame.offset, frame.name or "", status, frame.data, frame.crc)
        if frame.status is None:
            return record
        extra = frame.extra or b""
        return record + _U32.pack(len(extra)) + extra

    def text(self, fields: TextFields) -> bytes:
        return self.frame(Frame(*fields))

    def texts(self, rows: Sequence[TextFields]) -> bytes:
        return b"".join(map(self.text, rows))

    def heartbeat(self, cursor: Cursor, *, blocked: bool = False) -> bytes:
        return _record(1, cursor.seq, cursor.offset, "blocked" if blocked else "", 0, b"", cursor.crc)

    def bye(self, cursor: Cursor, reason: str) -> bytes:
        return _record(2, cursor.seq, cursor.offset, reason, 0, b"", cursor.crc)


class BinaryReader:
    """Records to `Received`. Bytes wait in one buffer, consumed from an index: linear in any chunking."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self._buffer = bytearray()
        self._sid = ""
        self._want = _PREAMBLE  # bytes without which there is nothing to try
        self._error: WireError | None = None

    def feed(self, data: bytes) -> list[Received]:
        if self._error is not None:
            raise self._error
        self._buffer += data
        records: list[Received] = []
        at = 0
        try:
            while len(self._buffer) - at >= self._want:
                record, size = self._one(at)
                if record is None:
                    self._want = size
                    break
                records.append(record)
                at += size
                self._want = _HEAD.size
        except WireError as exc:
            self._error = exc
            if not records:
                raise
        del self._buffer[:at]
        return records

    def end(self) -> list[Received]:
        if self._error is not None:
            raise self._error
        return []  # half a record: the stream was cut; lengths leave nothing to guess

    def _one(self, at: int) -> tuple[Received | None, int]:
        """The record at `at` and its size, or None and how many bytes it needs at least."""
        if not self._sid:
            return self._preamble()
        kind, seq, offset, label_size = _HEAD.unpack_from(self._buffer, at)
        header = _HEAD.size + label_size + _TAIL.size
        if len(self._buffer) - at < header + 4:
            return None, header + 4
        (check,) = _U32.unpack_from(self._buffer, at + header)
        if check != crc32(memoryview(self._buffer)[at : at + header]):
            raise WireError("a record's header does not match its checksum")
        status, size = _TAIL.unpack_from(self._buffer, at + _HEAD.size + label_size)
        if size > self.max_frame:
            raise FrameTooLarge(size, self.max_frame)
        body = at + header + 4
        need = header + 4 + size + 4
        extra_size = 0
        if status:
            need += 4
            if len(self._buffer) - at < need:
                return None, need
            (extra_size,) = _U32.unpack_from(self._buffer, at + need - 4)
            if extra_size > self.max_frame:
                raise FrameTooLarge(extra_size, self.max_frame)
            need += extra_size
        if len(self._buffer) - at < need:
            return None, need
        extra = self._text(at + need - extra_size, at + need)
        label = self._text(at + _HEAD.size, at + _HEAD.size + label_size)
        (crc,) = _U32.unpack_from(self._buffer, body + size)
        return self._received(kind, label, status, Cursor(self._sid, seq, offset, crc), body, size, extra), need

    def _preamble(self) -> tuple[Received, int]:
        if not self._buffer.startswith(MAGIC):
            raise WireError(f"not a streamguard binary stream: {bytes(self._buffer[:8])!r}")
        self._sid = self._text(len(MAGIC), _PREAMBLE)
        return Received("opening", data=self._sid.encode()), _PREAMBLE

    def _received(
        self, kind: int, label: str, status: int, cursor: Cursor, body: int, size: int, extra: str
    ) -> Received:
        if kind >= len(_KINDS) or status > len(FINAL_STATUSES):
            raise WireError(f"a record of unknown kind {kind} or status {status}")
        if kind:
            name = _KINDS[kind]
            return Received("beat" if name == "beat" else "bye", str(cursor).encode(), reason=label)
        if status:
            cursor = cursor._replace(status=FINAL_STATUSES[status - 1])
        data = bytes(memoryview(self._buffer)[body : body + size])
        return Received("frame", str(cursor).encode(), label or None, data, extra or None)

    def _text(self, start: int, stop: int) -> str:
        return self._buffer[start:stop].decode("utf-8", "replace")


@attrs.frozen
class Binary:
    """The carrier `binary`."""

    name = "binary"
    content_type = "application/vnd.streamguard.v1"

    def encoder(self, zero: Cursor, *, own_ids: bool) -> BinaryEncoder:
        return BinaryEncoder(zero)

    def reader(self, *, own_ids: bool | None, max_frame: int = MAX_FRAME) -> BinaryReader:
        return BinaryReader(max_frame)
