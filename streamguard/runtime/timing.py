"""A stream's time limits, and the clock they are read on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import attrs

from streamguard.core.arguments import is_number, require_callable, shown

__all__ = ["DEFAULT_TIMING", "TIMING_EXAMPLE", "Timing"]

TIMING_EXAMPLE: Final = "Timing(stall=60)"  # what a message tells who passed something else


def _seconds(name: str, value: object) -> None:
    if not is_number(value):
        raise TypeError(f"{name} is a number of seconds, not {shown(value)}")


def _above_zero(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is None:
        return
    _seconds(attribute.name, value)
    if not value > 0:
        raise ValueError(f"{attribute.name} must be above zero, or None for never, not {value!r}")


def _not_negative(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    _seconds(attribute.name, value)
    if not value >= 0:
        raise ValueError(f"{attribute.name} must be zero or more, not {value!r}")


def _called(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    require_callable(attribute.name, value)


@attrs.frozen
class Timing:
    """A stream's time limits, in seconds.

    `heartbeat`: silence after which a sign of life is sent (None: never), up to a 256th earlier, together with those
    of other streams; 15 s is under every idle limit in common use. `stall`: how long the source may be silent before
    the stream ends as `stalled` (None: for ever). `write`: how long a reader may take nothing of what is written to
    it before the stream ends as `slow` and its connection is dropped (None: for ever); kept to within a quarter.
    `peek`: how long headers may wait for the first item, so that an early failure can still become an HTTP status.
    `close`: how long the source may take to close before it is abandoned. `linger`: how long a reader that was told
    of a failure is given to hang up by itself. `clock`: monotonic seconds. Raises TypeError for what is no number,
    ValueError for a limit that is negative or NaN, and for a heartbeat, stall or write of zero.
    """

    heartbeat: float | None = attrs.field(default=15.0, validator=_above_zero)
    stall: float | None = attrs.field(default=600.0, validator=_above_zero)
    write: float | None = attrs.field(default=30.0, validator=_above_zero)
    peek: float = attrs.field(default=0.0, validator=_not_negative)
    close: float = attrs.field(default=5.0, validator=_not_negative)
    linger: float = attrs.field(default=0.25, validator=_not_negative)
    clock: Callable[[], float] = attrs.field(default=time.monotonic, validator=_called)


DEFAULT_TIMING: Final = Timing()
