"""The last gate: every frame passes `admit`, and a stream ends once.

`CompletionGuard` belongs to a connection. It steps the transition table for everything that is
written, checks that each frame stands exactly where the one before it ended, and hands it to the
carrier. What it lets through is a legal stream whatever the stages before it did, and it cannot be
talked into a second terminal: the table has no key for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamguard.core.cursor import Cursor, cursor_zero
from streamguard.core.errors import LocalProtocolError, StreamFinished
from streamguard.core.frame import Frame, Row, TextFields
from streamguard.core.states import Input, State, step
from streamguard.core.wire import Wire, WireEncoder, wire_named

__all__ = ["CompletionGuard"]


class CompletionGuard:
    """Admits one stream's frames to one connection, written by `wire` (`Sse()`, `Ndjson()`, `Binary()`)."""

    def __init__(self, wire: str | Wire) -> None:
        self.wire = wire_named(wire)
        self.state: State = "unopened"
        self.status: str | None = None  # the terminal's, once it was admitted
        self.bytes = 0  # written so far, terminal and heartbeats included
        self.last: TextFields = (0, 0, 0, b"")  # the last admitted frame's place in the chain
        self.encoder: WireEncoder  # the connection's, once it is open
        self._sid = ""

    @property
    def cursor(self) -> Cursor:
        """The last admitted frame's cursor; cursor zero before the first."""
        seq, offset, crc, _ = self.last
        return Cursor(self._sid, seq, offset, crc, self.status)

    def open(self, at: Cursor, *, own_ids: bool, resume: str | None = None) -> bytes:
        """The first bytes of the connection; frames go on after `at`. Raises if it is open already."""
        state = self._after("opening")
        encoder = self.wire.encoder(cursor_zero(at.sid), own_ids=own_ids)
        data = encoder.opening(resume=resume, at=at) if at.seq else encoder.opening(resume=resume)
        self.encoder = encoder
        self._sid = at.sid
        self.last = (at.seq, at.offset, at.crc, b"")
        return self._written(data, state)

    def admit(self, frame: Frame) -> bytes:
        """The bytes of one frame. Raises LocalProtocolError for one that does not fit, or comes too late.

        A frame that its carrier refuses counts as not written, a terminal too: another may take its place.
        """
        seq, offset, _, _ = self.last
        if frame.seq != seq + 1 or frame.offset != offset + len(frame.data):
            raise LocalProtocolError(f"frame {frame.seq} at offset {frame.offset} does not follow {self.cursor}")
        if self.state != "open":
            raise self._refusal("frame" if frame.status is None else "terminal")
        data = self.encoder.frame(frame)
        if frame.status is not None:
            self.state = self._after("terminal")
            self.status = frame.status
        self.last = (frame.seq, frame.offset, frame.crc, frame.data)
        self.bytes += len(data)
        return data

    def admit_text(self, fields: TextFields) -> bytes:
        """The same for a frame of text, on the hot path."""
        seq, offset, crc, data = fields
        before, size, _, _ = self.last
        if seq != before + 1 or offset != size + len(data) or self.state != "open":
            return self.admit(Frame(seq, offset, crc, data))  # raises
        written = self.encoder.text(fields)
        self.last = fields
        self.bytes += len(written)
        return written

    def admit_all(self, frames: Sequence[Frame | Row]) -> bytes:
        """The bytes of frames that were stored, one after the other. Raises as `admit` does: then none was written."""
        if len(frames) == 1 and type(frames[0]) is tuple and len(frames[0]) == 4:
            return self.admit_text(frames[0])
        before = self.last, self.bytes, self.state, self.status
        parts: list[bytes] = []
        texts: list[TextFields] = []  # not written yet: a carrier writes many at once for less than one by one
        seq, offset, _, _ = self.last
        try:
            row: Any
            for row in frames:
                if type(row) is tuple and len(row) == 4 and row[0] == seq + 1 and row[1] == offset + len(row[3]):
                    texts.append(row)
                    seq, offset, _, _ = row
                    continue
                if texts:
                    parts.append(self._texts(texts))
                    texts = []
                parts.append(self.admit(Frame(*row) if isinstance(row, tuple) else row))
                seq, offset, _, _ = self.last
            if texts:
                parts.append(self._texts(texts))
        except BaseException:
            self.last, self.bytes, self.state, self.status = before
            raise
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        self.bytes = before[1] + len(data)
        return data

    def _texts(self, rows: Sequence[TextFields]) -> bytes:
        if self.state != "open":
            raise self._refusal("frame")
        written = self.encoder.texts(rows)
        self.last = rows[-1]
        return written

    def heartbeat(self, *, blocked: bool = False) -> bytes:
        """A sign of life after the last frame."""
        state = self._after("beat")
        return self._written(self.encoder.heartbeat(self.cursor, blocked=blocked), state)

    def bye(self, reason: str) -> bytes:
        """The last bytes of a connection whose stream lives on."""
        state = self._after("bye")
        return self._written(self.encoder.bye(self.cursor, reason), state)

    def _written(self, data: bytes, state: State) -> bytes:
        self.state = state
        self.bytes += len(data)
        return data

    def _after(self, event: Input) -> State:
        """The state that `event` leads to, taken only once its bytes exist."""
        state = step(self.state, event)
        # A reader may miss an opening that was stripped on the way; a writer always begins with one.
        if state is None or (self.state == "unopened" and event != "opening"):
            raise self._refusal(event)
        return state

    def _refusal(self, event: Input) -> LocalProtocolError:
        if self.status is not None:
            return StreamFinished(self.status)
        return LocalProtocolError(f"{event!r} cannot follow in state {self.state!r}")
