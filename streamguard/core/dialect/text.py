"""`text`: text/plain, for clients that can read nothing else.

There is no place in it for a terminal, a heartbeat, an error or a cursor: its end stands in the
Outcome only, and an abort of the connection is all that tells a reader of a failure. Prefer NDJSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from streamguard.core.dialect.base import Payload, Reading, Sent, refuse_wire
from streamguard.core.errors import Failure, UnsupportedItem
from streamguard.core.items import Ending

__all__ = ["Text", "TextEncoder", "TextReader"]


class TextEncoder:
    """One stream in `text`."""

    def text(self, text: str) -> bytes:
        return text.encode()

    def item(self, item: Sent, ending: Ending) -> list[Payload]:
        raise UnsupportedItem(type(item).__name__, "text", "plain text has room for text only")

    def wire(self, piece: bytes, ending: Ending) -> list[Payload]:
        raise refuse_wire("text")

    def judge(self, ending: Ending) -> Failure | None:
        ending.reasons.setdefault(0, "stop")
        return ending.aborted()

    def closing(self, ending: Ending) -> list[Payload]:
        return []

    def terminal(self, ending: Ending, frames: int, size: int) -> Payload:
        return Payload(b"")

    def settings(self) -> Mapping[str, Any]:
        return {}

    def follow(self, name: str | None, data: bytes, ending: Ending) -> None:
        pass


class TextReader:
    """Text as it comes."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.usage: Mapping[str, Any] | None = None
        self.error: Failure | None = None

    def read(self, name: str | None, data: str) -> str | Reading | None:
        return data

    def proof(self, clean: bool) -> str | None:
        return "framing" if clean else None

    def judge(self) -> Failure | None:
        return None


@attrs.frozen
class Text:
    """The dialect `text`."""

    name = "text"
    own_ids = False
    takes_text = True

    def encoder(self, *, negotiated: bool = False) -> TextEncoder:
        return TextEncoder()

    def reader(self) -> TextReader:
        return TextReader()
