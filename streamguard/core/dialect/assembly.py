"""Blocks out of a provider's pieces: tool calls, reasoning and refusals are handed out when they are whole.

Chat chunks say when a choice ends, and nothing of when a call does; its pieces are told apart by index and id,
in any order (`ChatBlocks`). Anthropic's events open and close each block (`AnthropicBlocks`), those of Responses
repeat it whole at its end (`ResponsesBlocks`). `ProviderBlocks` is all three, by what an event looks like.

What an ended stream left open is handed out by `rest`: a call that is whole as one, else as cut off; an answer that is
complete never swallows one. What was handed out before is not handed out again.

Servers depart from that, and none of it may lose a call or make one of two: several whole calls under one index
(each with its own id, or with none), an id in every piece, a name in pieces or in every piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any, Final

from streamguard.core.dialect.blocks import Pieces, as_index, as_key, as_mapping, as_text, call_given, call_read
from streamguard.core.items import BROKEN, Block

__all__ = ["MAX_CHOICES", "AnthropicBlocks", "ChatBlocks", "ProviderBlocks", "ResponsesBlocks"]

MAX_CHOICES: Final = 1024
"""Choices of one stream, and blocks that wait for their end: what is kept for each is looked through at each event."""

Blocks = tuple[Block, ...]
_NONE: Final[Blocks] = ()
_CUT: Final = ("length", "content_filter", *BROKEN)  # reasons that end a choice wherever it is


def _require_room(held: Sized, what: str) -> None:
    """Raises ValueError where there are more than any writer would send."""
    if len(held) >= MAX_CHOICES:
        raise ValueError(f"more than {MAX_CHOICES} {what} at once")


class _Call:
    """One call of a choice, as far as it came."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | str | None, id: str) -> None:
        self.index = index
        self.id = id
        self.name = Pieces()
        self.arguments = Pieces()

    def take(self, piece: Mapping[str, Any]) -> None:
        function = as_mapping(piece.get("function"))
        name = as_text(function.get("name"))
        # A name comes in pieces, or anew with every piece.
        again = name == str(self.name) and (self.arguments or piece.get("id"))
        if not again:
            self.name.add(name)
        self.arguments.add(as_text(function.get("arguments")))

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.id, str(self.name), str(self.arguments))

    @property
    def whole(self) -> bool:
        return bool(self.arguments) and self.block(cut=True).type == "tool_call"

    def block(self, *, cut: bool, choice: int = 0) -> Block:
        return call_read(self.id, str(self.name), str(self.arguments), cut=cut, choice=choice)


class _Choice:
    """What of a choice is not whole yet."""

    __slots__ = ("_reason", "_told", "calls", "index", "refusal", "thoughts")

    def __init__(self, index: int) -> None:
        self.index = index
        self._reason = ""
        self._told: list[_Call] = []  # calls that were handed out, which some servers repeat behind their reason
        self.calls: list[_Call] = []
        self.thoughts = Pieces()
        self.refusal = Pieces()

    def take(self, delta: Mapping[str, Any]) -> Blocks:
        if thought := as_text(delta.get("reasoning") or delta.get("reasoning_content")):
            self.thoughts.add(thought)
        self.refusal.add(as_text(delta.get("refusal")))
        pieces = delta.get("tool_calls")
        if isinstance(pieces, (list, tuple)):
            for piece in pieces:
                self._call_of(as_mapping(piece)).take(as_mapping(piece))
        return self.thought() if pieces or delta.get("content") else _NONE

    def thought(self) -> Blocks:
        """The reasoning that is over now."""
        return self._text_block("reasoning", "thoughts")

    def ended(self, reason: str) -> Blocks:
        self._reason = reason
        blocks = self.thought() + self._text_block("refusal", "refusal")
        calls, self.calls = self.calls, []
        self._told = calls or self._told
        return (*blocks, *(call.block(cut=reason in _CUT, choice=self.index) for call in calls))

    def rest(self) -> Blocks:
        """What came behind the finish reason, or had none."""
        told = {call.key for call in self._told}
        calls = [call for call in self.calls if any(call.key) and call.key not in told]
        ids = {call.id for call in self._told if call.id}
        blocks = [*self.thought(), *self._text_block("refusal", "refusal")]
        for call in calls:
            block = call.block(cut=not self._reason or self._reason in _CUT, choice=self.index)
            # A piece of a call that was handed out without it, or another form of one: neither may be run.
            spare = call.id in ids or not call.name
            blocks.append(Block("invalid_tool_call", block.fields) if spare else block)
        return tuple(blocks)

    def _text_block(self, type: str, held: str) -> Blocks:
        pieces: Pieces = getattr(self, held)
        if not pieces:
            return _NONE
        setattr(self, held, Pieces())
        return (Block(type, {"text": str(pieces), **({"choice": self.index} if self.index else {})}),)

    def _call_of(self, piece: Mapping[str, Any]) -> _Call:
        """The call that a piece goes on with, or a new one."""
        index, id = as_key(piece.get("index")), as_text(piece.get("id"))
        same = [call for call in self.calls if index is None or call.index == index]
        for call in same:
            if id and call.id == id:
                return call
        if same and not (id and same[-1].id):
            last = same[-1]
            # A name where a whole call stands begins another: some servers give all of them one index, and no ids.
            if not (as_mapping(piece.get("function")).get("name") and last.whole):
                last.id = last.id or id
                return last
        _require_room(self.calls, "tool calls")
        self.calls.append(_Call(index, id))
        return self.calls[-1]


