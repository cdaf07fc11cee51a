"""One stream as the writer of a file has it in mind, and how frames get into its blocks and out of them.

The functions are called inside a transaction of the writer's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.frame import Frame, Row, row_of
from streamguard.log.sqlite_blocks import BEGIN, LONG, Damaged, block_size, fits, locate, pack, step
from streamguard.log.sqlite_reading import block_of

__all__ = ["Filling", "Kept", "fill", "remember", "trim"]

_KEPT: Final = 7 / 8  # of `Retention.max_bytes`, after trimming: so that not every further append has to trim
_RECENT: Final = 64  # frames of a stream, and
_RECENT_BYTES: Final = 16 * 1024  # their data, that are kept for readers in this process


@attrs.define(eq=False)
class Filling:
    """The one that a stream is filling: what it holds, and up to which byte."""

    id: int
    data: bytearray
    used: int

    def put(self, content: bytes) -> None:
        end = self.used + len(content)
        self.data[self.used : end] = content
        self.used = end


@attrs.define(eq=False)
class Kept:
    """One stream, as it is stored or will be at the end of the transaction."""

    id: int
    sid: str
    tail: Cursor
    first: Cursor
    epoch: int
    until: float
    touched: float
    cancelled: bool
    signals: int
    crashes: int
    block: Filling | None = None
    base: Cursor = attrs.field(default=attrs.Factory(lambda self: self.tail, takes_self=True))
    recent: list[Row] = attrs.field(factory=list)  # those behind `base`

    def row(self) -> tuple[Any, ...]:
        _, seq, offset, crc, status = self.tail
        _, *first, _ = self.first
        return (
            self.id, self.epoch, seq, offset, crc, status, self.until, self.touched,
            *first, self.cancelled, self.signals, self.crashes,
        )  # fmt: skip


def fill(connection: sqlite3.Connection, kept: Kept, frames: Sequence[Frame]) -> Filling | None:
    """Put frames into the stream's block, and what does not fit into new ones; the block that is to be written again.

    Raises ValueError for a frame that cannot be stored, Damaged where the block is not what it was.
    """
    block = kept.block
    if block is not None and len(frames) == 1:  # a token, mostly: as below, without the lists
        piece = pack(frames[0])
        if block.used + len(piece) <= len(block.data):
            block.put(piece)
            return block
        pieces = [piece]
    else:
        pieces = [pack(frame) for frame in frames]
    if block is None and kept.tail.seq > kept.first.seq:
        block = kept.block = _last_block(connection, kept)
    again = None
    done = 0
    if block is not None:
        done = fits(block.data, block.used, pieces)
        if done:
            block.put(b"".join(pieces[:done]))
            again = block
    while done < len(pieces):
        before = frames[done - 1] if done else kept.tail
        data = bytearray(block_size(max(len(pieces[done]), LONG if before.seq else 0)))
        count = fits(data, BEGIN, pieces[done:])
        kept.block = Filling(0, data, BEGIN)
        kept.block.put(b"".join(pieces[done : done + count]))
        inserted = connection.execute(
            'INSERT INTO blocks (stream, seq, "offset", crc, data) VALUES (?, ?, ?, ?, ?)',
            (kept.id, before.seq, before.offset, before.crc, data),
        )
        assert inserted.lastrowid is not None
        kept.block.id = inserted.lastrowid
        done += count
    return again


def trim(connection: sqlite3.Connection, kept: Kept, max_bytes: int) -> bool:
    """Move `first` on until what is kept is small enough, or one frame, and delete what is before. Whether it moved."""
    least = kept.tail.offset - int(max_bytes * _KEPT)
    seq = kept.first.seq
    # The oldest first: as many are looked at as will be deleted.
    query = 'SELECT seq, "offset" FROM blocks WHERE stream = ? ORDER BY seq'
    for begin, offset in connection.execute(query, (kept.id,)):
        if offset > least:
            break
        seq = begin
    found = block_of(connection, kept.id, kept.sid, seq)
    where, at = BEGIN, found.at
    while at.offset < least and at.seq < kept.tail.seq - 1:
        where, at = step(found.data, where, at)
    if at.seq <= kept.first.seq:
        return False
    kept.first = at
    connection.execute("DELETE FROM blocks WHERE stream = ? AND seq < ?", (kept.id, found.at.seq))
    return True


def remember(kept: Kept, frames: Sequence[Frame]) -> None:
    """Add to the newest frames; drop the older half of them when they are many."""
    recent = kept.recent
    for frame in frames:
        recent.append(row_of(frame))
    end = recent[-1][1]
    if len(recent) <= _RECENT and end - kept.base.offset <= _RECENT_BYTES:
        return
    start = max(0, len(recent) - _RECENT // 2)
    while start < len(recent) and end - recent[start][1] + len(recent[start][3]) > _RECENT_BYTES // 2:
        start += 1
    if start:
        kept.base = Cursor(kept.sid, *recent[start - 1][:3])
        kept.recent = recent[start:]  # another list: readers may be looking at this one


def _last_block(connection: sqlite3.Connection, kept: Kept) -> Filling:
    tail = kept.tail
    found = block_of(connection, kept.id, kept.sid, tail.seq - 1)
    used, at = locate(found.data, found.at, tail.seq)
    if at != tail:
        raise Damaged
    return Filling(found.id, bytearray(found.data), used)
