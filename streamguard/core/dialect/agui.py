"""`ag-ui`: the events of the Agent User Interaction Protocol, as its clients read them.

Events are JSON without names. A run starts; a text is a message that starts, has content and ends; a tool call
likewise, and its result is an event; reasoning is a message of its own; any other block is a `CUSTOM` event. The
terminal of a complete stream is `RUN_FINISHED`, of every other `RUN_ERROR`, which the clients raise. There is no
`[DONE]`.

A source may yield events of its own between the rest, `{"type": "STATE_DELTA", …}`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.dialect.base import Payload, Reading
from streamguard.core.dialect.blocks import Pieces, as_mapping, as_text, call_read, call_written, json_text, text_of
from streamguard.core.dialect.events import EventEncoder, failure_of, parsed
from streamguard.core.errors import Failure, SourceFailed, UnsupportedItem
from streamguard.core.items import Block, Ending, Event
from streamguard.core.jsontext import dumps, quote, whole_text

__all__ = ["AgUi", "AgUiEncoder", "AgUiReader"]

# The protocol's counts of tokens, and what other APIs call them.
_TOKENS: Final = {
    "inputTokens": ("input_tokens", "prompt_tokens"),
    "outputTokens": ("output_tokens", "completion_tokens"),
    "totalTokens": ("total_tokens",),
}
# Events that may stand inside a message; every other one ends it.
_INSIDE: Final = ("STATE_", "CUSTOM", "RAW", "ACTIVITY_", "MESSAGES_SNAPSHOT")
_MARK: Final = re.compile(r'\\.?|["{}]', re.DOTALL)  # what tells where a JSON object ends


class AgUiEncoder(EventEncoder):
    """One run."""

    name = "ag-ui"

    def __init__(self, thread_id: str, run_id: str) -> None:
        super().__init__()
        self._run = {"threadId": thread_id, "runId": run_id}
        self._finished: dict[str, Any] = {}  # the source's own RUN_FINISHED
        self._message: str | None = None  # the last message of text
        self._writers = {
            "tool_call": self._tool_call,
            "tool_result": self._tool_result,
            "reasoning": self._reasoning,
        }

    def settings(self) -> Mapping[str, Any]:
        return {"thread_id": self._run["threadId"], "run_id": self._run["runId"]}

    def _event(self, kind: str, **fields: Any) -> Payload:
        return Payload(dumps({"type": kind, **fields}))

    def _start(self) -> list[Payload]:
        return [self._event("RUN_STARTED", **self._run)]

    def _next_id(self) -> str:
        self._parts += 1
        return f"{self._run['runId']}-{self._parts}"

    def _say(self, text: str) -> list[Payload]:
        payloads = []
        if self._open is None:
            self._open = "text"
            self._message = self._next_id()
            payloads.append(self._event("TEXT_MESSAGE_START", messageId=self._message, role="assistant"))
        content = b'{"type":"TEXT_MESSAGE_CONTENT","messageId":%b,"delta":%b}'
        return [*payloads, Payload(content % (dumps(self._message), quote(text)))]

    def _close(self) -> list[Payload]:
        return [self._event("TEXT_MESSAGE_END", messageId=self._message)]

    def _tool_call(self, block: Block) -> list[Payload]:
        id, name, arguments = call_written(block, self.name)
        before = self._before()
        parent = {} if self._message is None else {"parentMessageId": self._message}
        return [
            *before,
            self._event("TOOL_CALL_START", toolCallId=id, toolCallName=name, **parent),
            *([self._event("TOOL_CALL_ARGS", toolCallId=id, delta=whole_text(arguments))] if arguments else []),
            self._event("TOOL_CALL_END", toolCallId=id),
        ]

    def _tool_result(self, block: Block) -> list[Payload]:
        id, content = as_text(block.fields.get("id")), json_text(block.fields.get("content"))
        return [
            *self._before(),
            self._event("TOOL_CALL_RESULT", messageId=self._next_id(), toolCallId=id, content=content, role="tool"),
        ]

    def _reasoning(self, block: Block) -> list[Payload]:
        text = whole_text(text_of(block, self.name))
        before, id = self._before(), self._next_id()
        content = [self._event("REASONING_MESSAGE_CONTENT", messageId=id, delta=text)] if text else []
        return [
            *before,
            self._event("REASONING_START", messageId=id),
            self._event("REASONING_MESSAGE_START", messageId=id, role="reasoning"),
            *content,  # which the protocol wants to have some text
            self._event("REASONING_MESSAGE_END", messageId=id),
            self._event("REASONING_END", messageId=id),
        ]

    def _other(self, block: Block) -> list[Payload]:
        told = self._event("CUSTOM", name=block.type, value=block.fields)
        return [*self._begin(), told]

    def _own(self, item: Event | Mapping[str, Any], ending: Ending) -> list[Payload]:
        event = item if isinstance(item, Mapping) else parsed(item)
        kind = event.get("type")
        if not isinstance(kind, str):
            raise UnsupportedItem("an event without a type", self.name, "yield text, a block, or events with a type")
        if kind == "RUN_ERROR":
            raise SourceFailed(as_text(event.get("code")) or "upstream_error", as_text(event.get("message")))
        told = Payload(dumps(event))  # before anything is begun: it may be no JSON
        if kind == "RUN_FINISHED":
            self._finished = dict(event)
            return []
        if kind == "RUN_STARTED":
            if self._begun:
                raise UnsupportedItem("a second RUN_STARTED", self.name, "the first item begins the run")
            self._begun = True
            self._name(event)
        return [*(self._begin() if kind.startswith(_INSIDE) else self._before()), told]

    def _name(self, event: Mapping[str, Any]) -> None:
        """Take the run's names from the event that begins it."""
        self._run = {key: as_text(event.get(key)) or value for key, value in self._run.items()}

    def _finish(self, ending: Ending) -> list[Payload]:
        return []

    def _last(self, ending: Ending) -> Payload:
        if ending.status == "complete":
            told = {"usage": [counts]} if (counts := _counts(ending.usage)) else {}
            return Payload(dumps({"type": "RUN_FINISHED", **self._run, **told, **self._finished}))
        failure = failure_of(ending)
        return self._event("RUN_ERROR", message=failure.message, code=failure.code)

    def _follow(self, payload: Mapping[str, Any]) -> None:
        kind = str(payload["type"])
        if kind == "RUN_STARTED":
            self._name(payload)
        elif kind in ("TEXT_MESSAGE_START", "TOOL_CALL_START", "REASONING_START"):
            self._open = {"T": "tool_call", "R": "reasoning"}[kind[0]] if kind != "TEXT_MESSAGE_START" else "text"
            self._parts += kind != "TOOL_CALL_START"
            self._message = payload["messageId"] if self._open == "text" else self._message
        elif kind in ("TEXT_MESSAGE_END", "TOOL_CALL_END", "REASONING_END"):
            self._asked += self._open == "tool_call"
            self._open = None
        elif kind == "TOOL_CALL_RESULT":
            self._asked -= 1
            self._parts += 1


