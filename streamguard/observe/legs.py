"""Which leg of a token's way is the slowest, and which setting changes that.

    legs = Legs(every=100)

    @guarded(observe=legs)

One token in a hundred is timed; `legs.slowest()` says, at any time, where most of the time went. Where that is less
than FLOOR seconds a token, every leg is as quick as it has to be, and nothing is to be changed: some leg is always the
slowest.

A write that its reader never takes is never over, and one that hangs once in a thousand is hardly among the samples. So
every wait for a reader counts as well, of which an observer is told without samples.
"""

from __future__ import annotations

from typing import Final

import attrs

from streamguard.core.arguments import require_whole_number
from streamguard.observe.hooks import Acknowledged, Blocked, Closed, Observer
from streamguard.observe.stream import Leg, Sampled

__all__ = ["FLOOR", "LEGS", "Legs", "Slowest", "Way"]

FLOOR: Final = 0.001  # seconds of a leg, below which nobody would notice a change

LEGS: Final[dict[Leg, tuple[str, str]]] = {
    "generated": (
        "the driver waited for the source",
        "the source itself: the model, its server, the way there; where streamguard_loop_lag_seconds is high as well, "
        "what blocks the event loop, or more workers",
    ),
    "buffered": (
        "the token was there and the driver free, and it was not taken",
        "what blocks the event loop (streamguard_loop_lag_seconds), or more workers; an async source, without "
        "`buffer=`, has no threads to change",
    ),
    "held": (
        "the flush policy kept it",
        "`flush=`: Immediate(), fewer tokens in EveryTokens(n), or any_of(…, Within(seconds))",
    ),
    "encoded": (
        "it was made into bytes",
        "`compress=None`, and larger frames: `flush=EveryTokens(8)`",
    ),
    "appended": (
        "the log took it",
        "the log, nearer or faster; and fewer appends: `flush=EveryTokens(8)`",
    ),
    "read": (
        "the log had it, and the reader's driver got it from there",
        "the log, nearer or faster; where streamguard_loop_lag_seconds is high as well, what blocks the event loop, or "
        "more workers",
    ),
    "credit": (
        "the reader had given no credit for it",
        "the reader: a larger `credit=`, and what it does between two tokens; its network",
    ),
    "sent": (
        "the transport took it",
        "what is between here and the reader: `streamguard check` finds a proxy that holds back; `window=` bounds what "
        "waits in between",
    ),
    "acknowledged": (
        "the reader had it, and the word of that came back",
        "the reader: what it does with a token, and its network; its `credit=` bounds what waits there",
    ),
}
"""Of each leg, what it is, and what to change where it is the slowest. In the order of the way."""

_WAITS: Final[dict[str, Leg]] = {"transport": "sent", "credit": "credit", "lead": "sent"}


@attrs.frozen
class Slowest:
    """The slowest leg: the mean of its seconds, its share of the whole way (0 to 1), and what to change; empty where
    it takes less than FLOOR."""

    leg: Leg
    seconds: float
    share: float
    change: str

    def __str__(self) -> str:
        change = f"To change: {self.change}" if self.change else "Nothing is to be changed"
        return f"{self.leg}: {self.seconds:.3g} s a token, {self.share:.0%} of its way. {change}"


class Way:
    """Adds up the ways of one token in `every`, and all waits for readers."""

    def __init__(self, every: int = 1) -> None:
        self._every = max(1, every)
        self._sums: dict[Leg, float] = {}
        self._counts: dict[Leg, int] = {}
        self._waited: dict[Leg, float] = {}

    def add(self, leg: Leg, seconds: float) -> None:
        self._sums[leg] = self._sums.get(leg, 0.0) + seconds
        self._counts[leg] = self._counts.get(leg, 0) + 1

    def sampled(self, event: Sampled) -> None:
        for leg, seconds in event.legs.items():
            self.add(leg, seconds)

    def acknowledged(self, event: Acknowledged) -> None:
        if event.rtt is not None:
            self.add("acknowledged", event.rtt)

    def blocked(self, event: Blocked) -> None:
        leg = _WAITS[event.by]
        self._waited[leg] = self._waited.get(leg, 0.0) + event.seconds

    @property
    def means(self) -> dict[Leg, float]:
        """Mean seconds of each leg that was seen, in the order of the way."""
        return {leg: self._mean(leg) for leg in LEGS if leg in self._sums or leg in self._waited}

    def _mean(self, leg: Leg) -> float:
        """By the samples; at least what all waits make, spread over as many tokens as the samples stand for."""
        count = self._counts.get(leg, 0)
        tokens = max(1, (count or max(self._counts.values(), default=0)) * self._every)
        return max(self._sums.get(leg, 0.0) / max(1, count), self._waited.get(leg, 0.0) / tokens)

    def slowest(self) -> Slowest | None:
        """The slowest; None before anything was sampled."""
        means = self.means
        return self._as_slowest(max(means, key=means.__getitem__)) if self._counts else None

    def _as_slowest(self, leg: Leg) -> Slowest:
        means = self.means
        mean, whole = means.get(leg, 0.0), sum(means.values())
        change = LEGS[leg][1] if mean >= FLOOR else ""
        return Slowest(leg, mean, mean / whole if whole else 0.0, change)

    def ended(self, event: Closed) -> Slowest | None:
        """The slowest of one part of a stream. Where that waited for its reader most of its time, or until that was
        given up, no token of the samples need have been in that wait."""
        status, seconds = event.outcome.status, event.at - event.stream.started
        slow = status == "slow" or (status == "parted" and event.cause == "slow")
        found = self.slowest()
        if slow or 2 * sum(self._waited.values()) > seconds:
            found = self._as_slowest(max(self._waited, key=self._waited.__getitem__) if self._waited else "sent")
        if found is None or (event.whole and found.leg == "generated"):  # a model takes its time: nothing is amiss
            return found and attrs.evolve(found, change="")
        return attrs.evolve(found, change=LEGS[found.leg][1]) if slow else found


class Legs(Observer):
    """Sums the ways of all streams that it is told of."""

    def __init__(self, every: int = 100) -> None:
        require_whole_number("every", every)
        self.every = every
        self.way = Way(every)

    def sampled(self, event: Sampled) -> None:
        self.way.sampled(event)

    def acknowledged(self, event: Acknowledged) -> None:
        self.way.acknowledged(event)

    def blocked(self, event: Blocked) -> None:
        if event.by != "lead":  # what that waits for is a reader, who is told of it
            self.way.blocked(event)

    def slowest(self) -> Slowest | None:
        """Where most of the time went; None before anything was sampled."""
        return self.way.slowest()
