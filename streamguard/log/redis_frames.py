"""How what a log holds is written in Redis, and read back: positions, frames, states, infos.

A frame is its position, then a space and its data; one that has a name, a status or an extra has a plus sign there, and
these three, with their lengths, before its data. Whoever looks with redis-cli can read what there is.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.errors import CursorError
from streamguard.core.frame import Frame
from streamguard.log.base import Checkpointed, LogUnavailable, Signal, StreamInfo, StreamState

__all__ = [
    "GONE",
    "cursor_of",
    "damaged",
    "digest",
    "frame_of",
    "frames_of",
    "info_of",
    "info_text",
    "pack",
    "place",
    "signals_of",
    "state_of",
    "tail_text",
]

GONE: Final = b"gone"  # what stands for the tail of a stream that is not there

_HEAD: Final = struct.Struct(">HBI")  # length of the name + 1, of the status, of the extra + 1
_LENGTH: Final = struct.Struct(">I")


def damaged(what: str) -> LogUnavailable:
    """For what streamguard cannot have written."""
    return LogUnavailable(f"Redis holds {what} that no log has written: does something else use the same prefix?")


# ---- positions ------------------------------------------------------------------------------------


def place(cursor: Cursor) -> bytes:
    """A position without its stream and its status."""
    return b"%d.%d.%08x" % cursor[1:4]


def tail_text(cursor: Cursor) -> bytes:
    """A tail, with its status once the stream is sealed."""
    text = place(cursor)
    return text if cursor.status is None else text + b"." + cursor.status.encode()


def cursor_of(sid: str, text: bytes) -> Cursor:
    """What `place` or `tail_text` wrote. Raises LogUnavailable for anything else."""
    try:
        return Cursor.parse(f"{sid}.{text.decode()}")
    except (CursorError, UnicodeDecodeError):
        raise damaged("a position") from None


# ---- frames ---------------------------------------------------------------------------------------


def pack(frame: Frame) -> bytes:
    """A frame as it is stored. Raises ValueError for a name, status or extra that is too long."""
    data, name, status, extra = frame.data, frame.name, frame.status, frame.extra
    if name is None and status is None and extra is None:
        return b"%d.%d.%08x %b" % (frame.seq, frame.offset, frame.crc, data)
    named = b"" if name is None else name.encode()
    ended = b"" if status is None else status.encode()
    try:
        head = _HEAD.pack(
            0 if name is None else len(named) + 1, len(ended), 0 if extra is None else len(extra) + 1
        )  # fmt: skip
    except struct.error as exc:
        raise ValueError(f"frame {frame.seq} has too long a name, status or extra: {exc}") from None
    position = b"%d.%d.%08x+" % (frame.seq, frame.offset, frame.crc)
    return b"".join((position, head, named, ended, extra or b"", data))


def frame_of(entry: bytes) -> Frame:
    """What `pack` was given. Raises LogUnavailable for anything else."""
    try:
        begin = entry.index(b".", entry.index(b".") + 1) + 9
        seq, offset, crc = entry[:begin].split(b".")
        mark, begin = entry[begin : begin + 1], begin + 1
        if mark == b" ":
            return Frame(int(seq), int(offset), int(crc, 16), entry[begin:])
        named, ended, more = _HEAD.unpack_from(entry, begin)
        begin += _HEAD.size
        words = []
        for length in (named and named - 1, ended, more and more - 1):
            words.append(entry[begin : begin + length])
            begin += length
        name, status, extra = words
        return Frame(
            int(seq),
            int(offset),
            int(crc, 16),
            entry[begin:],
            name.decode() if named else None,
            status.decode() if ended else None,
            extra if more else None,
        )
    except (ValueError, struct.error):
        raise damaged("a frame") from None


def frames_of(page: bytes) -> list[Frame]:
    """Those of a page, each of which stands behind its length."""
    found, begin = [], 0
    while begin < len(page):
        (length,) = _LENGTH.unpack_from(page, begin)
        begin += _LENGTH.size
        found.append(frame_of(page[begin : begin + length]))
        begin += length
    return found


# ---- what belongs to a stream ---------------------------------------------------------------------


def info_text(info: StreamInfo) -> bytes:
    """An info as it is stored. Raises TypeError and ValueError for options that JSON does not have."""
    fields = attrs.asdict(info, recurse=False)
    return json.dumps({**fields, "options": dict(info.options)}, allow_nan=False).encode()


def info_of(text: bytes) -> StreamInfo:
    try:
        return StreamInfo(**json.loads(text))
    except (TypeError, ValueError):
        raise damaged("an info") from None


def state_of(sid: str, now: int, fields: Sequence[bytes]) -> StreamState:
    """`fields` are the names and values of the stream's hash."""
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    try:
        tail = cursor_of(sid, found[b"tail"])
        at = found.get(b"at")
        return StreamState(
            info=info_of(found[b"info"]),
            tail=tail,
            first=cursor_of(sid, found[b"first"]),
            epoch=int(found[b"epoch"]),
            held=tail.status is None and now < int(found[b"held"]),
            cancelled=b"cancelled" in found,
            age=max(0, now - int(found[b"created"])) / 1000,
            checkpoint=None if at is None else Checkpointed(cursor_of(sid, at), found[b"state"]),
            crashes=int(found.get(b"crashes", 0)),
        )
    except (KeyError, ValueError):
        raise damaged("a stream") from None


def signals_of(entries: Sequence[Any]) -> list[Signal]:
    found = []
    for number, fields in entries:
        kind = fields[1].decode()
        if kind not in ("cancel", "grant", "read"):
            raise damaged("a signal")
        found.append(Signal(int(number.partition(b"-")[0]), kind, fields[3]))
    return found


def digest(*parts: str | None) -> str:
    """What stands in a key's name for a name, a principal or an idempotency key: they may be long, or say too much."""
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
