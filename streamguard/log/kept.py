"""One stream as a log in memory keeps it: its frames in a list, and what belongs to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.frame import Frame
from streamguard.log.base import (
    Checkpointed,
    CursorMisfit,
    CursorTrimmed,
    LogLost,
    Signal,
    StreamInfo,
    StreamSealed,
    tail_of,
)
from streamguard.log.waits import Wakers

__all__ = ["FRAME_COST", "KeptStream", "cost"]

FRAME_COST: Final = 240  # bytes that CPython 3.11 spends on a Frame with its three numbers, without its data


def cost(frame: Frame) -> int:
    """Bytes that a frame counts: its data, its extra, and FRAME_COST."""
    return FRAME_COST + len(frame.data) + (len(frame.extra) if frame.extra else 0)


@attrs.define(eq=False)
class KeptStream:
    """One stream. `first` is the position before `frames[0]`; `bytes` is what they count."""

    info: StreamInfo
    tail: Cursor
    lease_end: float
    created: float
    first: Cursor = attrs.field(default=attrs.Factory(lambda self: self.tail, takes_self=True))
    frames: list[Frame] = attrs.field(factory=list)
    bytes: int = 0
    epoch: int = 1
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
        """How many of `frames` stand before `after`. Raises LogLost, CursorTrimmed, CursorMisfit."""
        index = after.seq - self.first.seq
        if index > len(self.frames):
            raise LogLost(self.tail)
        if index < 0:
            raise CursorTrimmed(self.first)
        before = self.frames[index - 1] if index else self.first
        if before.offset != after.offset or before.crc != after.crc:
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
        while self.bytes - dropped > limit and count < len(self.frames) - 1:
            dropped += cost(self.frames[count])
            count += 1
        if count:
            frame = self.frames[count - 1]
            self.first = Cursor(self.info.sid, frame.seq, frame.offset, frame.crc)
            del self.frames[:count]
            self.bytes -= dropped
        return dropped

    def drop_signal(self) -> None:
        """The oldest that is no cancel; of several cancels, all but the first say nothing new."""
        signals = self.signals
        first = next((index for index, signal in enumerate(signals) if signal.kind == "cancel"), -1)
        del signals[1 if first == 0 else 0]
