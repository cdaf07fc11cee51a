"""What a carrier is: the same frames as bytes, in both directions.

A `Wire` is a setting, shared freely. It makes a `WireEncoder` for each connection and a
`WireReader` for each read. A reader turns bytes into `Received` records and judges nothing: whether
a frame is the right one is the verifier's business, whatever the carrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol, runtime_checkable

from streamguard.core.cursor import Cursor
from streamguard.core.frame import Frame, TextFields

__all__ = ["MAX_FRAME", "Received", "ReceivedKind", "Wire", "WireEncoder", "WireReader"]

MAX_FRAME: Final = 16 * 1024 * 1024  # a reader's default limit, in bytes of one frame's data

ReceivedKind = Literal["opening", "frame", "beat", "bye"]


class Received:
    """One record as it was read, unverified.

    `cursor` is as sent (None: it had none; garbage: the verifier refuses it), `data` the frame's, both
    in UTF-8; `extra` is what travelled beside the data; `reason` is a bye's; `partial` marks a last
    record whose end is missing.
    """

    __slots__ = ("cursor", "data", "extra", "kind", "name", "partial", "reason")

    def __init__(
        self,
        kind: ReceivedKind,
        cursor: bytes | None = None,
        name: str | None = None,
        data: bytes = b"",
        extra: str | None = None,
        reason: str = "",
        partial: bool = False,
    ) -> None:
        self.kind: ReceivedKind = kind
        self.cursor = cursor
        self.name = name
        self.data = data
        self.extra = extra
        self.reason = reason
        self.partial = partial


class WireEncoder(Protocol):
    """One connection's encoder."""

    def opening(self, *, resume: str | None = None, at: Cursor | None = None) -> bytes:
        """The first bytes, at once after the headers. `resume` is the address to resume at, if any; `at` is where
        the connection goes on, if not at the start."""
        ...

    def frame(self, frame: Frame) -> bytes:
        """One frame. Raises FieldRefused rather than write a field that would read as two."""
        ...

    def text(self, fields: TextFields) -> bytes:
        """The same for a frame of text, on the hot path."""
        ...

    def texts(self, rows: Sequence[TextFields]) -> bytes:
        """Several of them, one after the other."""
        ...

    def heartbeat(self, cursor: Cursor, *, blocked: bool = False) -> bytes:
        """A sign of life at a frame edge; `cursor` is the last frame's."""
        ...

    def bye(self, cursor: Cursor, reason: str) -> bytes:
        """The last line of a connection whose stream lives on."""
        ...


class WireReader(Protocol):
    """One read's decoder: linear in its input however it is cut, and bounded."""

    def feed(self, data: bytes) -> list[Received]:
        """The records completed by `data`. Raises WireError after handing out what was good."""
        ...

    def end(self) -> list[Received]:
        """End of bytes: an unfinished last record, marked `partial`, if there is one."""
        ...


@runtime_checkable
class Wire(Protocol):
    """A setting: which carrier, and its parameters."""

    name: str
    content_type: str

    def encoder(self, zero: Cursor, *, own_ids: bool) -> WireEncoder:
        """An encoder for the stream that `zero` names; `own_ids` as in the dialect."""
        ...

    def reader(self, *, own_ids: bool | None, max_frame: int = MAX_FRAME) -> WireReader:
        """A fresh reader with a limit on one frame's data, in bytes."""
        ...
