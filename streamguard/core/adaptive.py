"""A flush policy whose window grows under pressure: one frame a token while the loop keeps up, fewer when it does not.

A frame costs much more than a token: where there is more to do than time to do it in, text that waits for the next
token makes the total work fall, and with it everybody's delay. So text is held for a *window*. It is closed while
nothing presses, doubles at each sample that shows pressure, up to a bound in seconds, and shrinks again by half in a
quarter of a second. Between the two thresholds it stays, so that the relief it brings does not close it at once.

What presses is measured elsewhere: a sample says how late the event loop is, how much of its time it works, and what
the connection has not sent. `next_window` is a function of it, and the policy one of its calls, as every policy is.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

import attrs
from attrs.setters import NO_OP

from streamguard.core.arguments import number, shown

__all__ = ["BEHIND", "BUSY", "HALF", "LATE", "LEAST", "STALE", "Adaptive", "Pressure", "SampledPolicy", "next_window"]

LATE: Final = 0.01  # seconds: a loop that is later than this has more to do than it can
BUSY: Final = 0.9  # the same, of its time at work: one with few streams is never late, however much waits for it
BEHIND: Final = 16 * 1024  # bytes: a frame more would wait behind these
LEAST: Final = 0.005  # seconds of the smallest window that is worth a timer
STALE: Final = 0.25  # seconds after which a sample says nothing any more
_CALM: Final = 0.5  # of LATE and BEHIND: below that a window shrinks
_IDLE: Final = 0.7  # of its time at work: the same
HALF: Final = 0.25  # seconds in which a window shrinks by half


@attrs.frozen
class Pressure:
    """One sample. `lag`: seconds by which the event loop is late: from when it was asked to call back until it did.
    `busy`: the share of its time that it works, from 0 to 1: the CPU time of its thread by the time that passed.
    `unsent`: bytes that the connection's transport took and did not send, 0 where that cannot be seen."""

    lag: float = 0.0
    busy: float = 0.0
    unsent: int = 0


@runtime_checkable
class SampledPolicy(Protocol):
    """A flush policy that is told of pressure too, from time to time while text comes."""

    def push(self, piece: str, held: int, now: float) -> int: ...
    def tick(self, held: int, now: float) -> int: ...
    def deadline(self) -> float | None: ...
    def sample(self, pressure: Pressure, now: float) -> None: ...


def next_window(window: float, pressure: Pressure, elapsed: float, most: float) -> float:
    """The window that follows `window` after a sample, `elapsed` seconds after the one before; all in seconds."""
    lag, busy, unsent = pressure.lag, pressure.busy, pressure.unsent
    if lag > LATE or busy > BUSY or unsent > BEHIND:
        return min(most, max(LEAST, 2 * window))
    if not window or lag > LATE * _CALM or busy > _IDLE or unsent > BEHIND * _CALM:
        return window
    window *= 0.5 ** (elapsed / HALF)
    return window if window >= min(LEAST, most) / 2 else 0.0


def _bounded(instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:
    number(above=0.0)(instance, attribute, value)
    if value == float("inf"):
        raise ValueError(f"{attribute.name} is a finite number above zero, not {shown(value)}")


@attrs.define(on_setattr=NO_OP)
class Adaptive:
    """One frame a token while the event loop keeps up and the connection sends; under load text is held, for at most
    `seconds`, counted from its first held piece."""

    seconds: float = attrs.field(default=0.1, validator=_bounded)
    window: float = attrs.field(default=0.0, init=False)  # seconds for which text is held now
    _due: float | None = attrs.field(default=None, init=False)
    _sampled: float = attrs.field(default=-float("inf"), init=False)

    def push(self, piece: str, held: int, now: float) -> int:
        # After a pause the window is of another time, and would delay the first text for nothing.
        if not self.window or now - self._sampled > STALE:
            self._due = None
            return held
        if self._due is None or held == len(piece):
            self._due = now + self.window
            return 0
        if now < self._due:
            return 0
        self._due = None
        return held

    def tick(self, held: int, now: float) -> int:
        if self._due is not None and now < self._due:
            return 0
        self._due = None
        return held

    def deadline(self) -> float | None:
        return self._due

    def sample(self, pressure: Pressure, now: float) -> None:
        """Note what presses at `now`."""
        self.window = next_window(self.window, pressure, now - self._sampled, self.seconds)
        self._sampled = now
