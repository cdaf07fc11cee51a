"""One frame, and what its fields may hold. See `framing` for how frames are made."""

from __future__ import annotations

from typing import Any

import attrs

__all__ = ["Frame", "Row", "TextFields", "fits", "place_of", "row_of", "status_of"]

# seq, offset, crc and data of a frame that is text and nothing else. The hot path passes a frame of text as
# this tuple: to make a Frame, and ask it for a name and a status that it does not have, costs a quarter of
# the way through the core.
TextFields = tuple[int, int, int, bytes]

# A frame as the plain tuple of its fields; of the first four only, as above, where the others are None. What is kept
# for long is kept so: the garbage collector lets go of a tuple of such values, and looks at a Frame again and again.
# `Frame(*row)` is the frame.
Row = tuple[Any, ...]


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

    @property
    def bare(self) -> bool:
        """Whether it is an end without data or name, of which server-sent events have a comment and no event."""
        return self.status is not None and self.name is None and not self.data


def row_of(frame: Frame) -> Row:
    """A frame as a row."""
    if frame.name is None and frame.status is None and frame.extra is None:
        return (frame.seq, frame.offset, frame.crc, frame.data)
    return (frame.seq, frame.offset, frame.crc, frame.data, frame.name, frame.status, frame.extra)


def status_of(frame: Frame | Row) -> str | None:
    """The status of a frame, or of a row."""
    if isinstance(frame, Frame):
        return frame.status
    status: str | None = frame[5] if len(frame) > 4 else None
    return status


def place_of(frame: Frame | Row) -> tuple[int, int, int]:
    """The number of a frame, or of a row, the offset behind it, and its checksum."""
    return (frame.seq, frame.offset, frame.crc) if isinstance(frame, Frame) else frame[:3]


def fits(line: bytes) -> bool:
    """Whether `line` is one line: CR or LF would end a field and begin another, NUL voids an id."""
    return not (10 in line or 13 in line or 0 in line)
