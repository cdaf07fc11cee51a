"""One stream as a log in memory keeps it: its frames in a list, as rows, and what belongs to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.frame import Frame, Row
from streamguard.log.base import (
    PAGE,
    Checkpointed,
    CursorMisfit,
    CursorTrimmed,
    LogLost,
    Signal,
    StreamInfo,
    StreamSealed,
    UnknownStream,
    tail_of,
)
from streamguard.log.waits import Waits, Wakers

__all__ = ["FRAME_COST", "LET_GO", "KeptStream", "KeptTail", "cost"]

FRAME_COST: Final = 240  # bytes that CPython 3.11 spends on a row with its three numbers, without its data
LET_GO: Final = -math.inf  # when a lease ended that was released


def cost(row: Row) -> int:
    """Bytes that a frame counts: its data, its extra, and FRAME_COST."""
    return FRAME_COST + len(row[3]) + (len(row[6]) if len(row) > 4 and row[6] else 0)


@attrs.define(eq=False)
class KeptStream:
    """One stream. `first` is the position before `rows[0]`; `bytes` is what they count."""

    info: StreamInfo
    tail: Cursor
    lease_end: float
    created: float
    first: Cursor = attrs.field(default=attrs.Factory(lambda self: self.tail, takes_self=True))
    rows: list[Row] = attrs.field(factory=list)
    bytes: int = 0
    epoch: int = 1
    crashes: int = 0
    appended: float = attrs.field(default=attrs.Factory(lambda self: self.created, takes_self=True))
    ended: float | None = None
    forgotten: bool = False
    cancelled: bool = False
    checkpoint: Checkpointed | None = None
    signals: list[Signal] = attrs.field(factory=list)
    last_signal: int = 0
    readers: Wakers = attrs.field(factory=Wakers)  # asleep until something is appended
    listeners: Wakers = attrs.field(factory=Wakers)  # asleep until something is signalled

    def index(self, after: Cursor) -> int:
        """How many of `rows` stand before `after`. Raises LogLost, CursorTrimmed, CursorMisfit."""
        index = after.seq - self.first.seq
        if index > len(self.rows):
            raise LogLost(self.tail)
        if index < 0:
            raise CursorTrimmed(self.first)
        offset, crc = self.rows[index - 1][1:3] if index else self.first[2:4]
        if offset != after.offset or crc != after.crc:
            raise CursorMisfit(self.tail)
        return index

    def moved(self, after: Cursor) -> bool:
        """Whether there is something to do for a reader at `after`: it is not the open end."""
        tail = self.tail
        return self.ended is not None or tail[1] != after[1] or tail[:4] != after[:4]

    def require_stored(self, after: Cursor, frames: Sequence[Frame]) -> None:
        """Raise StreamSealed or CursorMisfit unless `frames` behind `after` are the tail already."""
        if frames and tail_of(after, frames) == self.tail:
            try:
                self.index(after)
            except CursorTrimmed:
                return  # by this very append; the tail's checksum is over what stood before, too
            except (LogLost, CursorMisfit):
                pass
            else:
                return
        if self.ended is not None:
            raise StreamSealed(self.tail)
        raise CursorMisfit(self.tail)

    def trim(self, limit: int) -> int:
        """Drop the oldest frames until at most `limit` bytes are left, or the last frame; the bytes dropped."""
        dropped = count = 0
        while self.bytes - dropped > limit and count < len(self.rows) - 1:
            dropped += cost(self.rows[count])
            count += 1
        if count:
            self.first = Cursor(self.info.sid, *self.rows[count - 1][:3])
            del self.rows[:count]
            self.bytes -= dropped
        return dropped

    def hand_over(self, until: float) -> None:
        """To another holder of its lease. A lease that was let go of is no crash."""
        if self.lease_end != LET_GO:
            self.crashes += 1
        self.epoch += 1
        self.lease_end = until

    def cancel(self) -> None:
        """Record a cancel. Raises StreamSealed."""
        if self.ended is not None:
            raise StreamSealed(self.tail)
        self.cancelled = True

    def drop_signal(self) -> None:
        """The oldest that is no cancel; of several cancels, all but the first say nothing new."""
        signals = self.signals
        first = next((index for index, signal in enumerate(signals) if signal.kind == "cancel"), -1)
        del signals[1 if first == 0 else 0]


class KeptTail:
    """A reader of one stream in this process. See `log.base.Tail`.

    Its position was compared with the stream's once; from there on it counts, since what is kept only grows, or is
    trimmed.
    """

    __slots__ = ("_seq", "_stream", "_waits")

    def __init__(self, stream: KeptStream, after: Cursor, waits: Waits) -> None:
        stream.index(after)
        self._stream = stream
        self._seq = after.seq
        self._waits = waits

    async def next(self, seconds: float) -> list[Row]:
        stream = self._stream
        if stream.tail[1] == self._seq and stream.ended is None and not stream.forgotten:
            await self._waits.sleep(stream.readers, seconds)
        if stream.forgotten:
            raise UnknownStream(stream.info.sid)
        index = self._seq - stream.first[1]
        if index < 0:
            raise CursorTrimmed(stream.first)
        rows = stream.rows[index : index + PAGE]
        if rows:
            self._seq = rows[-1][0]
        elif stream.tail[1] != self._seq:
            raise LogLost(stream.tail)
        return rows
