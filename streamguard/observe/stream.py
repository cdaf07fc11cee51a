"""What a part of a stream is called, how far it is, and the seconds of one of its tokens: what the events of `hooks`
are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

__all__ = ["Counts", "Leg", "Part", "RequestLabels", "Sampled", "StreamDetails"]

Part = Literal["direct", "producer", "reader"]
Leg = Literal["generated", "buffered", "held", "encoded", "appended", "sent", "acknowledged"]


@attrs.frozen
class RequestLabels:
    """What a request is called elsewhere: `X-Request-ID`, the `traceparent` and `tracestate` of W3C Trace Context, and
    the route's own path where the framework tells it; never the address as it came, which may hold names."""

    request_id: str | None = None
    traceparent: str | None = None
    route: str | None = None
    tracestate: str | None = None

    @property
    def trace_id(self) -> str | None:
        """The trace's id, 32 hexadecimal digits; None where the request has no trace, or not a well-formed one."""
        parts = (self.traceparent or "").split("-")
        found = parts[1] if len(parts) >= 4 else ""
        good = len(found) == 32 and set(found) <= set("0123456789abcdef") and found.strip("0") != ""
        return found if good else None


@attrs.frozen(eq=False)
class StreamDetails:
    """One part of a stream, from its start: the same object in all its events.

    `part`: `direct` is a stream without a log, whose source feeds its one connection; `producer` generates into a log,
    and `reader` is a connection that reads there. `name` is the first eight characters of the stream's id, as in the
    log; the whole would grant access. `started` is on the stream's clock, `wall` in seconds since 1970. `hop` is what
    is known to hide from the reader that its connection was aborted (see AbortNotCarried); None where nothing is.
    `origin` is what `Observer.began` answered when the stream in a log was made, whoever made it.
    """

    part: Part
    name: str
    labels: RequestLabels
    started: float
    wall: float
    hop: str | None = None
    origin: str | None = None


@attrs.frozen
class Counts:
    """How far a part of a stream is: items of its source, frames and bytes of their data, and `sent` bytes of its body.
    `waits` is for how many seconds it has waited for its next item; None while it does something else, as in a write
    that its reader does not take."""

    items: int = 0
    frames: int = 0
    bytes: int = 0
    sent: int = 0
    waits: float | None = None


@attrs.frozen
class Sampled:
    """The way of one token, in seconds. A part that has no such leg does not name it.

    `generated`: since the driver was free for it, until the source had it. `buffered`: since both were so, until it
    was taken: the change of threads, a late event loop. `held`: in the flush policy. `encoded`: made into bytes,
    compressed. `appended`: to the log, or `sent`: until the transport took it.
    """

    stream: StreamDetails
    at: float
    legs: Mapping[Leg, float]
