"""Carriers: frames as bytes, both directions of a format in one file.

base      what a carrier is
sse       server-sent events, on the lines and blocks of `blocks`
ndjson    one JSON object a line
binary    length-checked records
plain     text and nothing else
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from streamguard.core.arguments import setting_named
from streamguard.core.wire.base import MAX_FRAME, Received, Wire, WireEncoder, WireReader
from streamguard.core.wire.binary import Binary
from streamguard.core.wire.ndjson import Ndjson
from streamguard.core.wire.plain import Plain
from streamguard.core.wire.sse import Sse, SseDecoder, SseEvent

__all__ = [
    "Binary",
    "MAX_FRAME",
    "Ndjson",
    "Plain",
    "Received",
    "Sse",
    "SseDecoder",
    "SseEvent",
    "Wire",
    "WireEncoder",
    "WireReader",
    "wire_for_content_type",
    "wire_named",
]

_BY_NAME: Final[Mapping[str, Wire]] = {"sse": Sse(), "ndjson": Ndjson(), "binary": Binary(), "plain": Plain()}
_OWN: Final = frozenset(map(type, _BY_NAME.values()))


def wire_named(wire: str | Wire) -> Wire:
    """The carrier of this name with its default settings; a Wire is returned as it is.

    Raises ValueError for a name that nobody knows, TypeError for anything else, a carrier's class included.
    """
    if type(wire) in _OWN:  # the check of a protocol asks for each of its members: ten times this
        return wire  # type: ignore[return-value]
    return setting_named("wire", wire, _BY_NAME, Wire, "Sse()", word="carrier")


def wire_for_content_type(content_type: str) -> Wire | None:
    """The carrier of an HTTP answer, or None if it is no stream of ours or anybody's."""
    essence = content_type.partition(";")[0].strip().lower()
    for wire in _BY_NAME.values():
        if wire.content_type.partition(";")[0] == essence:
            return wire
    return None