def _counts(usage: Mapping[str, Any] | None) -> dict[str, Any]:
    """Usage in this protocol's words."""
    found: dict[str, Any] = {}
    for name, keys in _TOKENS.items():
        for key in keys:
            if usage is not None and isinstance(usage.get(key), int):
                found[name] = usage[key]
    return found


class _Call:
    """A call whose pieces come. `chunked`: in chunks, which nothing ends; `spare`: under the id of one that was handed
    out, so that it must not be run."""

    def __init__(self, id: str, name: str, *, chunked: bool = False, spare: bool = False) -> None:
        self._id = id
        self._name = name
        self._chunked = chunked
        self._spare = spare
        self._pieces = Pieces()
        self._depth = 0
        self._quoted = self._half = self._over = False  # in a string; behind half an escape; the object was closed

    def add(self, piece: str) -> bool:
        """Take a piece; whether it closes the arguments' object, which one does and no later one: to parse all that
        came at each brace would take the square of a stream's time."""
        self._pieces.add(piece)
        if not piece or self._over:
            return False
        start, self._half = int(self._half), False
        for match in _MARK.finditer(piece, start):
            mark = match[0]
            if mark[0] == "\\":
                self._half = len(mark) == 1
            elif mark == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if mark == "{" else -1
                self._over = self._over or self._depth <= 0
        return self._over

    def block(self, *, ended: bool = True) -> Block:
        block = call_read(self._id, self._name, str(self._pieces), cut=not (ended or self._chunked))
        return Block("invalid_tool_call", block.fields) if self._spare else block


