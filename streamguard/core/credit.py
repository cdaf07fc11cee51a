"""How far a sender may go: up to the largest of all grants, each an absolute limit in frames and bytes.

Absolute limits bear what counts of "so much more" do not: a grant that comes twice, late, or out of order changes
nothing, and one that is lost is made good by the next. Both limits are positions in the stream, as a cursor has them,
so that they hold across connections too.

    sender    `Credit`: a frame may start while the position before it is below both limits. One frame may thus
              overshoot its limit, and none is ever too large to be sent.
    reader    `Granter`: grants anew once half of what it gave is used up, and says so in an acknowledgement.
    both      an acknowledgement counts only if its cursor was sent on this connection (`Sent`), and each is a sample of
              how long the way there and back takes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final, NamedTuple

from streamguard.core.cursor import MAX_NUMBER, Cursor

__all__ = ["Credit", "Grant", "Granter", "Sent"]

_KEPT: Final = 512  # cursors that wait for their acknowledgement; of more, every other one is forgotten


class Grant(NamedTuple):
    """Absolute limits: the number of the frame behind which none starts, and the offset likewise, in bytes."""

    frames: int
    bytes: int


def _grant(frames: int, size: int, at: Cursor) -> Grant:
    if frames < 1 or size < 1:
        raise ValueError(f"credit is for one frame and one byte at least, not ({frames} {size})")
    return Grant(min(at.seq + frames, MAX_NUMBER), min(at.offset + size, MAX_NUMBER))


class Credit:
    """A sender's limit on one connection, which begins at the cursor `at` with `frames` and `size` more. Raises
    ValueError for less than one of either."""

    def __init__(self, frames: int, size: int, at: Cursor) -> None:
        self.limit = _grant(frames, size, at)

    def give(self, grant: Grant) -> bool:
        """Take a grant; whether it allows more than those before."""
        limit = Grant(max(self.limit.frames, grant.frames), max(self.limit.bytes, grant.bytes))
        more = limit != self.limit
        self.limit = limit
        return more

    def allows(self, at: Cursor) -> bool:
        """Whether a frame may start behind `at`."""
        return at.seq < self.limit.frames and at.offset < self.limit.bytes


class Granter:
    """A reader's side: how much it is willing to hold, `frames` and `size` bytes, from the cursor `at` on."""

    def __init__(self, frames: int, size: int, at: Cursor) -> None:
        self.grant = _grant(frames, size, at)
        self._frames = frames
        self._size = size

    def used(self, at: Cursor) -> Grant | None:
        """What to grant now that all up to `at` is used up, or None as long as half of the last grant is left."""
        left, room = self.grant.frames - at.seq, self.grant.bytes - at.offset
        if 2 * left > self._frames and 2 * room > self._size:
            return None
        self.grant = _grant(self._frames, self._size, at)
        return self.grant


class Sent:
    """What was sent of one stream on one connection and not acknowledged yet. Bounded: of many cursors only some are
    remembered, and an acknowledgement of another one says nothing."""

    def __init__(self, sid: str) -> None:
        self.acked: Cursor | None = None
        self._sid = sid
        # In columns, since there are hundreds of them a connection: a tuple of each would be one more object a frame
        # for the garbage collector to go through, which costs more than all the rest.
        self._seqs: deque[int] = deque()
        self._offsets: deque[int] = deque()
        self._crcs: deque[int] = deque()
        self._times: deque[float] = deque()
        self._skip = self._step = 1

    def __len__(self) -> int:
        return len(self._seqs)

    def add(self, seq: int, offset: int, crc: int, now: float) -> None:
        """A frame was handed to the transport, `now` in seconds."""
        self._skip -= 1
        if self._skip:
            return
        self._skip = self._step
        self._seqs.append(seq)
        self._offsets.append(offset)
        self._crcs.append(crc)
        self._times.append(now)
        if len(self._seqs) > _KEPT:
            self._seqs, self._offsets = deque(list(self._seqs)[1::2]), deque(list(self._offsets)[1::2])
            self._crcs, self._times = deque(list(self._crcs)[1::2]), deque(list(self._times)[1::2])
            self._step *= 2

    def ack(self, cursor: Cursor, now: float) -> float | None:
        """The seconds since `cursor` was sent; None if it was not, or not lately, or is no news."""
        seqs = self._seqs
        index = bisect_left(seqs, cursor.seq)
        if index == len(seqs):
            return None
        if cursor != Cursor(self._sid, seqs[index], self._offsets[index], self._crcs[index]):
            return None
        at = self._times[index]
        for column in (seqs, self._offsets, self._crcs, self._times):
            for _ in range(index + 1):
                column.popleft()
        if not seqs:
            self._skip = self._step = 1
        self.acked = cursor
        return now - at
