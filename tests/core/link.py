"""A link in virtual time, for windows: a queue before a pipe of so many bytes a second, a delay each way, and loss.

Packets are delivered in order, as TCP does: one that is lost is sent again a round later, and all behind it wait.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import attrs

from streamguard.core.window import Sample

__all__ = ["Phase", "Result", "run"]

PACKET = 1400


@attrs.frozen
class Phase:
    """`rate` in bytes a second, `delay` (there and back) and `seconds` in seconds, `loss` the share of packets."""

    seconds: float
    rate: float
    delay: float
    loss: float = 0.0


@attrs.define
class Result:
    """Of one phase: bytes a second that arrived, and how long they waited before the link, in seconds, on average."""

    delivered: int = 0
    waited: float = 0.0
    packets: int = 0
    seconds: float = 0.0
    most: float = 0.0

    @property
    def rate(self) -> float:
        return min(self.delivered / self.seconds, self.most)

    @property
    def queue(self) -> float:
        return self.waited / max(1, self.packets)


def run(phases: list[Phase], take: Callable[[Sample], int], first: int, seed: int = 1) -> list[Result]:
    """A sender that always has more, through all phases. `take` is given a sample at each acknowledgement, and says
    how many bytes may be on their way."""
    chance = random.Random(seed)
    results = [Result(seconds=phase.seconds, most=phase.rate) for phase in phases]
    ends = [sum(phase.seconds for phase in phases[: at + 1]) for at in range(len(phases))]
    arrivals: list[tuple[float, int, float]] = []  # (when acknowledged, bytes sent by then, when sent)
    now, sent, acked, window, again = 0.0, 0, 0, first, 0
    free = 0.0  # when the link has taken all that was sent
    last = 0.0  # when the newest packet arrives: none overtakes
    while now < ends[-1]:
        at = next(index for index, end in enumerate(ends) if now < end)
        phase = phases[at]
        while sent - acked + PACKET <= max(window, PACKET):
            begins = max(now, free)
            free = begins + PACKET / phase.rate
            arrives = free + phase.delay
            while chance.random() < phase.loss:
                arrives += phase.delay + PACKET / phase.rate
                free += PACKET / phase.rate
                again += PACKET
            last = max(last, arrives)
            sent += PACKET
            heapq.heappush(arrivals, (last, sent, now))
            results[at].waited += begins - now
            results[at].packets += 1
        now, acked, sent_at = heapq.heappop(arrivals)
        reached = next((index for index, end in enumerate(ends) if now < end), len(ends) - 1)
        results[reached].delivered += PACKET
        window = take(Sample(now, sent, acked, now - sent_at, again, held=True))
    return results
