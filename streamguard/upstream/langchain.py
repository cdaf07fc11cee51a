"""What LangChain and LangGraph stream, as a source.

    langchain_stream(model.astream(messages))
    langchain_stream(graph.astream(state, stream_mode="messages"))
    langchain_stream(chain.astream_events(question, version="v2"))

Text of a model's messages is text, reasoning and whole tool calls are blocks, and so is a tool's result. The tokens of
all models of a run are added up.

LangChain ends its iteration where a model's connection ends, and few of the libraries under it tell a cut from an end.
So an end is proven by the finish reason that a model's provider gives, of every message that began (`end="reason"`).
Models that give none, plain text, and fakes need `end="return"`: then the end of the iteration is the end; of
`astream_events` it must be told by the event in which the run itself ends.

Nothing of LangChain is imported: what is asked of a message are its public fields.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Mapping
from typing import Any, Final, Literal

from streamguard.core.arguments import one_line, require_callable, shown
from streamguard.core.dialect.assembly import ChatBlocks
from streamguard.core.dialect.blocks import as_mapping, as_text, json_text
from streamguard.core.errors import SourceFailed, UnsupportedItem
from streamguard.core.items import Block, Finish, Item
from streamguard.runtime.closing import close

__all__ = ["langchain_stream"]

_REASONS: Final = {
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "completed", "eos"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "incomplete"), "length"),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), "tool_calls"),
    **dict.fromkeys(("content_filter", "refusal", "safety"), "content_filter"),
}
_KEYS: Final = ("finish_reason", "stop_reason", "stopReason", "done_reason", "status")  # as providers call it
_CALLS: Final = ("tool_use", "tool_call", "tool_call_chunk", "input_json_delta", "function_call")  # told as calls too
_TOKENS: Final = {
    "input_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
    "total_tokens": "total_tokens",
}

Other = Callable[[Any], "Item | None"]


def langchain_stream(
    stream: AsyncIterable[Any], *, end: Literal["reason", "return"] = "reason", other: Other | None = None
) -> AsyncGenerator[Item, None]:
    """The items of what `astream` or `astream_events` yields, then why it ended, and its counts of tokens.

    `other` is called with what has no form here (a graph's state, a part of a message of another kind) and answers an
    item, or None for nothing; without it such a thing is an UnsupportedItem. The source raises SourceFailed for an end
    that is not proven.
    """
    if end not in ("reason", "return"):
        raise ValueError(f"end is 'reason' or 'return', not {shown(end)}")
    if other is not None:
        require_callable("other", other, "what has no form")
    return _read(stream, _Run(other), end)


async def _read(stream: AsyncIterable[Any], run: _Run, end: str) -> AsyncGenerator[Item, None]:
    try:
        async for found in stream:
            for item in run.take(found):
                yield item
    finally:
        await close(stream)
    for item in run.ended(end):
        yield item


class _Message:
    """One message of a model, as far as it came."""

    def __init__(self) -> None:
        self.blocks = ChatBlocks()
        self.reason: str | None = None


class _Run:
    """What a run has streamed so far."""

    def __init__(self, other: Other | None) -> None:
        self._other = other
        self._messages: dict[Any, _Message] = {}
        self._usage: dict[str, int] = {}
        self._root: Any = None  # of a run that is told by events: its id
        self._over = True  # whether that run has ended
        self._reason: str | None = None

    def take(self, found: Any) -> list[Item]:
        if isinstance(found, str):
            return [found]
        if isinstance(found, tuple):
            return self._taken_apart(found)
        if isinstance(found, Mapping) and {"event", "data", "run_id"} <= found.keys():
            return self._event(found)
        return self._message(found, getattr(found, "id", None))

    def ended(self, end: str) -> list[Item]:
        items = [item for message in self._messages.values() for item in self._closed(message)]
        unproven = [message for message in self._messages.values() if message.reason is None]
        if not self._over:
            raise SourceFailed("upstream_truncated", "the run stopped before its own end", retryable=True)
        if end == "reason" and (unproven or not self._messages):
            why = "a message has no finish reason; for a model that never gives one choose end='return'"
            raise SourceFailed("unproven_end", why, retryable=True)
        return [*items, Finish(self._reason, self._usage or None)]

    # ---- the forms of a stream ------------------------------------------------------------------

    def _taken_apart(self, found: tuple[Any, ...]) -> list[Item]:
        """LangGraph's tuples: (message, metadata), and before it the mode, the namespace of a graph in it, or both."""
        if len(found) == 2 and hasattr(found[0], "content"):
            return self.take(found[0])
        if len(found) > 1 and isinstance(found[0], tuple):
            return self.take(found[1] if len(found) == 2 else found[1:])
        if len(found) == 2 and found[0] == "messages":
            return self.take(found[1])
        return self._others(found, f"a graph's {shown(found[0]) if found else 'nothing'}")

    def _event(self, event: Mapping[str, Any]) -> list[Item]:
        kind, run, data = event["event"], event["run_id"], as_mapping(event["data"])
        if self._root is None:
            self._root, self._over = run, False
        elif run == self._root and kind.endswith("_end"):
            self._over = True
        if kind == "on_chat_model_stream":
            return self._message(data.get("chunk"), run)
        if kind == "on_chat_model_end":
            return self._told_whole(data.get("output"), run)
        if kind == "on_llm_stream":
            chunk = data.get("chunk")
            return [chunk if isinstance(chunk, str) else as_text(getattr(chunk, "text", ""))]
        if kind == "on_tool_end" and getattr(data.get("output"), "type", "") == "tool":
            return [_result(data["output"])]
        return []  # starts, and the same text once more as it passes through chains and parsers

    def _told_whole(self, message: Any, run: Any) -> list[Item]:
        if run not in self._messages:
            return self._message(message, run)  # a model that does not stream
        started = self._messages[run]
        started.reason = started.reason or _reason_of(message)
        return []

    def _message(self, message: Any, id: Any) -> list[Item]:
        kind = getattr(message, "type", None)
        if kind in ("human", "system"):
            return []  # what the model was asked
        if kind == "tool":
            return [_result(message)]
        if kind not in ("ai", "AIMessageChunk"):
            return self._others(message, f"a {type(message).__name__}")
        state = self._messages.get(id)
        if state is None:
            state = self._messages[id] = _Message()
        for key, value in as_mapping(message.usage_metadata).items():
            if key in _TOKENS:
                self._usage[_TOKENS[key]] = self._usage.get(_TOKENS[key], 0) + value
        items: list[Item] = []
        for part in [message.content] if isinstance(message.content, str) else message.content:
            items += self._part(part, state)
        items += self._extras(message, state)
        if reason := _reason_of(message) or (kind == "ai" and "stop"):  # one that is no chunk is whole
            state.reason = self._reason = reason
            items += self._closed(state)
        return items

    # ---- parts of a message ---------------------------------------------------------------------

    def _part(self, part: Any, state: _Message) -> list[Item]:
        fields = {"type": "text", "text": part} if isinstance(part, str) else as_mapping(part)
        kind = fields.get("type")
        if kind in ("text", "output_text", "text_delta"):
            text = as_text(fields.get("text"))
            return [*state.blocks.take([{"delta": {"content": text}}]), text] if text else []
        if kind in ("thinking", "reasoning"):
            return [*state.blocks.take([{"delta": {"reasoning": _thought(fields)}}])]
        if kind in _CALLS:
            return []
        return self._others(part, f"a part of a message of type {shown(kind)}")

    def _extras(self, message: Any, state: _Message) -> list[Item]:
        """What stands beside a message's content: calls, and what some providers have no part for."""
        more = as_mapping(getattr(message, "additional_kwargs", None))
        delta: dict[str, Any] = {"reasoning": more.get("reasoning_content"), "refusal": more.get("refusal")}
        if pieces := list(_pieces(message)):
            delta["tool_calls"] = pieces
        return [*state.blocks.take([{"delta": {key: value for key, value in delta.items() if value}}])]

    def _closed(self, message: _Message) -> list[Item]:
        reason = message.reason or "stop"
        return [*message.blocks.take([{"delta": {}, "finish_reason": reason}])]

    def _others(self, found: Any, what: str) -> list[Item]:
        if self._other is None:
            raise UnsupportedItem(what, "", "stream messages (stream_mode='messages'), or give `other`")
        item = self._other(found)
        return [] if item is None else [item]


def _pieces(message: Any) -> Iterator[dict[str, Any]]:
    """The pieces of a message's tool calls, as chat chunks have them."""
    for piece in getattr(message, "tool_call_chunks", None) or ():
        function = {"name": piece.get("name"), "arguments": piece.get("args")}
        yield {"index": piece.get("index"), "id": piece.get("id"), "function": function}
    if not hasattr(message, "tool_call_chunks"):
        for at, call in enumerate(message.tool_calls):
            function = {"name": call["name"], "arguments": json_text(call["args"])}
            yield {"index": at, "id": call["id"], "function": function}


def _thought(fields: Mapping[str, Any]) -> str:
    if text := as_text(fields.get("thinking") or fields.get("reasoning")):
        return text
    summary = fields.get("summary")
    return "".join([as_text(as_mapping(part).get("text")) for part in summary]) if isinstance(summary, list) else ""


def _result(message: Any) -> Block:
    fields = {"id": message.tool_call_id, "content": message.content}
    return Block("tool_result", {**fields, "is_error": True} if message.status == "error" else fields)


def _reason_of(message: Any) -> str | None:
    said = as_mapping(getattr(message, "response_metadata", None))
    for key in _KEYS:
        if isinstance(reason := said.get(key), str):
            reason = one_line(reason)
            if reason.lower() not in ("in_progress", "queued"):
                return _REASONS.get(reason.lower(), reason)
    return None
