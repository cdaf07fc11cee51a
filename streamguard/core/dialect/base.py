"""What a dialect is: the form that an existing client expects, in both directions.

A `Dialect` is a setting, shared freely. It makes a `DialectEncoder` for each stream (which may
count and remember) and a `DialectReader` for each read. To add one, write a file beside this one
with these three and name it in `dialect/__init__.py`.
"""

from __future__ import annotations

import json.decoder
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, runtime_checkable

import attrs

from streamguard.core.errors import Failure, UnsupportedItem
from streamguard.core.items import Block, Ending, Event
from streamguard.core.jsontext import dumps

__all__ = [
    "Dialect",
    "DialectEncoder",
    "DialectReader",
    "Payload",
    "Reading",
    "Sent",
    "YIELD_EVENT",
    "blocks_at_end",
    "has_abort_part",
    "is_event_fields",
    "refuse_wire",
    "scan_string",
    "summary",
]

# Reads a JSON string from the character after its opening quote on: its text, and where it ends.
scan_string: Final[Callable[[str, int], tuple[str, int]]] = vars(json.decoder)["scanstring"]


YIELD_EVENT: Final = "yield Event('hello', 'token')"  # what to write in place of an event's fields
_FIELDS: Final = frozenset({"event", "data", "id", "retry", "comment"})

Sent = str | Block | Event | Mapping[str, Any]  # what an encoder makes frames of


@attrs.frozen
class Payload:
    """What a frame is to carry, before it has a number."""

    data: bytes
    name: str | None = None
    extra: bytes | None = None


class Reading:
    """What the data of one frame says where it is more than text of choice 0: the item itself, the
    text of every choice in it, that of choice 0, and the blocks that are whole with it."""

    __slots__ = ("blocks", "item", "text", "texts")

    def __init__(
        self,
        item: Block | Mapping[str, Any] | None,
        text: str = "",
        texts: Mapping[int, str] | None = None,
        blocks: tuple[Block, ...] = (),
    ) -> None:
        self.item = item
        self.text = text
        self.texts = texts
        self.blocks = blocks


class DialectEncoder(Protocol):
    """One stream's encoder. It never sees cursors; numbering is the FramedEncoder's business."""

    @property
    def text(self) -> Callable[[str], bytes] | None:
        """Makes the data of an unnamed frame for text of choice 0: the hot path. None in a dialect whose text is more
        than that; then it comes to `item`."""
        ...

    def item(self, item: Sent, ending: Ending) -> list[Payload]:
        """Frames for anything else; notes finish reasons and usage in `ending`. Raises UnsupportedItem."""
        ...

    def wire(self, piece: bytes, ending: Ending) -> list[Payload]:
        """Frames for a piece of a serialised stream. Raises UnsupportedItem but in `raw`."""
        ...

    def judge(self, ending: Ending) -> Failure | None:
        """Whether a source that returned is complete: None, or why it is not. May set default reasons."""
        ...

    def closing(self, ending: Ending) -> list[Payload]:
        """Ordinary frames before the terminal."""
        ...

    def terminal(self, ending: Ending, frames: int, size: int) -> Payload:
        """The terminal frame; `frames` and `size` are counts of what went before it."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """What the Dialect must be made with so that another encoder can go on with this stream; as JSON has it."""
        ...

    def follow(self, name: str | None, data: bytes, ending: Ending) -> None:
        """Take in a frame that another encoder of this stream made, before any of its own; notes in `ending` what
        the frame says of it."""
        ...


class DialectReader(Protocol):
    """One read's decoder of frame data. `reasons`, `usage` and `error` are what the data said so far."""

    @property
    def reasons(self) -> dict[int, str]: ...

    @property
    def usage(self) -> Mapping[str, Any] | None: ...

    @property
    def error(self) -> Failure | None: ...

    def read(self, name: str | None, data: str) -> str | Reading | None:
        """What a frame says: text, or more than text; None where there is nothing to hand out, or its name is unknown.

        Raises ValueError for data that is not the dialect's.
        """

    def proof(self, clean: bool) -> str | None:
        """Without cursors: what proves that the stream ended, or None. `clean` as in `verify`."""
        ...

    def judge(self) -> Failure | None:
        """Without cursors: why an ended stream is not complete, or None."""
        ...


@runtime_checkable
class Dialect(Protocol):
    """A setting: which form, and its parameters."""

    name: str
    own_ids: bool  # whether cursors always stand in `id:`, and an `open` event names the stream
    takes_text: bool  # whether `str` is text; otherwise `str` and `bytes` are a serialised stream

    def encoder(self, *, negotiated: bool = False) -> DialectEncoder:
        """A fresh encoder; `negotiated` says that the reader asked for verification."""
        ...

    def reader(self) -> DialectReader:
        """A fresh reader."""
        ...


def has_abort_part(dialect: Dialect) -> bool:
    """Whether a dialect tells of a cancel in a part that its SDK takes for an end, and not for an error: one that says
    so, `abort_part = True`."""
    return bool(getattr(dialect, "abort_part", False))


def blocks_at_end(reader: DialectReader, data: str = "") -> tuple[Block, ...]:
    """The blocks that the proven end of a stream makes whole, of a reader that has such: one with a method
    `rest(data)`. `data` is that of the terminal where the reader has not read it."""
    rest: Callable[[str], tuple[Block, ...]] | None = getattr(reader, "rest", None)
    return () if rest is None else rest(data)


def is_event_fields(item: object) -> bool:
    """Whether a mapping holds what the libraries of server-sent events take for the fields of one: it is no payload,
    and as JSON it would be an event within an event."""
    return isinstance(item, Mapping) and "data" in item and _FIELDS.issuperset(item)


def summary(ending: Ending, frames: int, size: int) -> bytes:
    """The data of native's `end`, which other dialects carry beside their own terminal."""
    failure = ending.failure
    return dumps(
        {
            "status": ending.status,
            "finish_reason": ending.finish_reason if ending.status == "complete" else None,
            "frames": frames,
            "bytes": size,
            "items": ending.items,
            "usage": ending.usage,
            "error": attrs.asdict(failure) if failure else None,
        }
    )


def refuse_wire(dialect: str) -> UnsupportedItem:
    """The error for a serialised stream where text is expected."""
    return UnsupportedItem("a serialised stream", dialect, "only `raw` re-frames one")
