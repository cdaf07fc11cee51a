"""Blocks as dialects write and read them: the fields that each kind has, and when a tool call may be run.

    tool_call          id, name, arguments: its JSON text
    invalid_tool_call  the same, where the arguments are no JSON object: cut off, or the model's mistake
    tool_result        id: the call's; content: any JSON; is_error, where it is one
    reasoning          text; signature, where the provider signs it
    refusal            text
    image              url, or data in base64; media_type

A part of a JSON object is never a JSON object, so arguments that are one are whole. That is the test that
stands between a reader and half a call, whatever the provider says of how the call ended.

The JavaScript client makes the same blocks: what one language reads and another does not (an object nested too deep, an
integer too long) is a call to run in none, and an index is a number whole in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from streamguard.core.errors import NotSerialisable, UnsupportedItem
from streamguard.core.items import Block
from streamguard.core.jsontext import dumps, object_in

__all__ = [
    "Call",
    "MAX_HELD",
    "Pieces",
    "as_call",
    "as_error",
    "as_index",
    "as_key",
    "as_mapping",
    "as_text",
    "awaited",
    "call_given",
    "call_read",
    "call_written",
    "image_url",
    "json_text",
    "text_of",
]

MAX_HELD: Final = 16 * 1024 * 1024  # characters of one block that is not whole yet; no writer makes a larger one
_MAX_DEPTH: Final = 256  # of arguments: `json` itself gives up at a depth that depends on what calls it
_MAX_DIGITS: Final = 4300  # of an integer in them, where `int` gives up
_PART: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|-?([0-9]+)([.eE][0-9.eE+-]*)?', re.DOTALL)


def as_mapping(value: object) -> Mapping[str, Any]:
    """`value` if it is a JSON object; else nothing, as in events of a kind that nobody knows."""
    return value if isinstance(value, Mapping) else {}


def as_text(value: object) -> str:
    """`value` if it is text, else none."""
    return value if isinstance(value, str) else ""


def as_index(value: object) -> int | None:
    """`value` if it is a whole number, else none: `true` is no number, and `1.0` is 1 where all are of one kind."""
    if isinstance(value, int):
        return None if isinstance(value, bool) else value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def as_error(value: object) -> object:
    """What stands under `error` if it tells of one, else None. A number there is a measure, a loss say, that each event
    of a stream may have; `true` is no number."""
    return None if not value or (isinstance(value, (int, float)) and value is not True) else value


def as_key(value: object) -> int | str | None:
    """`value` if it can tell one thing from another: a whole number, or text."""
    return value if isinstance(value, str) else as_index(value)


class Pieces:
    """The pieces of something that is not whole yet, within a bound."""

    __slots__ = ("_pieces", "_size")

    def __init__(self, first: str = "") -> None:
        self._pieces: list[str] = []
        self._size = 0
        self.add(first)

    def add(self, piece: str) -> None:
        """One more. Raises ValueError where a block outgrows what any writer would send."""
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size > MAX_HELD:
                raise ValueError(f"a block has more than {MAX_HELD} characters")

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __str__(self) -> str:
        """All of them as one."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""


class Call(tuple[str, str, str]):
    """A tool call to be written: `id, name, arguments`."""

    __slots__ = ()

    @property
    def input(self) -> Mapping[str, Any] | None:
        """The arguments as JSON has them; None where they are no object."""
        return object_in(self[2] or "{}")


def _are_arguments(text: str) -> bool:
    """Whether a text is what a call may be run with: a JSON object that every reader of JSON takes."""
    return object_in(text) is not None and not _is_too_much(text)


def _is_too_much(text: str) -> bool:
    depth = 0
    if len(text) > 2 * _MAX_DEPTH:
        for part in _PART.finditer(text):
            mark, digits = part[0], part[1]
            depth += (mark in "[{") - (mark in "]}")
            if depth > _MAX_DEPTH or (digits and part[2] is None and len(digits) > _MAX_DIGITS):
                return True
    return False


def call_written(block: Block, dialect: str) -> Call:
    """The parts of a `tool_call` block. Raises UnsupportedItem where one is missing or no text: an SDK
    would pass half a call on to the code that runs it."""
    parts = []
    for field, default in (("id", None), ("name", None), ("arguments", "")):
        value = block.fields.get(field, default)
        if not isinstance(value, str):
            what = f"a tool call whose {field} is no text"
            raise UnsupportedItem(what, dialect, "yield tool_call(id, name, arguments), arguments as JSON text")
        parts.append(value)
    return Call(parts)


def call_read(id: str, name: str, arguments: str, *, cut: bool = False, choice: int = 0) -> Block:
    """A tool call as a reader gets it. `cut`: whether its choice ended for another reason than to call it; then no
    arguments at all are a part, and else an object without members."""
    text = arguments if cut else arguments or "{}"
    fields: dict[str, Any] = {"id": id, "name": name, "arguments": text}
    if choice:
        fields["choice"] = choice
    return Block("tool_call" if _are_arguments(text) else "invalid_tool_call", fields)


def call_given(id: str, name: str, input: object, *, cut: bool = False) -> Block:
    """The same of a call whose arguments came as JSON instead of text. NaN, which some servers write, has no form
    in it, and no call is run with something else instead."""
    try:
        return call_read(id, name, dumps(input).decode(), cut=cut)
    except NotSerialisable:
        return call_read(id, name, "", cut=True)


def as_call(block: Block) -> Block:
    """A block that came whole, as a reader gets it: the same of a `tool_call`, whose arguments may be cut off all the
    same, by the model's own limit. `native` carries any fields, so arguments may be an object as well."""
    if block.type != "tool_call":
        return block
    arguments = block.fields.get("arguments") or "{}"
    whole = _are_arguments(arguments) if isinstance(arguments, str) else isinstance(arguments, Mapping)
    return Block("tool_call" if whole else "invalid_tool_call", {**block.fields, "arguments": arguments})


def awaited(kind: str) -> int:
    """How many more results of tools are awaited behind a block of this type."""
    return {"tool_call": 1, "tool_result": -1}.get(kind, 0)


def text_of(block: Block, dialect: str) -> str:
    """The text of a block that is little else. Raises UnsupportedItem where it has none."""
    text = block.fields.get("text")
    if not isinstance(text, str):
        example = f"Block({block.type!r}, {{'text': '…'}})"
        raise UnsupportedItem(f"a block of type {block.type!r} without text", dialect, f"yield {example}")
    return text


def image_url(block: Block, dialect: str) -> tuple[str, str]:
    """An image's address and media type, data as a `data:` address. Raises UnsupportedItem where it has neither."""
    fields = block.fields
    kind = as_text(fields.get("media_type")) or "image/png"
    if url := as_text(fields.get("url")):
        return url, kind
    if data := as_text(fields.get("data")):
        return f"data:{kind};base64,{data}", kind
    raise UnsupportedItem("an image without url or data", dialect, "yield Block('image', {'url': '…'})")


def json_text(value: object) -> str:
    """`value` as it is if it is text, else its JSON."""
    return value if isinstance(value, str) else dumps(value).decode()
