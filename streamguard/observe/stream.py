"""What a part of a stream is called, how far it is, how it ended, and the seconds of one of its tokens: what `hooks`
tells of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure

__all__ = ["Counts", "Delivered", "Leg", "Outcome", "Part", "Passing", "RequestLabels", "Sampled", "StreamDetails"]

Delivered = Literal["yes", "no", "unknown"]
Part = Literal["direct", "producer", "reader"]
Leg = Literal[
    "generated", "buffered", "held", "encoded", "appended", "read", "credit", "sent", "acknowledged"
]  # fmt: skip


@attrs.frozen
class RequestLabels:
    """What a request is called elsewhere: `X-Request-ID`, the `traceparent` and `tracestate` of W3C Trace Context, and
    the route's own path where the framework tells it; never the address as it came, which may hold names.

    A proxy has no routes: of a request that it passes on `path` is the path, as an access log has it, without the query
    and without a stream's id, and cut off where it is long. It is None anywhere else, and no metric's label."""

    request_id: str | None = None
    traceparent: str | None = None
    route: str | None = None
    tracestate: str | None = None
    path: str | None = None

    @property
    def trace_id(self) -> str | None:
        """The trace's id, 32 hexadecimal digits; None where the request has no trace, or not a well-formed one."""
        parts = (self.traceparent or "").split("-")
        found = parts[1] if len(parts) >= 4 else ""
        good = len(found) == 32 and set(found) <= set("0123456789abcdef") and found.strip("0") != ""
        return found if good else None


@attrs.frozen
class Outcome:
    """How one stream ended.

    `status` is the terminal's (`complete`, `failed`, `cancelled`, `stalled`, `shutdown`), or `gone`
    where the reader left before there was one, `slow` where it took nothing until the write deadline.
    `items` counts what the source yielded, `frames` and `bytes` what the guard let through (terminal
    included), `sent` the bytes that the transport took, headers excluded. `delivered` is `no` where the
    reader cannot have the whole (it left, did not read, or the stream did not complete), `unknown` where
    the transport took everything: only a reader that acknowledges makes it `yes`. `usage` is what the
    source reported so far, also where it did not finish. Times are seconds on the driver's clock:
    `started` when the request came, then the first item, the first bytes, the end; None for what never
    happened. `abandoned` says that the source did not stop in time. `let_go` says that the stream lives on in
    its log without an end of this process's: who goes on with it, or ends it, has an Outcome of its own.
    """

    status: str
    finish_reason: str | dict[str, str] | None
    failure: Failure | None
    items: int
    frames: int
    bytes: int
    sent: int
    usage: Mapping[str, Any] | None
    cursor: Cursor
    delivered: Delivered
    started: float
    first_item: float | None
    first_byte: float | None
    ended: float
    request_id: str | None = None
    abandoned: bool = False
    let_go: bool = False


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


@attrs.frozen(eq=False)
class Passing:
    """A request that a proxy passes on: the same object until it is over. `scheme` is by which it came here."""

    labels: RequestLabels
    method: str
    scheme: str = "http"


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

    Of a reader, `read`: since the log had it and the reader was free for it, until the reader had it, of a stream that
    is generated in the same process; without `credit`, which is how long it waited for the reader's credit.
    """

    stream: StreamDetails
    at: float
    legs: Mapping[Leg, float]
