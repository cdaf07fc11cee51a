"""gzip for a body that is read while it is made: each part can be decompressed as soon as it came.

    body = Gzip().body()
    body.write(frame)       compressed, and flushed: a reader has all of `frame` once it has these bytes
    body.end()              the trailer, for a clean end and for no other

A compressor alone holds back what it was given, until it is worth a block: a token would wait for those after it. So
each part ends in a sync flush (RFC 1951's empty stored block), which costs five bytes and tears no frame in two. A body
that is cut has no trailer, which is one more sign of the cut, and the only one where the framing has none.

What a stream holds is bounded by the settings alone: zlib keeps `4 * 2**window` bytes for what it may refer back to,
and some KiB for its tables. Frames of tokens are short and alike, so that a small window serves them nearly as well as
a large one; the tables are smaller than zlib's own choice, because a block between two flushes is short.

Whether to compress at all is for others to say: both ends must ask, and a secret beside text that somebody else may
choose is found out by the length of what is compressed (BREACH).
"""

from __future__ import annotations

import re
import zlib
from typing import Any, Final

import attrs

from streamguard.core.arguments import no_setting, shown

__all__ = ["Gzip", "GzipBody", "accepts_gzip", "gzip_named"]

_TABLES: Final = 4  # zlib's memLevel: 8 KiB of tables, where its default is 128 KiB and saves nothing here
_MAX_FIELD: Final = 4096  # characters of an `Accept-Encoding`; clients send a few dozen
_FRAMED: Final = 16  # added to a window, it asks zlib for gzip's header and trailer

# One member of `Accept-Encoding`: a name, and a weight that may be a few digits (RFC 9110, sections 12.4.2 and 12.5.3).
_CODING: Final = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*(?:;\s*q\s*=\s*([01](?:\.[0-9]{0,3})?)\s*)?", re.ASCII)


def _within(least: int, most: int) -> Any:
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        good = isinstance(value, int) and not isinstance(value, bool)
        if not good or not least <= value <= most:  # type: ignore[operator]  # what is `good` is an int
            error = ValueError if good else TypeError
            raise error(f"{attribute.name} is a whole number from {least} to {most}, not {shown(value)}")

    return check


@attrs.frozen
class Gzip:
    """How bodies are compressed. `level` is zlib's, from 1 (fast) to 9 (small). `window` is how far back it may refer,
    as a power of two in bytes, from 9 to 15: it decides what a stream holds, 31 KB at 12, 146 KB at 15."""

    level: int = attrs.field(default=6, validator=_within(1, 9))
    window: int = attrs.field(default=12, validator=_within(9, 15))

    def body(self) -> GzipBody:
        """The compressor of one body."""
        return GzipBody(self)


class GzipBody:
    """One body. `written` counts the bytes that it was compressed to so far."""

    def __init__(self, settings: Gzip) -> None:
        self.written = 0
        self._deflate = zlib.compressobj(settings.level, zlib.DEFLATED, _FRAMED + settings.window, _TABLES)
        self._over = False

    def write(self, data: bytes) -> bytes:
        """`data`, compressed, in bytes that a reader needs no later ones for; nothing for nothing."""
        if not data:
            return b""
        deflate = self._deflate
        out = deflate.compress(data) + deflate.flush(zlib.Z_SYNC_FLUSH)
        self.written += len(out)
        return out

    def end(self) -> bytes:
        """The last bytes, which say that the body is whole. Nothing if they were made already: they may have left, and
        a second trailer would be another body."""
        if self._over:
            return b""
        self._over = True
        out = self._deflate.flush()
        self.written += len(out)
        return out


def gzip_named(compress: str | Gzip) -> Gzip:
    """The compression of this name with its default settings; a Gzip is returned as it is.

    Raises ValueError for a name that nobody knows, TypeError for anything else.
    """
    if isinstance(compress, Gzip):
        return compress
    if not isinstance(compress, str):
        raise no_setting("compress", compress, ("gzip",), "Gzip(level=1)")
    if compress != "gzip":
        raise ValueError(f"unknown compression {compress!r}; known: gzip")
    return Gzip()


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a request's `Accept-Encoding` lets gzip through: by name, or by `*`, with a weight above zero. A field
    that is not well-formed accepts nothing."""
    if len(accept_encoding) > _MAX_FIELD:
        return False
    weights: dict[str, float] = {}
    for member in accept_encoding.split(","):
        if not member.strip():
            continue  # an empty member is none (RFC 9110, section 5.6.1)
        match = _CODING.fullmatch(member)
        if match is None:
            return False
        weights[match[1].lower()] = float(match[2] or 1)
    weight = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    return 0.0 < weight <= 1.0
