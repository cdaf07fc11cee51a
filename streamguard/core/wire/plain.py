"""`plain`: the data of frames and nothing else, the carrier of dialect `text`.

It has no place for a terminal, so its reader sees an end only in how the connection closes.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.frame import Frame, TextFields
from streamguard.core.wire.base import MAX_FRAME, Received

__all__ = ["Plain", "PlainEncoder", "PlainReader"]


class PlainEncoder:
    """Writes text."""

    def opening(self, *, resume: str | None = None, at: Cursor | None = None) -> bytes:
        return b""

    def frame(self, frame: Frame) -> bytes:
        return frame.data

    def text(self, fields: TextFields) -> bytes:
        return self.frame(Frame(*fields))

    def texts(self, rows: Sequence[TextFields]) -> bytes:
        return b"".join(map(self.text, rows))

    def heartbeat(self, cursor: Cursor, *, blocked: bool = False) -> bytes:
        return b""

    def bye(self, cursor: Cursor, reason: str) -> bytes:
        return b""


class PlainReader:
    """Text as it comes, decoded incrementally."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> list[Received]:
        return self._record(self._decoder.decode(data))

    def end(self) -> list[Received]:
        return self._record(self._decoder.decode(b"", True))

    def _record(self, text: str) -> list[Received]:
        return [Received("frame", data=text.encode())] if text else []


@attrs.frozen
class Plain:
    """The carrier `plain`."""

    name = "plain"
    content_type = "text/plain; charset=utf-8"

    def encoder(self, zero: Cursor, *, own_ids: bool) -> PlainEncoder:
        return PlainEncoder()

    def reader(self, *, own_ids: bool | None, max_frame: int = MAX_FRAME) -> PlainReader:
        return PlainReader()
