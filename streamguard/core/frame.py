"""One frame, and what its fields may hold. See `framing` for how frames are made."""

from __future__ import annotations

import attrs

__all__ = ["Frame", "TextFields", "fits"]

# seq, offset, crc and data of a frame that is text and nothing else. The hot path passes a frame of text as
# this tuple: to make a Frame, and ask it for a name and a status that it does not have, costs a quarter of
# the way through the core.
TextFields = tuple[int, int, int, bytes]


@attrs.define
class Frame:
    """One frame: its place in the chain, and what it carries. `status` is set in a terminal only.

    `extra` travels beside the data and is not chained: a terminal's summary with its own checksum,
    or the id that a provider's event already had.
    """

    seq: int
    offset: int
    crc: int
    data: bytes
    name: str | None = None
    status: str | None = None
    extra: bytes | None = None


def fits(line: bytes) -> bool:
    """Whether `line` is one line: CR or LF would end a field and begin another, NUL voids an id."""
    return not (10 in line or 13 in line or 0 in line)
