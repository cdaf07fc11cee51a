"""What is read from a file, on any connection: each function is one look at it, or is called inside a transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from streamguard.core.cursor import Cursor
from streamguard.core.frame import Frame
from streamguard.log.base import (
    Checkpointed,
    CursorMisfit,
    CursorTrimmed,
    LogLost,
    Signal,
    StreamInfo,
    StreamState,
    UnknownStream,
)
from streamguard.log.sqlite_blocks import BEGIN, Damaged, locate, unpack, unpadded

__all__ = [
    "COLUMNS",
    "Block",
    "Head",
    "block_of",
    "digest",
    "head_of",
    "heads_of",
    "info_of",
    "moved",
    "read_frames",
    "read_info",
    "read_moved",
    "read_signals",
    "read_state",
    "require_position",
]

COLUMNS: Final = (
    'id, epoch, seq, "offset", crc, status, until, touched, first_seq, first_offset, first_crc, cancelled, signals, '
    "crashes"
)
_TAILS: Final = ", ".join("tails." + name.strip() for name in COLUMNS.split(","))
_BLOCK: Final = 'id, seq, "offset", crc, data'


class Head(NamedTuple):
    """A stream without its text."""

    id: int
    epoch: int
    tail: Cursor
    until: float
    touched: float
    first: Cursor
    cancelled: bool
    signals: int
    crashes: int


class Block(NamedTuple):
    """`at` is the position before it."""

    id: int
    at: Cursor
    data: bytes


def digest(*parts: str | None) -> bytes:
    """What stands in an index for a name or a key: such rows are moved about, and would outlive a purge."""
    return blake2b(json.dumps(parts).encode(), digest_size=16).digest()


def _head(sid: str, row: tuple[Any, ...]) -> Head:
    number, epoch, seq, offset, crc, status, until, touched, *first, cancelled, last, crashes = row
    _require_ints(epoch, seq, offset, crc, *first, cancelled, last, crashes)
    if type(until) is not float or type(touched) is not float or not (status is None or type(status) is str):
        raise Damaged
    return Head(
        number,
        epoch,
        Cursor(sid, seq, offset, crc, status),
        until,
        touched,
        Cursor(sid, *first),
        bool(cancelled),
        last,
        crashes,
    )


def _require_ints(*values: object) -> None:
    """What another type is read from was not written by us."""
    for value in values:
        if type(value) is not int:
            raise Damaged


def head_of(connection: sqlite3.Connection, sid: str) -> Head | None:
    row = connection.execute(f"SELECT {_TAILS} FROM streams JOIN tails USING (id) WHERE sid = ?", (sid,)).fetchone()
    return None if row is None else _head(sid, row)


def heads_of(connection: sqlite3.Connection, sids: Iterable[str]) -> dict[str, Head]:
    """Those that there are, at one moment."""
    query = f"SELECT sid, {_TAILS} FROM streams JOIN tails USING (id) WHERE sid IN (SELECT value FROM json_each(?))"
    rows = connection.execute(query, (json.dumps(list(sids)),)).fetchall()
    return {row[0]: _head(row[0], row[1:]) for row in rows}


def block_of(connection: sqlite3.Connection, stream: int, sid: str, seq: int) -> Block:
    """The block that holds the frame after number `seq`, or ends with that one. Raises Damaged for none."""
    row = connection.execute(
        f"SELECT {_BLOCK} FROM blocks WHERE stream = ? AND seq <= ? ORDER BY seq DESC LIMIT 1", (stream, seq)
    ).fetchone()
    if row is None:
        raise Damaged
    return _block(sid, row)


def _block(sid: str, row: tuple[Any, ...]) -> Block:
    number, seq, offset, crc, data = row
    _require_ints(seq, offset, crc)
    if type(data) is not bytes:
        raise Damaged
    return Block(number, Cursor(sid, seq, offset, crc), data)


def require_position(connection: sqlite3.Connection, number: int, tail: Cursor, first: Cursor, after: Cursor) -> None:
    """Raise LogLost, CursorTrimmed or CursorMisfit unless `after` is a position that can be read from."""
    _within(tail, first, after)
    if after.seq == tail.seq:
        at = tail
    else:
        block = block_of(connection, number, after.sid, after.seq)
        at = locate(block.data, block.at, after.seq)[1]
    _same(tail, at, after)


def read_frames(connection: sqlite3.Connection, after: Cursor, limit: int) -> list[Frame]:
    """See `StreamLog.read`. Inside a transaction. Raises Damaged for what cannot have been stored so."""
    head = _found(connection, after.sid)
    tail = head.tail
    _within(tail, head.first, after)
    if after.seq == tail.seq:
        _same(tail, tail, after)
        return []
    block = block_of(connection, head.id, after.sid, after.seq)
    where, at = locate(block.data, block.at, after.seq)
    _same(tail, at, after)
    frames: list[Frame] = []
    at = unpack(block.data, where, at, limit, frames)
    if len(frames) < limit and at.seq < tail.seq:
        query = f"SELECT {_BLOCK} FROM blocks WHERE stream = ? AND seq >= ? ORDER BY seq"
        for row in connection.execute(query, (head.id, at.seq)):
            block = _block(after.sid, row)
            if block.at != at:
                raise Damaged
            at = unpack(block.data, BEGIN, at, limit, frames)
            if len(frames) >= limit:
                break
    if at != tail if at.seq >= tail.seq else len(frames) < limit:
        raise Damaged
    return frames


def read_moved(connection: sqlite3.Connection, after: Cursor) -> bool:
    """Whether there is something to do for a reader at `after`."""
    head = head_of(connection, after.sid)
    return head is None or moved(head.tail, after)


def moved(tail: Cursor, after: Cursor) -> bool:
    """Whether a stream is sealed, or stands elsewhere than at `after`."""
    return tail.status is not None or tail[:4] != after[:4]


def read_state(connection: sqlite3.Connection, sid: str, now: float) -> StreamState:
    head = _found(connection, sid)
    info, created = connection.execute("SELECT info, created FROM streams WHERE id = ?", (head.id,)).fetchone()
    row = connection.execute('SELECT seq, "offset", crc, state FROM checkpoints WHERE id = ?', (head.id,)).fetchone()
    return StreamState(
        info=info_of(info),
        tail=head.tail,
        first=head.first,
        epoch=head.epoch,
        held=head.tail.status is None and now < head.until,
        cancelled=head.cancelled,
        age=now - created,
        checkpoint=None if row is None else Checkpointed(Cursor(sid, *row[:3]), unpadded(row[3])),
        crashes=head.crashes,
    )


def read_signals(connection: sqlite3.Connection, sid: str, after: int) -> list[Signal]:
    head = _found(connection, sid)
    if head.signals <= after:
        return []
    query = "SELECT number, kind, payload FROM signals WHERE id = ? AND number > ? ORDER BY number"
    return [Signal(*row) for row in connection.execute(query, (head.id, after))]


def read_info(connection: sqlite3.Connection, column: str, value: bytes) -> StreamInfo | None:
    """The newest stream with this digest in that column."""
    query = f"SELECT info FROM streams WHERE {column} = ? ORDER BY id DESC LIMIT 1"
    row = connection.execute(query, (value,)).fetchone()
    return None if row is None else info_of(row[0])


def info_of(block: bytes) -> StreamInfo:
    try:
        return StreamInfo(**json.loads(unpadded(block)))
    except (TypeError, ValueError):
        raise Damaged from None


def _found(connection: sqlite3.Connection, sid: str) -> Head:
    head = head_of(connection, sid)
    if head is None:
        raise UnknownStream(sid)
    return head


def _within(tail: Cursor, first: Cursor, after: Cursor) -> None:
    if after.seq > tail.seq:
        raise LogLost(tail)
    if after.seq < first.seq:
        raise CursorTrimmed(first)


def _same(tail: Cursor, at: Cursor, after: Cursor) -> None:
    if at.offset != after.offset or at.crc != after.crc:
        raise CursorMisfit(tail)
