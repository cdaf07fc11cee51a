"""`native`: our own form, the one in which every check applies.

Text is an unnamed event whose data is a JSON string; a block is `event: block` with its type in the
data, never in the event's name (EventSource delivers only names that somebody listens for, and a
verifier would see a gap); the terminal is `event: end` with a summary of the stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from streamguard.core.dialect.base import (
    YIELD_EVENT,
    Payload,
    Reading,
    Sent,
    is_event_fields,
    refuse_wire,
    scan_string,
    summary,
)
from streamguard.core.dialect.blocks import as_call, as_text, awaited
from streamguard.core.errors import Failure, UnsupportedItem
from streamguard.core.items import Block, Ending
from streamguard.core.jsontext import dumps, quote

__all__ = ["Native", "NativeEncoder", "NativeReader"]


class NativeEncoder:
    """One stream in `native`."""

    text = staticmethod(quote)

    def __init__(self) -> None:
        self._asked = 0  # tool calls without a result

    def item(self, item: Sent, ending: Ending) -> list[Payload]:
        if not isinstance(item, Block):
            if is_event_fields(item):
                kind = "a mapping of an event's fields"
                advice = f"yield the text itself, or choose `raw` and {YIELD_EVENT}"
            else:
                kind, advice = type(item).__name__, "yield str, bytes or Block, or choose `raw`"
            raise UnsupportedItem(kind, "native", advice)
        payload = Payload(dumps({"type": item.type, **item.fields}), "block")
        self._asked += awaited(item.type)
        return [payload]

    def wire(self, piece: bytes, ending: Ending) -> list[Payload]:
        raise refuse_wire("native")

    def judge(self, ending: Ending) -> Failure | None:
        ending.reasons.setdefault(0, "tool_calls" if self._asked > 0 else "stop")
        return ending.aborted()

    def closing(self, ending: Ending) -> list[Payload]:
        return []

    def terminal(self, ending: Ending, frames: int, size: int) -> Payload:
        return Payload(summary(ending, frames, size), "end")

    def settings(self) -> Mapping[str, Any]:
        return {}

    def follow(self, name: str | None, data: bytes, ending: Ending) -> None:
        if name == "block":  # nothing else is remembered
            self._asked += awaited(as_text(json.loads(data).get("type")))


class NativeReader:
    """What `native` data says. The terminal's reason and usage are read from its summary."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.usage: Mapping[str, Any] | None = None
        self.error: Failure | None = None

    def read(self, name: str | None, data: str) -> str | Reading | None:
        if name is None:
            # The hot path of reading: the one JSON value is a string, from its second character on.
            text, end = scan_string(data, 1)
            if data[0] != '"' or end != len(data):
                raise ValueError("the data of a text frame is no JSON string")
            return text
        if name == "block":
            fields = json.loads(data)
            block = Block(fields.pop("type"), fields)
            return Reading(block, blocks=(as_call(block),))
        return None

    def proof(self, clean: bool) -> str | None:
        return None  # this dialect always has cursors

    def judge(self) -> Failure | None:
        return None


@attrs.frozen
class Native:
    """The dialect `native`."""

    name = "native"
    own_ids = True
    takes_text = True

    def encoder(self, *, negotiated: bool = False) -> NativeEncoder:
        return NativeEncoder()

    def reader(self) -> NativeReader:
        return NativeReader()
