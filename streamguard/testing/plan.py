"""What may happen to a response on its way, and at which byte. No sockets and no clock.

`Plan` says what happens to one connection, `RandomCut` makes one for each, `Passage` notes what did. `Gate`
knows at which byte a cut or a stall stands, and `Hold` how much is held back at first: pieces in, pieces
out, so that a fault at byte N is at byte N whatever the pieces are.
"""

from __future__ import annotations

import math
import random
from typing import Any, Final, Literal

import attrs

__all__ = ["HEAD", "End", "Gate", "Hold", "Passage", "Plan", "RandomCut"]

HEAD: Final = b"\r\n\r\n"  # the end of an HTTP/1 head: positions "after" it count bytes of the body

End = Literal["fin", "reset"]


def _natural(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 <= value < math.inf:
        raise ValueError(f"{attribute.name} is {value!r}: a number from 0 up is needed")


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{attribute.name} is {value!r}: a number above 0 is needed")


@attrs.frozen(kw_only=True)
class Plan:
    """What happens to the response bytes of one connection. The default is nothing.

    Positions count the bytes of all responses on the connection, from 0: `cut_at=0` lets none through.
    Raises ValueError for a negative number.
    """

    cut_at: int | None = attrs.field(default=None, validator=_natural)
    """The connection ends when so many bytes were let through."""
    end: End = attrs.field(default="fin", validator=attrs.validators.in_(("fin", "reset")))
    """How a cut or the idle limit ends it: `fin`, as if all had been sent, or `reset` (RST)."""
    stall_at: int | None = attrs.field(default=None, validator=_natural)
    """When so many bytes were let through nothing moves for `stall` seconds, with the connection open."""
    stall: float = attrs.field(default=math.inf)
    """Seconds. The default is until the reader leaves or the proxy closes."""
    delay: float = attrs.field(default=0.0, validator=_natural)
    """Seconds by which each byte is late. It adds up to no lower rate, below 256 KiB in flight."""
    rate: float | None = attrs.field(default=None, validator=_positive)
    """Bytes a second, or None for no limit."""
    hold: int = attrs.field(default=0, validator=_natural)
    """Nothing passes until so many bytes have come, or the response has ended: 2048 is usual for layers that
    look at the beginning of an answer first."""
    idle: float | None = attrs.field(default=None, validator=_positive)
    """Seconds without a byte in either direction after which the connection is ended, as `end` says. Most
    proxies have such a limit: 30 to 120 seconds."""
    after: bytes = b""
    """Positions are counted behind the first occurrence of this; `HEAD` makes them positions in the body."""
    http10: bool = False
    """Requests are passed on as HTTP/1.0, as some reverse proxies do by default: the response then has no
    framing, and its end is the end of the connection."""


@attrs.frozen(kw_only=True)
class RandomCut:
    """A plan for each connection, cut at a byte drawn evenly from `low` to `high` (both included).

    Connection `n` of one seed is always cut at the same byte. `base` gives everything else.
    """

    seed: int
    low: int
    high: int
    base: Plan = Plan()

    def __call__(self, index: int) -> Plan:
        cut = random.Random(f"{self.seed}/{index}").randint(self.low, self.high)
        return attrs.evolve(self.base, cut_at=cut)


@attrs.define
class Passage:
    """One connection: what passed so far, and how it ended."""

    index: int
    plan: Plan
    up: int = 0
    """Request bytes that were passed on."""
    down: int = 0
    """Response bytes that were passed on."""
    stalled: bool = False
    """Whether it stands at its stall now."""
    moved: float = 0.0
    """When a byte last came or was passed on, in the event loop's clock."""
    ended: Literal["open", "whole", "cut", "idle", "left", "closed", "refused"] = "open"
    """`whole`: by the server; `cut`: by the plan; `idle`: by the plan's idle limit; `left`: by the reader;
    `closed`: by the proxy, when it was left; `refused`: there was no server."""


class _Marker:
    """Finds where counting begins: behind the first occurrence of some bytes."""

    def __init__(self, after: bytes) -> None:
        self._after = after
        self._tail = b""  # the last bytes before the marker: it may stand across two pieces

    def start(self, piece: bytes) -> int | None:
        """Where in `piece` counting begins, or None while the marker has not come."""
        if not self._after:
            return 0
        seen = self._tail + piece
        at = seen.find(self._after)
        if at < 0:
            self._tail = seen[max(0, len(seen) - len(self._after) + 1) :]
            return None
        start = at + len(self._after) - len(self._tail)
        self._after = b""
        return start


class Hold:
    """What a plan holds back at first: pieces in, what may pass out. No I/O."""

    def __init__(self, plan: Plan) -> None:
        self._marker = _Marker(plan.after)
        self._wanted = plan.hold
        self._held = b""

    def take(self, piece: bytes) -> bytes:
        """What may pass now that `piece` has come."""
        start = self._marker.start(piece) if self._wanted else None
        if start is None:
            return piece
        self._held += piece[start:]
        if len(self._held) < self._wanted:
            return piece[:start]
        self._wanted = 0
        return piece[:start] + self.drain()

    def drain(self) -> bytes:
        """All that is held, at the end of the response."""
        held, self._held = self._held, b""
        return held


class Gate:
    """Where in a response something happens: pieces in, what may pass out. No I/O."""

    def __init__(self, plan: Plan) -> None:
        self._marker = _Marker(plan.after)
        self._counted = 0
        marks: list[tuple[int, Literal["cut", "stall"]]] = []
        if plan.stall_at is not None:
            marks.append((plan.stall_at, "stall"))
        if plan.cut_at is not None:
            marks.append((plan.cut_at, "cut"))
        self._marks = sorted(marks, key=lambda mark: mark[0])  # at one byte, the stall comes first

    def take(self, piece: bytes) -> tuple[bytes, Literal["cut", "stall"] | None, bytes]:
        """What of `piece` passes, what happens then, and the rest, to be given again after it."""
        start = self._marker.start(piece)
        if start is None or not self._marks:
            return piece, None, b""
        room = self._marks[0][0] - self._counted
        if len(piece) - start < room:
            self._counted += len(piece) - start
            return piece, None, b""
        self._counted += room
        return piece[: start + room], self._marks.pop(0)[1], piece[start + room :]
