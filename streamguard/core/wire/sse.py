"""Server-sent events, both directions (WHATWG HTML, section 9.2; wire protocol, section 2).

Writing: LF only, no byte-order mark, one block a frame, `data: ` last in its block. The cursor
stands directly before the data, in `id:` or in a comment inside the block. Heartbeats are comments
with *one* LF: a blank line after them would be a block without data, which some SDKs parse as JSON.

Reading: `SseDecoder` is a conforming decoder for any stream; `SseReader` reads our comments and ids.
Both stand on `blocks`, which makes lines and blocks of bytes however they are cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import randrange
from typing import Final, Literal, get_args

import attrs

from streamguard.core.arguments import one_of
from streamguard.core.cursor import Cursor, looks_like_cursor
from streamguard.core.errors import FieldRefused
from streamguard.core.frame import Frame, TextFields, fits
from streamguard.core.jsontext import dumps
from streamguard.core.wire.base import MAX_FRAME, Received
from streamguard.core.wire.blocks import Blocks

__all__ = ["HeartbeatForm", "Sse", "SseDecoder", "SseEncoder", "SseEvent", "SseReader"]

HeartbeatForm = Literal["comment", "padded", "ping"]

_RETRY_MS: Final = 2000  # reconnection time told to EventSource; 1 to 5 s are in use in the field
_CONTROL: Final = (b"open", b"bye", b"ping")  # native's events that are no frames
# `: end <cursor>.<status>` is a terminal of its own; `: end <crc8> <json>` belongs to its block.
_ENDING_CURSOR: Final = re.compile(r"[A-Za-z0-9_-]{22}\.", re.ASCII)
_PADDING: Final = 2048  # some layers hold answers back until 2 kB have come
_MAX_PADDED: Final = 31  # in one silence, just under 64 kB: more would only cost a reader who pays by the byte


def _field(name: bytes, value: bytes) -> bytes:
    """The one function that writes a field or comment (`name` empty)."""
    if not fits(value):
        raise FieldRefused(name.decode() or "comment")
    return b"%b: %b\n" % (name, value)


class SseEncoder:
    """Writes one connection's frames."""

    def __init__(self, zero: Cursor, *, ids: Literal["id", "comment"], own_ids: bool, beat: HeartbeatForm) -> None:
        self._zero = zero
        self._own_ids = own_ids
        self._beat = beat
        self._silent_at = self._padded = 0  # the frame before this silence, and its padded heartbeats so far
        self._in_id = own_ids or ids == "id"
        sid = zero.sid.encode()
        # The hot path: one format call a token.
        self._text = (b"id: " if self._in_id else b": sg ") + sid + b".%d.%d.%08x\ndata: %b\n\n"
        # Padding costs a quarter of the line, and fifteen of sixteen checksums need none.
        self._wide = self._text.replace(b"%08x", b"%x")
        self._cursor = sid + b".%d.%d.%08x"

    def opening(self, *, resume: str | None = None, at: Cursor | None = None) -> bytes:
        zero = str(self._zero).encode()
        comment = _field(b"", b"streamguard 1 " + zero)
        if not self._own_ids:
            return comment
        data = _field(b"data", dumps({"v": 1, "resume": resume}))
        # Not cursor zero where the stream goes on: cut before its next frame, an EventSource would begin anew.
        id = _field(b"id", zero if at is None else str(at).encode())
        return b"%bevent: open\nretry: %d\n%b%b\n" % (comment, _RETRY_MS, id, data)

    def frame(self, frame: Frame) -> bytes:
        data = frame.data
        if frame.name is None and frame.status is None and frame.extra is None and fits(data):
            return self._text % (frame.seq, frame.offset, frame.crc, data)
        return self._block(frame)

    def text(self, fields: TextFields) -> bytes:
        data = fields[3]
        if 10 in data or 13 in data or 0 in data:  # `fits`, without the call
            return self._block(Frame(*fields))
        return (self._wide if fields[2] > 0x0FFFFFFF else self._text) % fields

    def texts(self, rows: Sequence[TextFields]) -> bytes:
        if len(rows) == 1:
            return self.text(rows[0])
        if not fits(b"".join([row[3] for row in rows])):
            return b"".join(map(self.text, rows))
        wide, text = self._wide, self._text
        return b"".join([(wide if row[2] > 0x0FFFFFFF else text) % row for row in rows])

    def heartbeat(self, cursor: Cursor, *, blocked: bool = False) -> bytes:
        if self._beat == "ping":
            fields = {"cursor": str(cursor), "blocked": True} if blocked else {"cursor": str(cursor)}
            return b"event: ping\n%b\n" % _field(b"data", dumps(fields))
        text = f"hb {cursor} blocked" if blocked else f"hb {cursor}"
        if self._beat == "padded" and self._may_pad(cursor.seq):
            text = text.ljust(_PADDING)
        return _field(b"", text.encode())

    def _may_pad(self, seq: int) -> bool:
        """Whether the silence after frame `seq` may hold one more padded heartbeat."""
        if seq != self._silent_at:
            self._silent_at, self._padded = seq, 0
        self._padded += 1
        return self._padded <= _MAX_PADDED

    def bye(self, cursor: Cursor, reason: str) -> bytes:
        if self._own_ids:
            data = dumps({"cursor": str(cursor), "reason": reason})
            # Drawn: a server that goes away says it to all of its readers at once, who would come back at once too.
            return b"event: bye\nretry: %d\n%b\n" % (_RETRY_MS // 2 + randrange(_RETRY_MS), _field(b"data", data))
        return _field(b"", f"bye {cursor} {reason}".encode())

    def _block(self, frame: Frame) -> bytes:
        cursor = self._cursor % (frame.seq, frame.offset, frame.crc)
        if frame.status is not None:
            cursor += b"." + frame.status.encode()
            if frame.bare:  # an end without a marker of its own: a comment is all that fits
                return _field(b"", b"end " + cursor)
        lines = [_field(b"event", frame.name.encode())] if frame.name is not None else []
        in_id = self._in_id
        if frame.extra is not None:
            if frame.status is not None:
                lines.append(_field(b"", b"end " + frame.extra))
            else:  # a provider's own id stays, and the cursor goes beside it
                lines.append(_field(b"id", frame.extra))
                in_id = False
        lines.append(_field(b"id", cursor) if in_id else _field(b"", b"sg " + cursor))
        lines.extend([_field(b"data", line) for line in frame.data.split(b"\n")])
        lines.append(b"\n")
        return b"".join(lines)


class SseEvent:
    """One event. `id` is this block's own (None if absent), `last_event_id` the committed one,
    `retry` this block's in milliseconds, `comments` this block's in order."""

    __slots__ = ("comments", "data", "event", "id", "last_event_id", "retry")

    def __init__(
        self,
        event: str,
        data: str,
        id: str | None = None,
        retry: int | None = None,
        last_event_id: str = "",
        comments: list[str] | None = None,
    ) -> None:
        self.event = event
        self.data = data
        self.id = id
        self.retry = retry
        self.last_event_id = last_event_id
        self.comments = comments or []

    def __repr__(self) -> str:
        return f"SseEvent(event={self.event!r}, data={self.data!r}, id={self.id!r})"


class SseDecoder(Blocks[SseEvent]):
    """A conforming, incremental decoder for any stream of server-sent events.

    `feed(bytes) -> list[SseEvent]`, `end() -> list[SseEvent]` (empty unless `lenient`: then a last
    block whose blank line is missing is handed out). `on_comment` is called with each comment's text,
    all that follows its colon, at its line's end. `retry` (milliseconds) and `last_event_id` are what a
    reconnecting client would use. Data above `max_frame` bytes raises FrameTooLarge, after the events
    before it were handed out.
    """

    def __init__(
        self,
        on_comment: Callable[[str], object] | None = None,
        *,
        max_frame: int = MAX_FRAME,
        lenient: bool = False,
    ) -> None:
        super().__init__(max_frame, lenient)
        self._on_comment = on_comment

    def _comment(self, text: str) -> None:
        super()._comment(text)
        if self._on_comment is not None:
            self._on_comment(text)

    def _dispatch(self, event: bytes, data: bytes) -> None:
        name = _text(event) if event else "message"
        self._out.append(SseEvent(name, _text(data), self._id, self._retry, self.last_event_id, self._comments))


# A frame of text as we write it: the cursor in either place, one line of data. `.` is any byte but LF.
_FRAME: Final = re.compile(rb"(?:id: |: sg )(.+)\ndata: (.*)\n\n")
_BEGINNING: Final = re.compile(rb"(?:id: |: sg )[^\n]*(?:\n(?:data: [^\n]*\n?)?)?\Z|(?:id|: s)\Z")
_SMALL: Final = 2048


class SseReader(Blocks[Received]):
    """Reads our ids and comments: SSE bytes to `Received` records, for the verifier.

    A frame of text is read by one regular expression; what that does not match, the line decoder
    reads, with the same result. The beginning of a small frame waits for its rest, so that frames cut
    by the network take the short way too; a large one goes to the line decoder, which never copies
    what it has.
    """

    def __init__(self, *, own_ids: bool | None, max_frame: int = MAX_FRAME) -> None:
        super().__init__(max_frame, lenient=True)
        self._own_ids = own_ids  # None: an `open` event that bears a cursor will tell
        self._waiting = b""

    def feed(self, data: bytes) -> list[Received]:
        if self._waiting:
            data = self._waiting + data
            self._waiting = b""
        size = len(data)
        if self._size or self._bom is not None or size > self.max_frame or 13 in data or 0 in data:
            return super().feed(data)  # CR may end a line, NUL voids an id
        records: list[Received] = []
        at = 0
        match = _FRAME.match(data)
        while match is not None:
            cursor, text = match.groups()
            records.append(Received("frame", cursor, None, text))
            at = match.end()
            if at == size:
                return records
            match = _FRAME.match(data, at)
        rest = data[at:]
        if len(rest) < _SMALL and _BEGINNING.match(rest):
            self._waiting = rest
            return records
        return records + super().feed(rest)

    @property
    def unfinished(self) -> bool:
        waits = self._waiting  # the beginning of a frame, which may be no more than a comment
        return waits[:1] == b"i" or b"\nd" in waits or super().unfinished

    def end(self) -> list[Received]:
        records = super().feed(self._waiting)
        self._waiting = b""
        unfinished = super().end()
        for record in unfinished:
            record.partial = True
        return records + unfinished

    def _comment(self, text: str) -> None:
        text = text.removeprefix(" ")
        word, _, rest = text.partition(" ")
        if word == "end" and _ENDING_CURSOR.match(rest):
            self._out.append(Received("frame", rest.encode()))
        elif word in ("sg", "end"):
            super()._comment(text)
        elif word == "hb":
            self._out.append(Received("beat", rest.encode()))
        elif word == "streamguard" and rest.startswith("1 "):
            self._out.append(Received("opening", rest[2:].encode()))
        elif word == "bye":
            cursor, _, reason = rest.partition(" ")
            self._out.append(Received("bye", cursor.encode(), reason=reason))

    def _dispatch(self, event: bytes, data: bytes) -> None:
        cursor, extra = self._id, None
        if self._comments:
            for text in self._comments:
                word, _, rest = text.partition(" ")
                if word == "sg":
                    cursor = rest
                else:
                    extra = rest
        if self._own_ids is None and event == b"open" and _is_zero(cursor or ""):
            self._own_ids = True
        where = None if cursor is None else cursor.encode()
        if self._own_ids and event in _CONTROL:
            self._control(event, data, where)
            return
        name = None if not event or event == b"message" else _text(event)
        self._out.append(Received("frame", where, name, data, extra))

    def _control(self, event: bytes, data: bytes, where: bytes | None) -> None:
        if event == b"open":
            self._out.append(Received("opening", where, "open"))
            return
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            fields = {}
        fields = fields if isinstance(fields, dict) else {}
        kind: Literal["beat", "bye"] = "beat" if event == b"ping" else "bye"
        where = str(fields.get("cursor")).encode("utf-8", "replace")  # JSON can spell a lone surrogate
        self._out.append(Received(kind, where, reason=str(fields.get("reason", ""))))


def _is_zero(cursor: str) -> bool:
    # In `raw` an event of that name is a frame, and no frame's cursor is at zero.
    return cursor[22:27] == ".0.0." and looks_like_cursor(cursor)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


@attrs.frozen
class Sse:
    """The carrier `sse`.

    `ids` is where the cursor stands in dialects that do not always use `id:`; `heartbeat` the form of
    a sign of life: a comment, a comment padded to 2 kB for layers that hold answers back (at most 64 kB in
    one silence, then short ones), or a `ping` event for clients whose idle timer counts events.
    """

    ids: Literal["id", "comment"] = attrs.field(default="comment", validator=one_of("id", "comment"))
    heartbeat: HeartbeatForm = attrs.field(default="comment", validator=one_of(*get_args(HeartbeatForm)))

    name = "sse"
    content_type = "text/event-stream; charset=utf-8"

    def encoder(self, zero: Cursor, *, own_ids: bool) -> SseEncoder:
        if self.heartbeat == "ping" and not own_ids:
            raise ValueError("`ping` events are visible to SDK clients: choose them with dialect `native` only")
        return SseEncoder(zero, ids=self.ids, own_ids=own_ids, beat=self.heartbeat)

    def reader(self, *, own_ids: bool | None, max_frame: int = MAX_FRAME) -> SseReader:
        return SseReader(own_ids=own_ids, max_frame=max_frame)