class ChatBlocks:
    """The blocks of chat chunks: calls at their choice's finish reason, reasoning when something else follows."""

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self.thinking = False  # whether reasoning of choice 0 waits for its end

    def take(self, choices: Sequence[Any]) -> Blocks:
        """The blocks that a chunk's `choices` make whole."""
        blocks = _NONE
        for found in choices:
            choice = as_mapping(found)
            delta, reason = as_mapping(choice.get("delta")), choice.get("finish_reason")
            if not delta and not reason:
                continue
            state = self._of(as_index(choice.get("index")) or 0)
            blocks += state.take(delta)
            if reason:
                blocks += state.ended(str(reason))
        self.thinking = bool(self._choices and 0 in self._choices and self._choices[0].thoughts)
        return blocks

    def spoke(self) -> Blocks:
        """The blocks that text of choice 0 makes whole."""
        self.thinking = False
        return self._of(0).thought()

    def rest(self) -> Blocks:
        """The blocks that the end of the stream makes whole."""
        return tuple(block for state in self._choices.values() for block in state.rest())

    def _of(self, index: int) -> _Choice:
        state = self._choices.get(index)
        if state is None:
            _require_room(self._choices, "choices")
            state = self._choices[index] = _Choice(index)
        return state


class AnthropicBlocks:
    """The content blocks of Anthropic's events, each at its stop."""

    def __init__(self) -> None:
        self._open: dict[int | str | None, tuple[Mapping[str, Any], Pieces, Pieces]] = {}  # start, pieces, signature

    def take(self, kind: str, payload: Mapping[str, Any]) -> Blocks:
        index = as_key(payload.get("index"))
        if kind == "content_block_start":
            start = as_mapping(payload.get("content_block"))
            before = self._open.pop(index, None)
            if start.get("type") != "text":
                _require_room(self._open, "content blocks")
                self._open[index] = (start, Pieces(as_text(start.get("thinking"))), Pieces())
            if before is not None:
                block = _content_block(*before, cut=True)
                # One that begins anew under its own id was not to be run.
                again = block.type == "tool_call" and block.fields["id"] == as_text(start.get("id"))
                return (Block("invalid_tool_call", block.fields) if again else block,)
        elif kind == "content_block_delta" and index in self._open:
            delta = as_mapping(payload.get("delta"))
            _, pieces, signature = self._open[index]
            pieces.add(as_text(delta.get("partial_json")) or as_text(delta.get("thinking")))
            signature.add(as_text(delta.get("signature")))
        elif kind == "content_block_stop" and index in self._open:
            return (_content_block(*self._open.pop(index)),)
        return _NONE

    def rest(self) -> Blocks:
        """The blocks that were never stopped."""
        return tuple(_content_block(*block, cut=True) for block in self._open.values())


def _content_block(start: Mapping[str, Any], pieces: Pieces, signature: Pieces, *, cut: bool = False) -> Block:
    fields = {key: value for key, value in start.items() if key != "type"}
    kind = as_text(start.get("type"))
    if kind == "tool_use":
        id, name, told = as_text(fields.get("id")), as_text(fields.get("name")), fields.get("input")
        if told and not (pieces or isinstance(told, str)):  # some give it whole at the start
            return call_given(id, name, told, cut=cut)
        return call_read(id, name, str(pieces) or as_text(told), cut=cut)
    if kind == "thinking":
        signed = str(signature) or as_text(fields.get("signature"))
        return Block("reasoning", {"text": str(pieces), **({"signature": signed} if signed else {})})
    return Block(kind, {**fields, "arguments": str(pieces)} if pieces else fields)


