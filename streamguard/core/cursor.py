"""The cursor: the guard that travels beside each frame (wire protocol, section 1).

    <sid>.<seq>.<offset>.<crc>[.<status>]

The sid names the stream; seq, offset and crc are three independent checks on the frame that the
cursor stands beside *and* on everything before it: the sequence number shows a lost, repeated or
swapped frame, the offset this frame's length, the chained CRC-32 every byte so far.

The grammar is exact because a cursor arrives from strangers: `int()` would take `+1`, `1_0` and
Arabic digits. Parsing is one regular expression, writing is one format string.
"""

from __future__ import annotations

import base64
import re
import secrets
from typing import Final, NamedTuple
from zlib import crc32

from streamguard.core.errors import CursorError

__all__ = ["Cursor", "MAX_CURSOR", "MAX_NUMBER", "chain", "chain_start", "cursor_zero", "looks_like_cursor", "new_sid"]

# Longer values, or other punctuation, in `Last-Event-ID` cost a browser a CORS preflight at every
# reconnect (Fetch standard, "CORS-safelisted request-header").
MAX_CURSOR: Final = 128

_NUM: Final = "(0|[1-9][0-9]{0,15})"
_GRAMMAR: Final = re.compile(
    r"([A-Za-z0-9_-]{22})\." + _NUM + r"\." + _NUM + r"\.([0-9a-f]{8})(?:\.([a-z]*)(?:\.[A-Za-z0-9._~-]*)?)?",
    re.ASCII,
)
MAX_NUMBER: Final = 2**53 - 1  # beyond it a JavaScript client cannot count


class Cursor(NamedTuple):
    """A position in a stream. `status` is set in a terminal frame's cursor only."""

    sid: str
    seq: int
    offset: int
    crc: int
    status: str | None = None

    def __str__(self) -> str:
        text = f"{self.sid}.{self.seq}.{self.offset}.{self.crc:08x}"
        return f"{text}.{self.status}" if self.status else text

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read a cursor. Raises CursorError for anything outside the grammar.

        Parts after the status are ignored, so that a later version may add some.
        """
        match = _GRAMMAR.fullmatch(text) if len(text) <= MAX_CURSOR else None
        if match is None:
            raise CursorError(text)
        sid, seq, offset, crc, status = match.groups()
        cursor = cls(sid, int(seq), int(offset), int(crc, 16), status or None)
        if cursor.seq > MAX_NUMBER or cursor.offset > MAX_NUMBER:
            raise CursorError(text)
        return cursor


def looks_like_cursor(text: str) -> bool:
    """Whether a `Last-Event-ID` is one of ours, and so resumes or is refused, but never starts."""
    try:
        Cursor.parse(text)
    except CursorError:
        return False
    return True


def new_sid() -> str:
    """128 random bits in base64url, 22 characters: frames of two streams can never mix."""
    return base64.urlsafe_b64encode(secrets.token_bytes(16))[:22].decode()  # without its padding


def chain_start(sid: str) -> int:
    """The chain before the first frame. It holds the sid, so a frame of another stream breaks it."""
    return crc32(b"streamguard/1 " + sid.encode())


def chain(crc: int, name: str | None, status: str | None, data: bytes) -> int:
    """The chain after one more frame: `name LF status LF data LF`, each but data possibly empty."""
    if name is None and status is None:
        return crc32(b"\n", crc32(data, crc32(b"\n\n", crc)))
    head = f"{name or ''}\n{status or ''}\n".encode()
    return crc32(b"\n", crc32(data, crc32(head, crc)))


def cursor_zero(sid: str) -> Cursor:
    """The stream's name before anything was sent."""
    return Cursor(sid, 0, 0, chain_start(sid))
