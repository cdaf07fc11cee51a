"""What a reader waits for, and how much it keeps: `ReaderLimits`, whose defaults are `LIMITS`."""

from __future__ import annotations

from typing import Any, Final

import attrs

from streamguard.core.arguments import is_number, shown, whole_number

__all__ = ["LIMITS", "MAX_RECEIVED", "ReaderLimits"]

MAX_RECEIVED: Final = 64 * 1024 * 1024  # characters


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not is_number(value):
        raise TypeError(f"{attribute.name} is a number of seconds, or None for no limit, not {shown(value)}")
    if value is not None and not value > 0:
        raise ValueError(f"{attribute.name} is above 0, or None for no limit, not {value!r}")


@attrs.frozen
class ReaderLimits:
    """What a reader waits for at most, in seconds; None is no limit. There is none on the whole.

    `connect`: for a connection, its place in the pool included. `first_byte`: from the request's first
    byte to the head of its answer, whatever comes before that, redirects too; without an event loop, up
    to the next whole second. `liveness`: for any byte, heartbeats included. `stall`: for a frame while only
    heartbeats come; it is noticed when bytes come, or when as long has passed without any. `max_received`
    is not of time: how many characters of text are kept to be read whole, or attached to an error.
    """

    connect: float | None = attrs.field(default=10.0, validator=_positive)
    first_byte: float | None = attrs.field(default=60.0, validator=_positive)
    liveness: float | None = attrs.field(default=45.0, validator=_positive)
    stall: float | None = attrs.field(default=None, validator=_positive)
    max_received: int = attrs.field(default=MAX_RECEIVED, validator=whole_number)

    @property
    def silence(self) -> float | None:
        """How long a single read may take."""
        return min((limit for limit in (self.liveness, self.stall) if limit is not None), default=None)


LIMITS: Final = ReaderLimits()
