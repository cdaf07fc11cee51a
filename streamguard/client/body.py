"""The body of a response in pieces of bounded size, decompressed here.

An HTTP library decompresses what one read brought in one go: 64 kB of zeros that were compressed
are 64 MB, and to take them apart holds an event loop for seconds. Here nothing larger than `PIECE`
is ever made, whatever came, and a driver can let others run between two pieces.

A gzip body may be several members one behind the other (RFC 1952, section 2.2), as servers make it that compress
each flush by itself: what begins as a member behind the end of one is read on, and anything else is passed over.
"""

from __future__ import annotations

import zlib
from typing import Final

__all__ = ["PIECE", "Body", "coding_of", "may_be_read"]

PIECE: Final = 64 * 1024  # bytes; what httpx reads at once, so that a body that is not compressed stays as it came

_MEMBER: Final = b"\x1f\x8b"  # how a gzip member begins
# Bytes given to zlib at once behind the first member: it copies what it leaves, for each of a thousand empty members.
_SLICE: Final = 4096
_OWN: Final = ("identity", "gzip", "deflate")


def coding_of(content_encoding: str) -> str:
    """The content coding, by its usual name; `identity` where there is none."""
    coding = content_encoding.strip().lower()
    return {"": "identity", "x-gzip": "gzip"}.get(coding, coding)


def may_be_read(coding: str, accept_encoding: str) -> bool:
    """Whether a body of this coding is bounded here, or was asked for by name."""
    asked = {name.partition(";")[0].strip().lower() for name in accept_encoding.split(",")}
    return coding in _OWN or all(name.strip() in asked for name in coding.split(","))


class Body:
    """One body: `put` what came, then `take` until there is no more.

    `coding` is the content coding; one that is not known here is passed on as it is.
    """

    def __init__(self, coding: str = "identity") -> None:
        self.own = coding in _OWN
        self._coding = coding
        self._inflate = None if coding == "identity" or not self.own else zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._rest = b""
        self._at = 0
        self._at_once = PIECE
        self._more = False  # zlib may hold output back though it has taken all of its input
        self._begun = False
        self._over = False  # what follows is nobody's

    @property
    def whole(self) -> bool:
        """Whether the compressed data came to its own end; an empty body has none."""
        return self._inflate is None or self._inflate.eof or not self._begun

    def put(self, data: bytes) -> None:
        """What a read brought. Whatever was put before was taken."""
        left = b"" if self._inflate is None else self._rest[self._at :]  # at most half of a member's first bytes
        self._rest = left + data
        self._at = 0

    def take(self) -> bytes | None:
        """The next piece, possibly empty; None if there is none. Raises zlib.error for damaged data."""
        if self._inflate is not None:
            return self._decompress(self._inflate)
        if self._at >= len(self._rest):
            return None
        piece = self._rest[self._at : self._at + PIECE]
        self._at += PIECE
        return piece

    def _decompress(self, inflate: zlib._Decompress) -> bytes | None:
        if inflate.eof:
            if not self._goes_on():
                return None
            self._inflate = inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
        data = self._rest[self._at : self._at + self._at_once]
        if not (data or self._more):
            return None
        try:
            piece = inflate.decompress(data, PIECE)
        except zlib.error:
            if self._begun or self._coding != "deflate":
                raise
            # `deflate` means zlib's format, and some servers send the bare data.
            self._inflate = inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            piece = inflate.decompress(data, PIECE)
        self._begun = True
        self._at += len(data) - len(inflate.unused_data if inflate.eof else inflate.unconsumed_tail)
        self._more = len(piece) == PIECE and not inflate.eof
        return piece

    def _goes_on(self) -> bool:
        """Whether another member begins behind the end of one; half of its first bytes may wait for the other half."""
        begin = self._rest[self._at : self._at + 2]
        self._over = self._over or not _MEMBER.startswith(begin)
        if self._over:
            self._at = len(self._rest)
        self._at_once = _SLICE
        return begin == _MEMBER and not self._over
