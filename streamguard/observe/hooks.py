"""The seam for metrics and billing: one frozen record of how a stream ended.

Every stream ends in exactly one Outcome, on every exit, an instant disconnect included. It is given to
`on_end` once, shielded from cancellation and limited in time; an exception in it is logged and harms
no stream. A stream in a log that one process lets go of, for another to go on with, has one in each; all
but the last say `let_go`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure

__all__ = ["Delivered", "OnEnd", "Outcome"]

Delivered = Literal["yes", "no", "unknown"]


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


OnEnd = Callable[[Outcome], Awaitable[None] | None]
