"""How much may be on its way to a reader: enough that its link is never idle, and no more than that.

A pure function of samples. Each says how much was sent and acknowledged so far, and how long the newest
acknowledgement took. Samples are summed up over rounds: one lasts until all is acknowledged that was sent when it
began, and counts the quickest acknowledgement in it, which no single lost packet makes late. At its end the window
moves:

    the window did not hold the sender back    hold: nothing was learned
    as quick as the path ever was              grow: twice as much at first, an eighth once that brings nothing faster,
                                               and twice again where several rounds in a row stayed as quick
    a little later                             hold: the link is busy, and so it should be
    later still: a queue stands before it      shrink to what the link delivered in the path's own time
    a tenth was sent again                     the same

A round after that is passed over, since what it acknowledges was sent before. If the next is as late although less is
on its way, it is no queue: the path is longer now. The path's own time is the shortest of the last ten seconds; when
that is out of date, the window shrinks to half for a round, so that any queue drains and the time can be taken anew.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

__all__ = ["Sample", "SendWindow"]

_SMALLEST: Final = 4096  # bytes: some twenty frames, so that a short answer never waits
_LARGEST: Final = 16 * 1024 * 1024  # bytes
_FRESH: Final = 10.0  # seconds that the shortest delay counts
_BUSY: Final = 1.08  # how much longer than the path's own time says that the link is never idle
_LATE: Final = 1.25  # and how much longer is a queue
_NOISE: Final = 0.002  # seconds that any system adds
_MARGIN: Final = 1.05  # over what the path holds
_AROUND: Final = 1.5  # the same where it is only to be about right
_SHARE: Final = 8  # a growing window grows by one part in so many
_AGAIN: Final = 10  # one byte in so many that is sent again is a link that loses what it is given too fast
_CALM: Final = 5  # rounds


@attrs.frozen
class Sample:
    """What is known at one moment. `now` in seconds of any steady clock; `sent` and `acked` in bytes since the
    connection began; `rtt` in seconds, of the newest acknowledgement (None: there is no new one); `again` is how
    many bytes were sent again so far, where that can be seen; `held` says whether the sender had more than
    the window let it send since the last sample."""

    now: float
    sent: int
    acked: int
    rtt: float | None = None
    again: int = 0
    held: bool = True


class SendWindow:
    """`size` is how many bytes may be sent and not acknowledged. Feed it with `take`; it starts at `first` bytes, and
    stays within `least` and `most`. Raises ValueError for bounds that are not in that order."""

    def __init__(self, first: int = 16 * 1024, *, least: int = _SMALLEST, most: int = _LARGEST) -> None:
        if not 0 < least <= first <= most:
            raise ValueError(f"0 < least <= first <= most, not {least}, {first}, {most}")
        self.size = first
        self.delay = math.inf  # the path's own, in seconds
        self.rate = 0.0  # bytes a second that the last round delivered
        self._least = least
        self._most = most
        self._taken = -math.inf  # when `delay` was
        self._doubling = True
        self._calm = 0  # rounds in a row that stayed as quick
        self._settling = False  # this round acknowledges what was sent before the window shrank
        self._cure: float | None = None  # the time of a round for which the window shrank
        self._probe: int | None = None  # the size to go back to once the path's own time is taken
        self._began: Sample | None = None
        self._quickest = math.inf
        self._held = False

    def take(self, sample: Sample) -> int:
        """Learn from a sample, and the size from now on, in bytes. A sample that goes back in time, or takes
        acknowledgements back, is passed over."""
        began = self._began
        if began is None:
            self._begin(sample)
            return self.size
        if sample.now < began.now or sample.acked < began.acked:
            return self.size
        if sample.rtt is not None and sample.rtt > 0:
            self._quickest = min(self._quickest, sample.rtt)
        self._held = self._held or sample.held
        if sample.acked >= began.sent and sample.now > began.now and self._quickest < math.inf:
            self._turn(began, sample)
            self._begin(sample)
        return self.size

    def _begin(self, sample: Sample) -> None:
        self._began, self._quickest, self._held = sample, math.inf, sample.held

    def _turn(self, began: Sample, ended: Sample) -> None:
        """A round is over."""
        if self._settling:
            self._settling = False
            if self._cure is not None:  # what was sent before it shrank had to wait longer still
                self._cure = max(self._cure, self._quickest)
            return
        before, quickest, now = self.rate, self._quickest, ended.now
        rate = (ended.acked - began.acked) / (now - began.now)
        shorter = quickest < 0.9 * self.delay < math.inf
        if self._probe is not None or quickest <= self.delay or self._stays(quickest):
            self.delay, self._taken = quickest, now
        if shorter:  # the path is not what it was, or its queue is not empty yet
            self._drain()
            return
        if self._probe is not None:
            self._set(min(self._probe, int(_AROUND * self.rate * self.delay)))
            self._probe = None
            return
        self.rate = rate
        again = ended.again - began.again
        # What is sent again comes a round trip later, and all behind it with it: that alone is no queue.
        if quickest > (_LATE + (again > 0)) * self.delay + _NOISE or again * _AGAIN > ended.sent - began.sent:
            self._shrink(quickest)
            return
        self._cure = None
        if now - self._taken > _FRESH:
            self._drain()
        elif not self._held or quickest > _BUSY * self.delay + _NOISE:
            self._calm = 0
        else:
            self._grow(before)

    def _drain(self) -> None:
        """Half as much for a round, so that the path's own time can be taken."""
        self._probe, self._settling = self._probe or self.size, True
        self._set(self.size // 2)

    def _stays(self, quickest: float) -> bool:
        """Whether less on its way did not make it any quicker."""
        return self._cure is not None and quickest > 0.95 * self._cure

    def _grow(self, before: float) -> None:
        self._calm += 1
        if self._doubling and self.rate < 1.1 * before:
            self._doubling = False  # twice as much did not arrive any faster
        if self._calm > _CALM:
            self._doubling, self._calm = True, 0
        # Doubled is what arrived: of what the window was since, nothing is known yet.
        twice = max(self.size, min(2 * self.size, int(2 * self.rate * self.delay)))
        self._set(twice if self._doubling else self.size + self.size // _SHARE)

    def _shrink(self, quickest: float) -> None:
        self._doubling, self._calm = False, 0
        self._cure, self._settling = quickest, True
        self._set(int(min(0.85 * self.size, max(0.5 * self.size, _MARGIN * self.rate * self.delay))))

    def _set(self, size: int) -> None:
        self.size = max(self._least, min(self._most, size))
