"""Pieces of a serialised stream that are one event each, and like an earlier one but for its text.

That is how nearly every application sends what it relays: an event a piece, from its `data:` to its blank line. To
decode such a piece, line by line, and then to parse what it says costs more than all else that is done with it. A
`Stencil` lays the form that a `Mould` has learned over the bytes of the piece: where all but the text is the same, and
the text is a JSON string in well-formed UTF-8, the piece says nothing but that text. What is cut out is the event's
data, to the byte what the long way makes of it.

Whoever reads the stream reads every other piece the long way, and then says what it was (`read`): a form holds only
where a piece begins a new event, and where a text like those before it changes nothing that is kept of the stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from streamguard.core.dialect.mould import Mould

__all__ = ["Stencil"]

# Each alternative begins with bytes of its own: a text that does not match is given up in one pass.
_PLAIN: Final = rb"[ !#-\[\]-\x7f]*"
_ESCAPE: Final = rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_WIDE: Final = (
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
_is_string: Final = re.compile(_PLAIN + rb"(?:(?:" + _ESCAPE + rb"|" + _WIDE + rb")" + _PLAIN + rb")*").fullmatch
_EVENT: Final = re.compile(rb"(data: ?)([^\r\n]*)(\n\n|\r\n\r\n)")
_EDGES: Final = (b"\n\n", b"\r\n\r\n")
_LARGEST: Final = 64 * 1024  # bytes of a piece; a larger one is worth the long way

Cut = Callable[[bytes], "bytes | None"]


class Stencil:
    """`cut` answers the data of a piece that is of the form, and None for any other; it is itself None where the next
    piece is to be read the long way."""

    def __init__(self, mould: Mould) -> None:
        self.cut: Cut | None = None
        self._mould = mould
        self._form: str | None = None  # the mould's, of which the next was made
        self._learned: Cut | None = None

    def read(self, piece: bytes, *, rests: bool) -> None:
        """`piece` was read the long way. `rests`: whether a text that is all that an event says changes nothing."""
        form = self._mould.before
        if form is None or not rests or not piece.endswith(_EDGES):
            self.cut = None
            return
        if form is not self._form:
            self._learned = self._learn(piece, form)
            self._form = None if self._learned is None else form
        self.cut = self._learned

    def _learn(self, piece: bytes, form: str) -> Cut | None:
        match = _EVENT.fullmatch(piece)
        if match is None:
            return None
        field, data, edge = match.groups()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        if self._mould.text(text) is None:
            return None
        after = b'"' + self._mould.after.encode() + edge
        return _cutter(field + text[: len(form)].encode(), after, len(field), -len(edge))


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
