"""What a source may yield, and how pieces of text become whole characters.

    str         text of choice 0; empty text is dropped
    bytes       UTF-8 pieces of the same text, cut anywhere
    Block       an image, a tool call, a tool result: typed, atomic, in order with the text
    Event       an event that a provider already serialised
    mapping     a provider's JSON chunk
    Finish      why a choice ended, and what it used; does not end the stream, returning does
    Checkpoint  a state from which the source could go on

Text enters through `TextIntake`, which joins what producers cut: a UTF-8 sequence over several
`bytes`, a surrogate pair over two `str`. It holds at most three bytes or one half character.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.arguments import shown
from streamguard.core.errors import Failure, FinishConflict
from streamguard.core.jsontext import dumps, whole_text

__all__ = ["BROKEN", "Block", "Checkpoint", "Ending", "Event", "Finish", "Item", "Joined", "TextIntake", "tool_call"]

BROKEN: Final = ("abort", "error")
"""The finish reasons by which engines and routers admit that a generation broke off."""


def _fields(instance: Block, attribute: object, value: Any) -> None:
    if not isinstance(value, Mapping):
        example = f"Block({shown(instance.type)}, {{'text': {shown(value)}}})"
        raise TypeError(f"a block's fields are a mapping, for example {example}, not {shown(value)}")
    if "type" in value:
        raise ValueError("a block's type is its first argument; its fields hold no 'type'")


def _text(instance: Block, attribute: object, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"a block's type is text, for example 'image', not {shown(value)}")


@attrs.frozen
class Block:
    """A typed, atomic part of an answer, in order with the text; never merged, never split.

    `type` is the kind (`"image"`, `"tool_call"`, `"tool_result"`, `"reasoning"`, or your own),
    `fields` its JSON-serialisable content, without a `type` key.
    """

    type: str = attrs.field(validator=_text)
    fields: Mapping[str, Any] = attrs.field(factory=dict, validator=_fields)


def tool_call(id: str, name: str, arguments: str) -> Block:
    """A whole tool call; `arguments` is its JSON text."""
    return Block("tool_call", {"id": id, "name": name, "arguments": arguments})


def _data(instance: Event, attribute: object, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"Event.data is text: json.dumps it; not {shown(value)}")


def _text_or_none(instance: Event, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"Event.{attribute.name} is text or None, not {shown(value)}")


@attrs.frozen
class Event:
    """An event that is already serialised, as a provider sent it.

    `data` is the event's data with lines joined by LF; `event` its name (None: unnamed); `id` its
    own id, which is carried and not verified. Raises TypeError for a field that is no text.
    """

    data: str = attrs.field(validator=_data)
    event: str | None = attrs.field(default=None, validator=_text_or_none)
    id: str | None = attrs.field(default=None, validator=_text_or_none)


def _reason(instance: Finish, attribute: object, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        advice = ": usage is given by name, usage={…}" if isinstance(value, Mapping) else ""
        raise TypeError(f"reason is text or None, not a {type(value).__name__}{advice}")


def _usage(instance: Finish, attribute: object, value: Any) -> None:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"usage is a mapping or None, not a {type(value).__name__}")


def _small(instance: Finish, attribute: object, value: Any) -> None:
    if not isinstance(value, int):
        raise TypeError(f"choice is a number, not a {type(value).__name__}")
    if not 0 <= value < 2**31:  # not shown: Python refuses to write a very large number
        raise ValueError("a choice must be from 0 to 2147483647")


@attrs.frozen
class Finish:
    """Why a choice ended (`reason`) and what it used (`usage`, in tokens).

    A second Finish merges with the first: usage often comes after the reason. Raises TypeError for a field
    of another kind, ValueError for a choice outside of 0 to 2147483647.
    """

    reason: str | None = attrs.field(default=None, validator=_reason)
    usage: Mapping[str, Any] | None = attrs.field(default=None, validator=_usage)
    choice: int = attrs.field(default=0, validator=_small)


def _copied(state: Any) -> Any:
    return json.loads(dumps(state))


@attrs.frozen
class Checkpoint:
    """A state from which the source could continue; whatever the flush policy holds leaves first. One in the middle of
    a character (between bytes, or halves of a surrogate pair) is passed over: nobody could go on from there.

    It is a copy, as JSON has it: a list of tokens grows on, and by the time the checkpoint is written it would say
    more than the text before it does. Raises NotSerialisable for a state that is no JSON.
    """

    state: Any = attrs.field(converter=_copied)


Item = str | bytes | Block | Event | Mapping[str, Any] | Finish | Checkpoint


class Joined(str):
    """Several pieces of text that waited together, as one; `pieces` is how many of them were not empty."""

    __slots__ = ("pieces",)
    pieces: int

    @classmethod
    def of(cls, pieces: list[str]) -> Joined:
        """`pieces` as one."""
        joined = cls("".join(pieces))
        joined.pieces = len(pieces) - pieces.count("")
        return joined


class TextIntake:
    """Pieces of text in, whole characters out."""

    __slots__ = ("_decoder", "_high", "torn")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._high = ""
        # Whether half a character is held: while it is, even plain ASCII must come through here.
        self.torn = False

    def text(self, piece: str) -> str:
        """The whole characters of a `str` piece. A high surrogate at its end waits for its other half."""
        piece = self._decoded_rest() + self._high + piece
        self._high = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            self._high = piece[-1]
            piece = piece[:-1]
        self.torn = bool(self._high)
        return whole_text(piece)

    def bytes(self, piece: bytes) -> str:
        """The whole characters of a `bytes` piece. An incomplete sequence at its end waits."""
        text = ("\ufffd" if self._high else "") + self._decoder.decode(piece)
        self._high = ""
        self.torn = bool(self._decoder.getstate()[0])
        return text

    def end(self) -> str:
        """What an incomplete character becomes when anything but its rest follows: one U+FFFD, or nothing."""
        if not self.torn:
            return ""
        text = self._decoded_rest() + ("\ufffd" if self._high else "")
        self._high = ""
        self.torn = False
        return text

    def _decoded_rest(self) -> str:
        if not self._decoder.getstate()[0]:
            return ""
        self._decoder.reset()
        return "\ufffd"


@attrs.define
class Ending:
    """How a stream ends, gathered while it runs; the dialect writes it into the last frames."""

    status: str = "complete"
    reasons: dict[int, str] = attrs.field(factory=dict)
    usage: dict[str, Any] | None = None
    failure: Failure | None = None
    items: int = 0

    @property
    def finish_reason(self) -> str | dict[str, str] | None:
        """The reason of the one choice, or a map of choices to reasons, or None."""
        if len(self.reasons) == 1:
            return next(iter(self.reasons.values()))
        return {str(choice): reason for choice, reason in sorted(self.reasons.items())} or None

    def merge(self, finish: Finish) -> None:
        """Take one more Finish. Raises FinishConflict for a second, different reason of a choice."""
        if finish.reason is not None:
            first = self.reasons.setdefault(finish.choice, finish.reason)
            if first != finish.reason:
                raise FinishConflict(finish.choice, first, finish.reason)
        if finish.usage is not None:
            # Here, where the stream can still fail; and a copy, because the source may write on in its own.
            usage = json.loads(dumps(finish.usage))
            self.usage = {**(self.usage or {}), **usage}

    def aborted(self) -> Failure | None:
        """The failure that a finish reason admits: engines report a killed generation as a reason."""
        if any(reason in BROKEN for reason in self.reasons.values()):
            return Failure("generation_aborted", "the engine aborted the generation", retryable=True)
        return None