class ResponsesBlocks:
    """The output items of Responses' events, each at its end; one that has none as the last event repeats it."""

    def __init__(self) -> None:
        self._done: list[tuple[str, str, str, int]] = []  # what items were handed out
        self._open: dict[object, _Call] = {}  # calls that were begun, by their item
        self._begun = 0  # calls
        self._output: Sequence[Any] = ()  # of the last event

    def take(self, kind: str, payload: Mapping[str, Any]) -> Blocks:
        item = as_mapping(payload.get("item"))
        if kind == "response.refusal.done":
            return (Block("refusal", {"text": as_text(payload.get("refusal"))}),)
        if kind == "response.output_item.done":
            self._open.pop(_place(payload, item.get("id")), None)
            self._done.append(_mark(item))
            return _item_block(item)
        if kind == "response.output_item.added" and item.get("type") == "function_call":
            _require_room(self._open, "tool calls")
            call = self._open[_place(payload, item.get("id"))] = _Call(None, _call_id(item))
            self._begun += 1
            call.name.add(as_text(item.get("name")))
            call.arguments.add(as_text(item.get("arguments")))
        elif kind == "response.function_call_arguments.delta" and self._open:
            # Where a server does not say of which, of the last one.
            call = self._open.get(_place(payload, payload.get("item_id"))) or next(reversed(self._open.values()))
            call.arguments.add(as_text(payload.get("delta")))
        elif kind in ("response.completed", "response.incomplete"):
            output = as_mapping(payload.get("response")).get("output")
            self._output = output if isinstance(output, list) else ()
        return _NONE

    def rest(self) -> Blocks:
        """The items that had no end of their own, and calls that nothing repeats, as far as they came."""
        items = [item for item in map(as_mapping, self._output) if item]
        kinds = dict.fromkeys(as_text(item.get("type")) for item in items)
        untold = [item for kind in kinds for item in self._untold(kind, items)]
        blocks = tuple(block for item in untold for block in _item_block(item))
        ended = [mark for mark in (*self._done, *map(_mark, untold)) if mark[0] == "function_call"]
        calls = [call for call in self._open.values() if call.id not in [mark[2] for mark in ended]]
        missing = max(0, self._begun - len(ended))
        return (*blocks, *(call.block(cut=True) for call in calls[len(calls) - min(missing, len(calls)) :]))

    def _untold(self, kind: str, items: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The items of a type that were not handed out. They are counted first: some servers give an item another id in
        their last event, and a call that is handed out twice would be run twice."""
        same = [item for item in items if as_text(item.get("type")) == kind]
        done = [mark for mark in self._done if mark[0] == kind]
        missing = max(0, len(same) - len(done))
        left = [item for item in same if not any(_is_same(_mark(item), mark) for mark in done)]
        return left[len(left) - min(missing, len(left)) :]


def _place(payload: Mapping[str, Any], id: object) -> object:
    """What tells the item of an event: its id, or its place among the others."""
    return as_text(id) or as_index(payload.get("output_index"))


def _call_id(item: Mapping[str, Any]) -> str:
    return as_text(item.get("call_id") or item.get("id"))


def _mark(item: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """What an item is known by: its type, ids, and what it says, if it is a call."""
    said = hash((as_text(item.get("name")), as_text(item.get("arguments"))))
    return (as_text(item.get("type")), as_text(item.get("id")), _call_id(item), said)


def _is_same(mark: tuple[str, str, str, int], other: tuple[str, str, str, int]) -> bool:
    named = any(one and one == another for one, another in zip(mark[1:3], other[1:3], strict=True))
    return named or (mark[0] == "function_call" and mark[3] == other[3])


def _item_block(item: Mapping[str, Any]) -> Blocks:
    type = as_text(item.get("type"))
    if type == "message":
        return _NONE  # its text was handed out, and so was its refusal
    if type == "function_call":
        cut = item.get("status") == "incomplete"
        return (call_read(_call_id(item), as_text(item.get("name")), as_text(item.get("arguments")), cut=cut),)
    if type == "reasoning":
        return (Block("reasoning", {"text": _reasoning(item)}),)
    if type == "image_generation_call":
        return (Block("image", {"data": item.get("result")}),)
    return (Block(type, {key: value for key, value in item.items() if key != "type"}),)


def _reasoning(item: Mapping[str, Any]) -> str:
    for key in ("content", "summary"):
        parts = item.get(key)
        if isinstance(parts, list) and parts:
            return "".join([as_text(as_mapping(part).get("text")) for part in parts])
    return ""


class ProviderBlocks:
    """The blocks of any provider's events."""

    def __init__(self) -> None:
        self.chat = ChatBlocks()
        self._anthropic = AnthropicBlocks()
        self._responses = ResponsesBlocks()

    def take(self, payload: Mapping[str, Any]) -> Blocks:
        """The blocks that an event makes whole."""
        choices = payload.get("choices")
        if isinstance(choices, (list, tuple)):
            return self.chat.take(choices)
        kind = payload.get("type")
        if not isinstance(kind, str):
            return _NONE
        if kind.startswith("content_block_"):
            return self._anthropic.take(kind, payload)
        return self._responses.take(kind, payload)

    def rest(self) -> Blocks:
        """The blocks that the end of the stream makes whole."""
        return (*self.chat.rest(), *self._anthropic.rest(), *self._responses.rest())
