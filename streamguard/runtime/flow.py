"""How far one connection may be sent to, and whether its reader still lives, by what the reader says itself.

A write that succeeds proves little: a proxy reads on for a reader that has gone, and some servers take whatever they
are given. So a reader may grant *credit*, up to which frames are sent, and then answers signs of life too:

    no credit left            nothing is sent, and the heartbeats say `blocked`, so that a lost grant is repeated
    still none, `limit` after the first of those
                              the connection ends as `slow`; the reader comes back with its cursor
    three beats unanswered    the reader is gone: the connection is dropped

The frames stay in the log meanwhile; no other reader waits, nor does the producer.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Final

import anyio

from streamguard.core.credit import Credit, Grant, Sent
from streamguard.core.cursor import Cursor
from streamguard.core.frame import place_of, status_of

__all__ = ["MISSED", "Flow"]

MISSED: Final = 3  # beats without an answer, after which a reader is gone
_SAMPLED: Final = 0.1  # seconds, or so, between two frames of which an acknowledgement says how long it took
_MOST_BETWEEN: Final = 64  # frames, the same
_ASIDE: Final = 5.0  # seconds between two signs that a blocked stream is read all the same

Page = Sequence[Any]  # of frames, or of rows, as the log has them
Pages = AsyncGenerator[Page, None]


class Flow:
    """One connection's. `limit` is how long, in seconds, a reader may leave it blocked, and `beats` whether it is sent
    heartbeats at all. `gone` is called, once, when the reader is taken for gone."""

    # What `free` looks at comes first, and without a dict between: with hundreds of streams each object that a token
    # touches is one that the processor has to fetch.
    __slots__ = (
        "_beats", "_bytes", "_changed", "_clock", "_last", "_limit", "_mark", "_next", "_noted", "_noted_at", "_said",
        "_sent", "blocked", "credit", "gone", "measured", "rtt", "slow", "unanswered", "waited",
    )  # fmt: skip

    def __init__(
        self,
        credit: Credit,
        at: Cursor,
        *,
        limit: float | None,
        beats: bool = True,
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        self.credit = credit
        self.blocked = False
        self.slow = False  # the reader left it blocked for too long
        self.unanswered = 0  # beats since the reader said anything
        self.rtt: float | None = None  # seconds, of the newest acknowledgement that was measured
        self.measured: float | None = None  # the same of the newest one of all, None where it was not
        self.gone: Callable[[], object] | None = None
        self.waited: Callable[[float], object] | None = None  # called after a wait for credit, with its seconds
        self._last: Any = (at.seq, at.offset, at.crc)  # frame, or row: the newest that was sent
        self._sent = Sent(at.sid)
        self._noted, self._noted_at, self._next = at.seq, -math.inf, at.seq + 1
        self._mark, self._bytes = self._next, credit.limit.bytes  # below both there is credit, and nothing to note
        self._limit = math.inf if limit is None else limit
        self._beats = beats
        self._said = False  # in a beat, since it is blocked
        self._clock = clock
        self._changed = anyio.Event()

    # ---- what the reader says -----------------------------------------------------------------

    def answered(self) -> None:
        """The reader said something: it lives."""
        self.unanswered = 0

    def give(self, grant: Grant) -> None:
        """The reader grants more."""
        if self.credit.give(grant):
            self._marked()
            self._changed.set()

    def acknowledge(self, cursor: Cursor) -> bool:
        """The reader has everything up to `cursor`. False where that is not known as one that was sent here."""
        rtt = self.measured = self._sent.ack(cursor, self._clock())
        if rtt is None:
            return cursor == self._sent.acked
        self.rtt = rtt
        return True

    # ---- what is sent -------------------------------------------------------------------------

    def beat(self) -> bool:
        """A sign of life is due. False where the reader answered none of the last ones: then `gone` was called."""
        if self.unanswered >= MISSED:
            if self.gone is not None:
                self.gone()
            return False
        self.unanswered += 1
        if self.blocked and not self._said:
            self._said = True
            self._changed.set()
        return True

    def free(self, page: Page) -> bool:
        """Whether all frames of a page may start, which are then taken for sent. A terminal needs no credit."""
        last = page[-1]
        seq, offset, _ = place_of(last)
        # Where even the last one ends within the limits, no other needs to be looked at.
        if seq < self._mark and offset < self._bytes:
            self._last = last
            return True
        if self._allowed(page) < len(page):
            return False
        self._goes(last)
        return True

    async def some(
        self, page: Page, reading: Callable[[], Awaitable[None]] | None, leave: Callable[[], bool] | None
    ) -> int | None:
        """How many frames of a page that is not `free` start, before it is to be asked again: none, where there was no
        credit and now is more. `reading` is called now and then while there is none. None where nothing more is to be
        sent: the reader is `slow`, or `leave` answers True."""
        if leave is not None and leave():
            return None
        count = self._allowed(page)
        if count:
            self._goes(page[count - 1])
        elif not await self._granted(reading, leave):
            return None
        return count

    def _allowed(self, page: Page) -> int:
        """How many of the page's frames may start."""
        frames, size = self.credit.limit
        seq, offset, _ = place_of(page[-2] if len(page) > 1 else self._last)
        if seq < frames and offset < size:  # before the last one: all of them
            return len(page)
        seq, offset, _ = place_of(self._last)
        for count, frame in enumerate(page):
            if not (seq < frames and offset < size) and status_of(frame) is None:
                return count
            seq, offset, _ = place_of(frame)
        return len(page)

    def _goes(self, last: Any) -> None:
        """All up to this frame is handed to the transport."""
        self._last = last
        seq, offset, crc = place_of(last)
        if seq < self._next:
            return
        # Not by the clock, which would be asked for every token: after as many frames as came in that time lately.
        now = self._clock()
        few = (seq - self._noted) * _SAMPLED / max(now - self._noted_at, _SAMPLED / _MOST_BETWEEN)
        self._noted, self._noted_at, self._next = seq, now, seq + max(1, min(round(few), _MOST_BETWEEN))
        self._sent.add(seq, offset, crc, now)
        self._marked()

    def _marked(self) -> None:
        frames, self._bytes = self.credit.limit
        self._mark = min(self._next, frames + 1)

    def _open(self) -> bool:
        seq, offset, _ = place_of(self._last)
        return seq < self.credit.limit.frames and offset < self.credit.limit.bytes

    async def _granted(
        self, reading: Callable[[], Awaitable[None]] | None, leave: Callable[[], bool] | None
    ) -> bool:
        """Wait for credit. False, and `slow`, where none comes in time: counted from the first beat that asked for it,
        where there are beats. True also where it is to `leave`."""
        self.blocked, self._said, since = True, not self._beats, self._clock()
        until = math.inf if self._beats else self._clock() + self._limit
        try:
            while not self._open():
                if self._said and until == math.inf:
                    until = self._clock() + self._limit
                left = until - self._clock()
                if left <= 0:
                    self.slow = True
                    return False
                self._changed = anyio.Event()
                with anyio.move_on_after(min(left, _ASIDE)):
                    await self._changed.wait()
                if leave is not None and leave():
                    break
                if reading is not None:
                    await reading()
        finally:
            self.blocked = False
            if self.waited is not None:
                self.waited(self._clock() - since)
        return True
