"""NDJSON (`application/x-ndjson`), both directions: one JSON object a line (wire protocol, section 5).

    {"open": cursor zero}
    {"id": cursor, "event": name unless unnamed, "data": the frame's data as a string, "end": …}
    {"hb": cursor, "blocked": true only then}      {"bye": cursor, "reason": …}

`data` is always a string that holds the frame's data text, so that length and checksum are those of
every other carrier. The cursor and the names are plain ASCII and need no quoting.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.errors import FieldRefused, FrameTooLarge, WireError
from streamguard.core.frame import Frame, TextFields
from streamguard.core.jsontext import dumps, quote
from streamguard.core.wire.base import MAX_FRAME, Received

__all__ = ["Ndjson", "NdjsonEncoder", "NdjsonReader"]


class NdjsonEncoder:
    """Writes one connection's lines."""

    def __init__(self, zero: Cursor) -> None:
        self._zero = zero
        self._text = b'{"id":"' + zero.sid.encode() + b'.%d.%d.%08x","data":%b}\n'

    def opening(self, *, resume: str | None = None, at: Cursor | None = None) -> bytes:
        return b'{"open":"%b"}\n' % str(self._zero).encode()

    def frame(self, frame: Frame) -> bytes:
        data = quote(frame.data.decode())
        if frame.name is None and frame.status is None and frame.extra is None:
            return self._text % (frame.seq, frame.offset, frame.crc, data)
        cursor = Cursor(self._zero.sid, frame.seq, frame.offset, frame.crc, frame.status)
        fields = [b'"id":"%b"' % str(cursor).encode()]
        if frame.name is not None:
            if "\n" in frame.name or "\r" in frame.name:
                raise FieldRefused("event")
            fields.append(b'"event":%b' % dumps(frame.name))
        fields.append(b'"data":%b' % data)
        if frame.extra is not None:
            key = b"end" if frame.status is not None else b"own"
            fields.append(b'"%b":%b' % (key, quote(frame.extra.decode())))
        return b"{%b}\n" % b",".join(fields)

    def text(self, fields: TextFields) -> bytes:
        return self.frame(Frame(*fields))

    def texts(self, rows: Sequence[TextFields]) -> bytes:
        return b"".join(map(self.text, rows))

    def heartbeat(self, cursor: Cursor, *, blocked: bool = False) -> bytes:
        return b'{"hb":"%b"%b}\n' % (str(cursor).encode(), b',"blocked":true' if blocked else b"")

    def bye(self, cursor: Cursor, reason: str) -> bytes:
        return b'{"bye":"%b","reason":%b}\n' % (str(cursor).encode(), dumps(reason))


class NdjsonReader:
    """Lines to `Received` records."""

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        # A byte grows at most sixfold when it is quoted; the rest is for the other fields.
        self._limit = 6 * max_frame + 4096
        self._parts: list[bytes] = []
        self._size = 0
        self._error: WireError | None = None

    def feed(self, data: bytes) -> list[Received]:
        if self._error is not None:
            raise self._error
        lines = data.split(b"\n")
        last = lines.pop()
        if lines and self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        if last:
            self._parts.append(last)
            self._size += len(last)
        return self._read(lines, self._size)

    def end(self) -> list[Received]:
        if self._error is not None:
            raise self._error
        line = b"".join(self._parts)
        self._parts.clear()
        try:
            records = [self._record(line)]
        except WireError:
            return []  # nothing, or half a line: the stream was cut, which is not for a decoder to judge
        for record in records:
            record.partial = True
        return records

    def _read(self, lines: list[bytes], unfinished: int) -> list[Received]:
        records: list[Received] = []
        try:
            for line in lines:
                if line and not line.isspace():
                    records.append(self._record(line))
            if unfinished > self._limit:
                raise FrameTooLarge(unfinished, self.max_frame)
        except WireError as exc:
            self._error = exc
            if not records:
                raise
        return records

    def _record(self, line: bytes) -> Received:
        if len(line) > self._limit:
            raise FrameTooLarge(len(line), self.max_frame)
        try:
            fields: Any = json.loads(line)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict) or not all(
            isinstance(value, str) or name == "blocked" for name, value in fields.items()
        ):
            raise WireError(f"a line that is no record of this carrier: {line[:80]!r}")
        if "data" in fields:
            data = _utf8(fields["data"])
            if len(data) > self.max_frame:
                raise FrameTooLarge(len(data), self.max_frame)
            cursor = _utf8(fields["id"]) if "id" in fields else None
            name = _utf8(fields["event"]).decode() if fields.get("event") else None
            return Received("frame", cursor, name, data, fields.get("end"))
        if "open" in fields:
            return Received("opening", _utf8(fields["open"]))
        if "hb" in fields:
            return Received("beat", _utf8(fields["hb"]))
        if "bye" in fields:
            return Received("bye", _utf8(fields["bye"]), reason=fields.get("reason", ""))
        raise WireError(f"a line that is no record of this carrier: {line[:80]!r}")


def _utf8(text: str) -> bytes:
    # JSON can spell a lone surrogate, which no frame of ours holds: "?" then fails the checksum.
    return text.encode("utf-8", "replace")


@attrs.frozen
class Ndjson:
    """The carrier `ndjson`."""

    name = "ndjson"
    content_type = "application/x-ndjson"

    def encoder(self, zero: Cursor, *, own_ids: bool) -> NdjsonEncoder:
        return NdjsonEncoder(zero)

    def reader(self, *, own_ids: bool | None, max_frame: int = MAX_FRAME) -> NdjsonReader:
        return NdjsonReader(max_frame)
