"""Text and items in, frames out: sequence, offset, checksum.

`FramedEncoder` joins two things that must agree: a *dialect*, which decides what the data of a
frame looks like to an existing client, and the *chain*, which numbers and sums every frame in the
order in which it is made. It also keeps the books of the ending (finish reasons, usage), since the
dialect writes them into its last frames.

`text` is the hot path: one call, one Frame, no list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

from streamguard.core.cursor import Cursor, chain, chain_start, new_sid
from streamguard.core.dialect.base import Dialect, Payload
from streamguard.core.errors import FieldRefused, Failure, ItemTooLarge, StreamFinished, TextAfterFinish
from streamguard.core.frame import Frame, fits
from streamguard.core.items import Block, Ending, Event

__all__ = ["FramedEncoder", "MAX_BLOCK", "MAX_TEXT"]

MAX_TEXT: Final = 1024 * 1024  # bytes of text in a frame; larger text is split
MAX_BLOCK: Final = 16 * 1024 * 1024  # bytes of data of one block or event; larger is an error


class FramedEncoder:
    """Makes one stream's frames.

    `dialect` is what the frames' data look like (`Native()`, `OpenAI()`, …), `sid` the stream's name
    (random by default), `negotiated` whether its reader asked for verification, `max_text` and `max_block` the limits in bytes.
    """

    def __init__(
        self,
        dialect: Dialect,
        *,
        sid: str | None = None,
        negotiated: bool = False,
        max_text: int = MAX_TEXT,
        max_block: int = MAX_BLOCK,
    ) -> None:
        self.sid = new_sid() if sid is None else sid
        self.zero = Cursor(self.sid, 0, 0, chain_start(self.sid))
        self.own_ids = dialect.own_ids
        self.takes_text = dialect.takes_text
        self.dialect = dialect.encoder(negotiated=negotiated)
        self.max_text = max_text
        self.max_block = max_block
        self.ending = Ending()
        self.chars = 0  # characters framed, for the conservation check
        self.finished = False
        self._seq = 0
        self._offset = 0
        self._crc = self.zero.crc
        self._quote = self.dialect.text

    @property
    def cursor(self) -> Cursor:
        """Where the chain stands."""
        return Cursor(self.sid, self._seq, self._offset, self._crc)

    def text(self, text: str) -> Frame:
        """One frame of text of choice 0, at most `max_text` bytes of it (`texts` splits)."""
        if self.ending.reasons and 0 in self.ending.reasons:
            raise TextAfterFinish(0, self.ending.reasons[0])
        data = self._quote(text)
        self.chars += len(text)
        self._seq = seq = self._seq + 1
        self._offset = offset = self._offset + len(data)
        self._crc = crc = crc32(b"\n\n%b\n" % data, self._crc)  # `chain` for an unnamed frame
        return Frame(seq, offset, crc, data)

    def texts(self, text: str) -> list[Frame]:
        """Frames of text of any size, each at most `max_text` bytes of UTF-8, cut between characters."""
        if len(text) * 4 <= self.max_text or len(text.encode()) <= self.max_text:
            return [self.text(text)]
        step = max(1, self.max_text // 4)  # a character is at most four bytes
        return [self.text(text[at : at + step]) for at in range(0, len(text), step)]

    def item(self, item: Block | Event | Mapping[str, Any]) -> list[Frame]:
        """The frames of a block, event or mapping. Raises UnsupportedItem, ItemTooLarge, NotSerialisable."""
        return self._frames(self.dialect.item(item, self.ending))

    def wire(self, piece: bytes) -> list[Frame]:
        """The frames of a piece of an already serialised stream (`raw` only)."""
        return self._frames(self.dialect.wire(piece, self.ending))

    def finish(self) -> list[Frame]:
        """The last frames of a stream whose source returned: complete if the dialect finds it proven."""
        if failure := self.dialect.judge(self.ending):
            return self.fail(failure)
        return self._end("complete", None)

    def fail(self, failure: Failure, status: str = "failed") -> list[Frame]:
        """The last frames of a stream that did not complete; `status` says how."""
        return self._end(status, failure)

    def _end(self, status: str, failure: Failure | None) -> list[Frame]:
        if self.finished:
            raise StreamFinished(self.ending.status)
        self.ending.status = status
        self.ending.failure = failure
        frames = self._frames(self.dialect.closing(self.ending))
        frames.append(self._frame(self.dialect.terminal(self.ending, self._seq, self._offset), status))
        self.finished = True
        return frames

    def _frames(self, payloads: list[Payload]) -> list[Frame]:
        for payload in payloads:  # before any is numbered: a frame that took a number must leave
            if len(payload.data) > self.max_block:
                raise ItemTooLarge(len(payload.data), self.max_block)
            if payload.name is not None and not fits(payload.name.encode()):
                raise FieldRefused("event")
            if not fits(payload.data.replace(b"\n", b"")):  # LF is how the data's lines are joined
                raise FieldRefused("data")
        return [self._frame(payload, None) for payload in payloads]

    def _frame(self, payload: Payload, status: str | None) -> Frame:
        data = payload.data
        self._seq += 1
        self._offset += len(data)
        self._crc = chain(self._crc, payload.name, status, data)
        extra = payload.extra
        if extra is not None and status is not None:
            # The summary beside a terminal has a checksum of its own: the chain, gone on over it.
            extra = b"%08x %b" % (crc32(extra, self._crc), extra)
        return Frame(self._seq, self._offset, self._crc, data, payload.name, status, extra)
