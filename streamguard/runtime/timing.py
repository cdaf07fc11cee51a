"""A stream's time limits, and the clock they are read on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import attrs

__all__ = ["DEFAULT_TIMING", "Timing"]


@attrs.frozen
class Timing:
    """A stream's time limits, in seconds.

    `heartbeat`: silence after which a sign of life is sent (None: never); 15 s is under every idle limit
    in common use. `stall`: how long the source may be silent before the stream ends as `stalled` (None:
    for ever). `peek`: how long headers may wait for the first item, so that an early failure can still
    become an HTTP status. `close`: how long the source may take to close before it is abandoned.
    `linger`: how long a reader that was told of a failure is given to hang up by itself.
    """

    heartbeat: float | None = 15.0
    stall: float | None = 600.0
    peek: float = 0.0
    close: float = 5.0
    linger: float = 0.25
    clock: Callable[[], float] = time.monotonic


DEFAULT_TIMING: Final = Timing()
