"""What a reader gets: frames as they come, a verdict and a receipt at the end."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from streamguard.core.cursor import Cursor
from streamguard.core.errors import Failure
from streamguard.core.items import Block

__all__ = ["AnswerFrame", "CorruptCode", "Receipt", "UNREAD", "Verdict"]

UNREAD: Final[Any] = object()  # the item of a frame whose JSON nobody needed yet

CorruptCode = Literal["grammar", "sid", "seq", "length", "checksum", "guard_stripped", "reframed", "too_large"]


class Verdict(enum.Enum):
    """What a reader knows about a stream once it is over."""

    COMPLETE = "complete"  # every check held and the terminal says complete
    TRUNCATED = "truncated"  # it ended before its terminal
    CORRUPT = "corrupt"  # a frame failed its checks
    GAP = "gap"  # frames are missing
    FAILED = "failed"  # its end says that it failed
    UNVERIFIED = "unverified"  # no cursors came; `proved_by` says what proved the end


class AnswerFrame:
    """One frame as it is handed out: its place (`seq`, 0 without cursors), and what its data says.

    `text` is the text of choice 0; `item` the Block or the provider's JSON where the frame is more
    than text, `texts` then the text of every choice in it; `blocks` are those that it makes whole; `raw` is the
    data in UTF-8.
    """

    __slots__ = ("_item", "blocks", "name", "raw", "seq", "text", "texts")

    def __init__(
        self,
        seq: int,
        name: str | None,
        raw: bytes,
        text: str,
        item: Any = None,
        texts: Mapping[int, str] | None = None,
        blocks: tuple[Block, ...] = (),
    ) -> None:
        self.seq = seq
        self.name = name
        self.raw = raw
        self.text = text
        self._item = item
        self.texts = texts
        self.blocks = blocks

    @property
    def item(self) -> Any:
        """The Block, the provider's JSON, or None; JSON that nothing needed so far is parsed now."""
        if self._item is UNREAD:
            self._item = json.loads(self.data)
        return self._item

    @property
    def data(self) -> str:
        """The frame's data as text."""
        return self.raw.decode("utf-8", "replace")

    def __repr__(self) -> str:
        return f"AnswerFrame({self.seq}, {self.name!r}, {self.data!r})"


@attrs.frozen
class Receipt:
    """What was read, and what is known about it.

    `frames` and `bytes` count verified frames and their data, terminal included; `crc` is the chain
    at their end. `resumes` counts the further connections in which the stream went on, `duplicates` the
    frames that came again in them and were dropped. Seconds are measured by the client from its request:
    `first_frame`, `longest_gap` between frames, `duration`.
    """

    verdict: Verdict
    status: str | None = None
    code: str | None = None
    frames: int = 0
    bytes: int = 0
    crc: int | None = None
    cursor: Cursor | None = None
    finish_reason: str | dict[str, str] | None = None
    usage: Mapping[str, Any] | None = None
    failure: Failure | None = None
    proved_by: str | None = None
    first_frame: float | None = None
    longest_gap: float | None = None
    duration: float | None = None
    resumes: int = 0
    duplicates: int = 0

    def __str__(self) -> str:
        parts = [self.verdict.name + (f" ({self.code})" if self.code else "")]
        if self.crc is not None:
            parts += [f"{self.frames} frames", f"crc {self.crc:08x}"]
        if self.proved_by:
            parts.append(f"proved by {self.proved_by}")
        if self.resumes:
            parts.append(f"{self.resumes} resume" + ("s" if self.resumes > 1 else ""))
        return ", ".join(parts)
