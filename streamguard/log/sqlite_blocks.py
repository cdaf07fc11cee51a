"""How frames, and whatever else holds text, lie in a file: in blocks that own whole pages of it.

SQLite keeps the first bytes of a large row in a page with other rows, and moves them about; the rest goes to pages that
belong to this row alone, and are overwritten when it is deleted. So a block begins with bytes of no meaning, and its
length is such that exactly those, and a few numbers of its row, stand among others (file format, section 1.6).

Pages are small, because each append writes at least one: the write-ahead log grows by so much for a frame of 20 bytes.

The blocks of a stream are filled one after the other. A frame stands in one of them as

    crc, length + 1, length of its name + 1, of its status, of its extra + 1, then these four

where 0 says that there is none. Its number and its offset follow from the frames before it, back to those of the block,
and so does its checksum: what was damaged is found as it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from streamguard.core.cursor import Cursor, chain
from streamguard.core.frame import Frame

__all__ = [
    "BEGIN",
    "LONG",
    "PAGE_SIZE",
    "Damaged",
    "block_size",
    "fits",
    "locate",
    "pack",
    "padded",
    "step",
    "unpack",
    "unpadded",
]

PAGE_SIZE: Final = 1024  # of the file
BEGIN: Final = (PAGE_SIZE - 12) * 32 // 255 - 23  # bytes at the beginning of a row that stand among other rows
_OWN: Final = PAGE_SIZE - 4  # bytes of each page that a row owns
_BESIDE: Final = 120  # bytes that a row may have beside its block
LONG: Final = 3000  # bytes that a block holds at least, once a stream has begun

_HEAD: Final = struct.Struct("<IIHBI")
_LENGTH: Final = struct.Struct("<I")
_SPACE: Final = bytes(BEGIN)


class Damaged(Exception):
    """What is stored cannot have been stored so."""


def block_size(payload: int) -> int:
    """Bytes of a block that holds so many."""
    pages = max(1, -(-(payload + _BESIDE) // _OWN))
    return BEGIN + pages * _OWN - _BESIDE


def padded(payload: bytes) -> bytes:
    """One block that holds `payload`."""
    body = _SPACE + _LENGTH.pack(len(payload)) + payload
    return body.ljust(block_size(len(body) - BEGIN), b"\0")


def unpadded(block: bytes) -> bytes:
    """What `padded` was given. Raises Damaged."""
    begin = BEGIN + _LENGTH.size
    if begin > len(block):
        raise Damaged
    (length,) = _LENGTH.unpack_from(block, BEGIN)
    if begin + length > len(block):
        raise Damaged
    return block[begin : begin + length]


def pack(frame: Frame) -> bytes:
    """A frame as it stands in a block. Raises ValueError for a name, status or extra that is too long."""
    data, name, status, extra = frame.data, frame.name, frame.status, frame.extra
    if name is None and status is None and extra is None:
        return _HEAD.pack(frame.crc, len(data) + 1, 0, 0, 0) + data
    named = b"" if name is None else name.encode()
    ended = b"" if status is None else status.encode()
    try:
        head = _HEAD.pack(
            frame.crc,
            len(data) + 1,
            0 if name is None else len(named) + 1,
            len(ended),
            0 if extra is None else len(extra) + 1,
        )
    except struct.error as exc:
        raise ValueError(f"frame {frame.seq} has too long a name, status or extra: {exc}") from None
    return b"".join((head, named, ended, data, extra or b""))


def step(block: bytes, where: int, at: Cursor) -> tuple[int, Cursor]:
    """Past the frame at byte `where`, position `at`. Raises Damaged if there is none."""
    if where > len(block) - _HEAD.size:
        raise Damaged
    crc, length, name, status, extra = _HEAD.unpack_from(block, where)
    where += _HEAD.size + length - 1 + (name and name - 1) + status + (extra and extra - 1)
    if not length or where > len(block):
        raise Damaged
    return where, Cursor(at.sid, at.seq + 1, at.offset + length - 1, crc)


def locate(block: bytes, at: Cursor, seq: int) -> tuple[int, Cursor]:
    """The byte behind frame number `seq`, and the position there; `at` is the one before the block."""
    where = BEGIN
    while at.seq < seq:
        where, at = step(block, where, at)
    return where, at


def unpack(block: bytes, where: int, at: Cursor, limit: int, frames: list[Frame]) -> Cursor:
    """Append to `frames` those that stand in the block from byte `where`, position `at`, until there are `limit`.

    The position behind them. Raises Damaged for one whose checksum is not right.
    """
    sid, seq, offset, crc, status = at
    size, head, last = _HEAD.size, _HEAD.unpack_from, len(block) - _HEAD.size
    append = frames.append
    room = limit - len(frames)
    while room > 0 and where <= last:
        found, length, named, ended, more = head(block, where)
        if not length:
            break
        where += size
        end = where + length - 1
        name = status = extra = None
        if named or ended or more:
            try:
                name, status, begin = _words(block, where, named, ended)
            except UnicodeDecodeError:
                raise Damaged from None
            end += begin - where
            data = block[begin:end]
            if more:
                extra = block[end : end + more - 1]
        else:
            data = block[where:end]
        where = end + (more and more - 1)
        crc = chain(crc, name, status, data)
        if crc != found or where > len(block):
            raise Damaged
        seq += 1
        offset += length - 1
        append(Frame(seq, offset, crc, data, name, status, extra))
        room -= 1
    return Cursor(sid, seq, offset, crc, status)


def _words(block: bytes, where: int, named: int, ended: int) -> tuple[str | None, str | None, int]:
    """Name and status that stand at `where`, and what follows them."""
    name = block[where : where + named - 1].decode() if named else None
    where += named and named - 1
    status = block[where : where + ended].decode() if ended else None
    return name, status, where + ended


def fits(block: bytes | bytearray, used: int, pieces: Sequence[bytes]) -> int:
    """How many of `pieces` fit into the block behind byte `used`."""
    room = len(block) - used
    for count, piece in enumerate(pieces):
        room -= len(piece)
        if room < 0:
            return count
    return len(pieces)
