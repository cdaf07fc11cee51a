"""Blocks as dialects write and read them: the fields that each kind has, and when a tool call may be run.

    tool_call          id, name, arguments: its JSON text
    invalid_tool_call  the same, where the arguments are no JSON object: cut off, or the model's mistake
    tool_result        id: the call's; content: any JSON; is_error, where it is one
    reasoning          text; signature, where the provider signs it
    refusal            text
    image              url, or data in base64; media_type

A part of a JSON object is never a JSON object, so arguments that are one are whole. That is the test that
stands between a reader and half a call, whatever the provider says of how the call ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamguard.core.errors import UnsupportedItem
from streamguard.core.items import Block
from streamguard.core.jsontext import dumps, object_in

__all__ = [
    "Call",
    "MAX_HELD",
    "Pieces",
    "as_call",
    "as_mapping",
    "as_text",
    "awaited",
    "call_read",
    "call_written",
    "image_url",
    "json_text",
    "text_of",
]

MAX_HELD: Final = 16 * 1024 * 1024  # characters of one block that is not whole yet; no writer makes a larger one


def as_mapping(value: object) -> Mapping[str, Any]:
    """`value` if it is a JSON object; else nothing, as in events of a kind that nobody knows."""
    return value if isinstance(value, Mapping) else {}


def as_text(value: object) -> str:
    """`value` if it is text, else none."""
    return value if isinstance(value, str) else ""


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
    return Block("invalid_tool_call" if object_in(text) is None else "tool_call", fields)


def as_call(block: Block) -> Block:
    """A block that came whole, as a reader gets it: the same of a `tool_call`, whose arguments may be cut off all the
    same, by the model's own limit. `native` carries any fields, so arguments may be an object as well."""
    if block.type != "tool_call":
        return block
    arguments = block.fields.get("arguments") or "{}"
    whole = object_in(arguments) if isinstance(arguments, str) else arguments
    kind = "tool_call" if isinstance(whole, Mapping) else "invalid_tool_call"
    return Block(kind, {**block.fields, "arguments": arguments})


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
