"""Text and items in, frames out: sequence, offset, checksum.

`FramedEncoder` joins two things that must agree: a *dialect*, which decides what the data of a
frame looks like to an existing client, and the *chain*, which numbers and sums every frame in the
order in which it is made. It also keeps the books of the ending (finish reasons, usage), since the
dialect writes them into its last frames.

`text_fields` is the hot path: one call, one tuple, no list.

A frame that has a number must leave, or no later one could follow it. So a payload is checked before it
is numbered, frames that were made before one that is refused leave with the next call, and an ending
that its dialect cannot write is told in the plainest form, as a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final
from zlib import crc32

from streamguard.core.cursor import Cursor, chain, cursor_zero, looks_like_cursor, new_sid
from streamguard.core.dialect import Dialect, DialectEncoder, Payload, dialect_named
from streamguard.core.errors import (
    Failure,
    FieldRefused,
    ItemTooLarge,
    LocalProtocolError,
    StreamFinished,
    TextAfterFinish,
    failure_from,
)
from streamguard.core.frame import Frame, TextFields, fits
from streamguard.core.items import Block, Ending, Event
from streamguard.core.jsontext import dumps
from streamguard.core.states import FINAL_STATUSES

__all__ = ["FramedEncoder", "MAX_BLOCK", "MAX_TEXT"]

MAX_TEXT: Final = 1024 * 1024  # bytes of text in a frame; larger text is split
MAX_BLOCK: Final = 16 * 1024 * 1024  # bytes of data of one block or event; larger is an error
_MAX_NAME: Final = 255  # bytes of an event's name: the binary carrier counts them in one byte


class FramedEncoder:
    """Makes one stream's frames.

    `dialect` is what the frames' data look like (`Native()`, `OpenAI()`, …), `sid` the stream's name
    (random by default), `negotiated` whether its reader asked for verification, `max_text` and
    `max_block` the limits in bytes. `at` is where a stream goes on that another encoder began. Raises ValueError for
    a sid that no cursor can hold.
    """

    def __init__(
        self,
        dialect: str | Dialect,
        *,
        sid: str | None = None,
        negotiated: bool = False,
        max_text: int = MAX_TEXT,
        max_block: int = MAX_BLOCK,
        at: Cursor | None = None,
    ) -> None:
        self.sid = at.sid if at is not None else new_sid() if sid is None else sid
        self.zero = cursor_zero(self.sid)
        if not looks_like_cursor(str(self.zero)):
            raise ValueError(f"a sid is 22 characters of base64url, not {self.sid!r}")
        dialect = dialect_named(dialect)
        self.own_ids = dialect.own_ids
        self.takes_text = dialect.takes_text
        self.dialect = dialect.encoder(negotiated=negotiated)
        self.plain_text = self.takes_text and self.dialect.text is not None  # whether a text is one unnamed frame
        self.max_text = max_text
        self.max_block = max_block
        self.ending = Ending()
        self.chars = 0  # characters framed, for the conservation check
        self.finished = False
        start = self.zero if at is None else at
        self.last: TextFields = (start.seq, start.offset, start.crc, b"")  # the last frame's place in the chain
        self._quote = self.quote
        self._made: list[Frame] = []  # what was made in a call that raised; leaves with the next one
        self._refused = False

    def follow(self, frames: Iterable[Frame]) -> None:
        """Take in the frames that another encoder of this stream made, up to where this one goes on."""
        for frame in frames:
            self.dialect.follow(frame.name, frame.data, self.ending)

    @property
    def quote(self) -> Callable[[str], bytes]:
        """What makes the data of a text's frame, where `plain_text` is true; else it raises."""
        return self.dialect.text or _refuse_plain

    @property
    def cursor(self) -> Cursor:
        """Where the chain stands."""
        seq, offset, crc, _ = self.last
        return Cursor(self.sid, seq, offset, crc)

    def text(self, text: str) -> Frame:
        """One frame of text of choice 0, at most `max_text` bytes of it (`texts` splits). For dialects of `plain_text`:
        in the others a text may be several frames, and `texts` makes them."""
        if self.ending.reasons and 0 in self.ending.reasons and not self.finished:
            raise TextAfterFinish(0, self.ending.reasons[0])
        quote = self._quote  # as in `text_fields`, without the call: every token of a logged stream comes here
        data = quote(text)
        self.chars += len(text)
        seq, offset, crc, _ = self.last
        seq, offset, crc = seq + 1, offset + len(data), crc32(b"\n\n%b\n" % data, crc)
        self.last = (seq, offset, crc, data)
        return Frame(seq, offset, crc, data)

    def text_fields(self, text: str) -> TextFields:
        """The same as a tuple."""
        if self.ending.reasons and 0 in self.ending.reasons and not self.finished:
            raise TextAfterFinish(0, self.ending.reasons[0])
        quote = self._quote  # a call of the attribute itself would be taken for a method's, which is slower
        data = quote(text)  # after the terminal it raises StreamFinished, at no cost before
        self.chars += len(text)
        seq, offset, crc, _ = self.last
        crc = crc32(b"\n\n%b\n" % data, crc)  # `chain` for an unnamed frame
        self.last = fields = (seq + 1, offset + len(data), crc, data)
        return fields

    def texts(self, text: str) -> list[Frame]:
        """Frames of text of any size, each at most `max_text` bytes of UTF-8, cut between characters."""
        if len(text) * 4 <= self.max_text or len(text.encode()) <= self.max_text:
            self._text(text)
        else:
            step = max(1, self.max_text // 4)  # a character is at most four bytes
            for at in range(0, len(text), step):
                self._text(text[at : at + step])
        return self._taken()

    def _text(self, text: str) -> None:
        if self.dialect.text is not None or self.finished:
            self._made.append(self.text(text))
            return
        if 0 in self.ending.reasons:
            raise TextAfterFinish(0, self.ending.reasons[0])
        for payload in self.dialect.item(text, self.ending):
            self._make(payload, None, MAX_BLOCK)  # a small limit on blocks is none on text
        self.chars += len(text)

    def item(self, item: Block | Event | Mapping[str, Any]) -> list[Frame]:
        """The frames of a block, event or mapping.

        Raises UnsupportedItem, ItemTooLarge, NotSerialisable, FieldRefused, StreamFinished.
        """
        return self._frames(self._unfinished().item(item, self.ending))

    def wire(self, piece: bytes) -> list[Frame]:
        """The frames of a piece of an already serialised stream (`raw` only). Raises as `item` does."""
        return self._frames(self._unfinished().wire(piece, self.ending))

    def finish(self) -> list[Frame]:
        """The last frames of a stream whose source returned: complete if the dialect finds it proven."""
        failure = self._unfinished().judge(self.ending)
        if failure is None and self._refused:
            failure = Failure("internal", "a frame was refused by its carrier")
        return self._end("complete", None) if failure is None else self._end("failed", failure)

    def fail(self, failure: Failure, status: str = "failed") -> list[Frame]:
        """The last frames of a stream that did not complete; `status` says how."""
        if status == "complete" or status not in FINAL_STATUSES:
            raise ValueError(f"a stream that failed cannot end as {status!r}")
        self._unfinished()
        return self._end(status, failure)

    def rewind(self, cursor: Cursor) -> None:
        """Go back to `cursor`, after which the carrier refused a frame: what comes next stands there.

        What was refused is lost, so the stream cannot end as complete any more.
        """
        self.last = (cursor.seq, cursor.offset, cursor.crc, b"")
        self._refused = True
        self.finished = False  # if it was the terminal
        self._quote = self.quote

    def _unfinished(self) -> DialectEncoder:
        if self.finished:
            raise StreamFinished(self.ending.status)
        return self.dialect

    def _end(self, status: str, failure: Failure | None) -> list[Frame]:
        self.ending.status = status
        self.ending.failure = failure
        try:
            self._close()
        except Exception as exc:
            self._last_resort(exc)
        self.finished = True
        self._quote = partial(_refuse_text, self.ending)
        return self._taken()

    def _close(self) -> None:
        limit = max(self.max_block, MAX_BLOCK)  # a small limit on blocks is none on the ending
        for payload in self.dialect.closing(self.ending):
            self._make(payload, None, limit)
        seq, offset, _, _ = self.last
        self._make(self.dialect.terminal(self.ending, seq, offset), self.ending.status, limit)

    def _last_resort(self, exc: Exception) -> None:
        """The same for an ending that the dialect could not write, or the wire not take: a failure, without
        what may have been in the way; if that is refused too, a bare error, in the form most clients know."""
        ending = self.ending
        if ending.failure is None:
            ending.status = "failed"
            ending.failure = failure_from(exc)
        ending.usage = None
        try:
            self._close()
        except Exception:
            error = {"code": ending.failure.code, "message": ending.failure.message, "type": ending.status}
            self._made.append(self._frame(Payload(dumps({"error": error})), ending.status))

    def _frames(self, payloads: list[Payload]) -> list[Frame]:
        for payload in payloads:
            self._make(payload, None, self.max_block)
        return self._taken()

    def _make(self, payload: Payload, status: str | None, limit: int) -> None:
        _check(payload, limit)  # before it has a number; those before it leave even if it is refused
        self._made.append(self._frame(payload, status))

    def _taken(self) -> list[Frame]:
        frames = self._made
        self._made = []
        return frames

    def _frame(self, payload: Payload, status: str | None) -> Frame:
        data = payload.data
        seq, offset, crc, _ = self.last
        crc = chain(crc, payload.name, status, data)
        self.last = (seq + 1, offset + len(data), crc, data)
        extra = payload.extra
        if extra is not None and status is not None:
            # The summary beside a terminal has a checksum of its own: the chain, gone on over it.
            extra = b"%08x %b" % (crc32(extra, crc), extra)
        return Frame(*self.last, payload.name, status, extra)


def _refuse_plain(text: str) -> bytes:
    raise LocalProtocolError("a text of this dialect may be several frames: `texts` makes them")


def _refuse_text(ending: Ending, text: str) -> bytes:
    raise StreamFinished(ending.status)


def _check(payload: Payload, limit: int) -> None:
    """Raise unless every carrier can write `payload`."""
    if len(payload.data) > limit:
        raise ItemTooLarge(len(payload.data), limit)
    if payload.name is not None:
        try:
            name = payload.name.encode()
        except UnicodeEncodeError:
            raise FieldRefused("event", "holds half a character") from None
        if len(name) > _MAX_NAME:
            raise FieldRefused("event", f"is longer than {_MAX_NAME} bytes")
        if not fits(name):
            raise FieldRefused("event")
    if not fits(payload.data.replace(b"\n", b"")):  # LF is how the data's lines are joined
        raise FieldRefused("data")
    if payload.extra is not None and not fits(payload.extra):
        raise FieldRefused("id")
