"""Pieces of a serialised stream that are one event each, and like an earlier one but for its text.

That is how nearly every application sends what it relays: an event a piece, from its first field to its blank line. To
decode such a piece, line by line, and then to parse what it says costs more than all else that is done with it. A
`Stencil` is cut from a piece that was read the long way, and laid over those that follow: where all but one string is
the same, and that is a JSON string in well-formed UTF-8, the piece says no more than the first did. What is cut out is
the event's data, to the byte what the long way makes of it.

The string is the value of a key that holds text in all APIs that are known (`_KEYS`), of which nothing is noted. That
nothing else was noted of the event either, whoever reads the stream says (`read`): a stencil is cut from an event only
that left all as it was, and is good only where a piece begins a new event, and for as long as all stays as it was: an
event that says anew what is noted already changes nothing, until something else is noted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

from streamguard.core.dialect.base import scan_string

__all__ = ["Stencil"]

# Each alternative begins with bytes of its own: a text that does not match is given up in one pass.
_PLAIN: Final = rb"[ !#-\[\]-\x7f]*"
_ESCAPE: Final = rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_WIDE: Final = (
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
_is_string: Final = re.compile(_PLAIN + rb"(?:(?:" + _ESCAPE + rb"|" + _WIDE + rb")" + _PLAIN + rb")*").fullmatch
_EVENT: Final = re.compile(rb"(?:event: ?([^\r\n]*)\r?\n)?(data: ?)([^\r\n]*)(\n\n|\r\n\r\n)")
_KEYS: Final = re.compile(r'"(?:content|text|delta|token|thinking|reasoning_content|arguments|partial_json)"\s*:\s*"')
_TRIES: Final = 16  # a stream that fits no stencil after so many has events that all differ
_EDGES: Final = (b"\n\n", b"\r\n\r\n")
_LARGEST: Final = 64 * 1024  # bytes of a piece; a larger one is worth the long way

Cut = Callable[[bytes], "bytes | None"]


class Stencil:
    """`cut` answers the data of a piece that fits, and None for any other; it is itself None where the next piece is to
    be read the long way. `name` is the event's."""

    def __init__(self) -> None:
        self.cut: Cut | None = None
        self.name: str | None = None
        self.tries = _TRIES
        self._known: Cut | None = None
        self._noted: object = None
        self._edge = False  # whether the last piece that was read the long way ended with its event
        self._whole = False  # and the one before it, so that this one was an event by itself

    def reset(self) -> None:
        """The next piece is to be read the long way."""
        self.cut = None

    def begin(self) -> None:
        """A piece is about to be read the long way, which may raise."""
        self.reset()
        self._whole, self._edge = self._edge, False

    def read(self, piece: bytes, *, rests: bool, noted: object) -> None:
        """The piece was read. `rests`: whether an event of which nothing is noted changes nothing; `noted`:
        all that was noted of the stream."""
        quiet, self._noted = noted == self._noted, noted
        if not quiet:
            self._known = None  # of its event something may be noted now
        self._edge = piece.endswith(_EDGES)
        if not rests or not self._edge:
            return
        if quiet and self._whole and self.tries:
            self._learn(piece)
        self.cut = self._known

    def _learn(self, piece: bytes) -> None:
        match = _EVENT.fullmatch(piece)
        if match is None:
            return
        self.tries -= 1
        try:
            data = match[3].decode()
            is_object = isinstance(json.loads(data), dict)
            name = (match[1] or b"").decode()
        except (ValueError, RecursionError):
            return
        key = _KEYS.search(data)
        if key is None or not is_object:
            return
        _, end = scan_string(data, key.end())
        before = piece[: match.start(3)] + data[: key.end()].encode()
        after = data[end - 1 :].encode() + match[4]
        self._known = _cutter(before, after, match.start(3), -len(match[4]))
        self.name = name if name not in ("", "message") else None


def _cutter(before: bytes, after: bytes, start: int, stop: int) -> Cut:
    at, rest, is_string = len(before), len(after), _is_string

    def cut(piece: bytes) -> bytes | None:
        if (
            piece.startswith(before)
            and piece.endswith(after)
            and (size := len(piece)) <= _LARGEST
            and is_string(piece, at, size - rest)
        ):
            return piece[start:stop]
        return None

    return cut