class AgUiReader:
    """What the events of a run say."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.usage: Mapping[str, Any] | None = None
        self.error: Failure | None = None
        self._calls: dict[str, _Call] = {}  # those that are open
        self._told: set[str] = set()  # the ids of those that came in chunks and were handed out
        self._thoughts: dict[str, Pieces] = {}
        self._chunked = ""  # the call whose chunks come
        self._done = self._overrun = False

    def read(self, name: str | None, data: str) -> Reading | None:
        if not data:
            return None
        self._overrun = self._overrun or self._done
        try:
            event = as_mapping(json.loads(data))
        except (ValueError, RecursionError):
            return Reading(None)
        kind = str(event.get("type"))
        if kind in ("TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CHUNK"):
            return Reading(event, as_text(event.get("delta")))
        if kind.startswith("RUN_"):
            self._run(kind, event)
            return Reading(event)
        if kind.startswith("TOOL_CALL_"):
            return Reading(event, blocks=self._call(kind, event))
        return Reading(event or None, blocks=self._block(kind, event))

    def _run(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind == "RUN_ERROR":
            code, message = as_text(event.get("code")), as_text(event.get("message"))
            self.error = self.error or Failure(code or "upstream_error", message or "the run has an error")
        elif kind == "RUN_FINISHED":
            self._done = True
            told = event.get("usage")
            if isinstance(told, list) and len(told) == 1:
                self.usage = {keys[0]: told[0][name] for name, keys in _TOKENS.items() if name in as_mapping(told[0])}

    def _call(self, kind: str, event: Mapping[str, Any]) -> tuple[Block, ...]:
        id = as_text(event.get("toolCallId"))
        if kind == "TOOL_CALL_CHUNK":
            return self._chunk(id or self._chunked, event)
        if kind == "TOOL_CALL_START":
            before = self._calls.pop(id, None)
            self._calls[id] = _Call(id, as_text(event.get("toolCallName")))
            return () if before is None else (Block("invalid_tool_call", before.block().fields),)
        if kind == "TOOL_CALL_ARGS" and id in self._calls:
            self._calls[id].add(as_text(event.get("delta")))
        elif kind == "TOOL_CALL_END" and id in self._calls:
            return (self._calls.pop(id).block(),)
        elif kind == "TOOL_CALL_RESULT":
            return (Block("tool_result", {"id": id, "content": event.get("content")}),)
        return ()

    def _chunk(self, id: str, event: Mapping[str, Any]) -> tuple[Block, ...]:
        """A piece of a call that nothing ends: it is whole when its arguments are."""
        self._chunked = id
        delta, spare = as_text(event.get("delta")), id in self._told
        call = self._calls.get(id)
        if call is None:
            if spare and not delta.strip(" \t\n\r"):  # white space of JSON
                return ()
            call = self._calls[id] = _Call(id, as_text(event.get("toolCallName")), chunked=True, spare=spare)
        if not call.add(delta) or (block := call.block()).type != "tool_call":
            return ()
        del self._calls[id]
        self._told.add(id)
        return (block,)

    def rest(self, data: str) -> tuple[Block, ...]:
        """What the end of the run makes whole: calls that came in chunks, and what nothing ended."""
        thoughts = [Block("reasoning", {"text": str(thought)}) for thought in self._thoughts.values()]
        return (*thoughts, *(call.block(ended=False) for call in self._calls.values()))

    def _block(self, kind: str, event: Mapping[str, Any]) -> tuple[Block, ...]:
        id = as_text(event.get("messageId"))
        if kind == "REASONING_MESSAGE_CONTENT":
            self._thoughts.setdefault(id, Pieces()).add(as_text(event.get("delta")))
        elif kind == "REASONING_MESSAGE_END":
            return (Block("reasoning", {"text": str(self._thoughts.pop(id, ""))}),)
        elif kind == "CUSTOM":
            value = event.get("value")
            return (Block(as_text(event.get("name")), _fields(value)),)
        return ()

    def proof(self, clean: bool) -> str | None:
        return "marker" if self._done else None

    def judge(self) -> Failure | None:
        if self.error is None and self._overrun:
            return Failure("unproven_end", "events followed the end of the run")
        return self.error


def _fields(value: object) -> Mapping[str, Any]:
    """What a block may hold of `value`: its own type has another place."""
    if isinstance(value, Mapping):
        return {key: part for key, part in value.items() if key != "type"}
    return {"value": value}


@attrs.frozen
class AgUi:
    """The dialect `ag-ui`. `thread_id` and `run_id` are those of the request's RunAgentInput (random by default)."""

    thread_id: str | None = None
    run_id: str | None = None

    name = "ag-ui"
    own_ids = False
    takes_text = True

    def encoder(self, *, negotiated: bool = False) -> AgUiEncoder:
        thread = secrets.token_hex(12) if self.thread_id is None else self.thread_id
        return AgUiEncoder(thread, secrets.token_hex(12) if self.run_id is None else self.run_id)

    def reader(self) -> AgUiReader:
        return AgUiReader()
