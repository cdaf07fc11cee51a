"""`ui`: the UI message stream of the AI SDK (protocol v1), as `useChat` and `DefaultChatTransport` read it.

Chunks are JSON in unnamed events. The message starts, text and reasoning are parts with an id, opened and closed; a
tool call is its input, streamed and then available whole, and its result an output; an image is a file. Any other
block is a chunk of data, `data-<type>`. A complete stream ends in `finish` and the terminal `[DONE]`; a cancelled one
has `abort` in place of `finish`; any other ends in `error`, which the SDK raises, and has no `[DONE]`.

A source may yield chunks of its own between the rest, `{"type": "data-…", …}`.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.dialect.base import Payload, Reading
from streamguard.core.dialect.blocks import (
    Pieces,
    as_key,
    as_mapping,
    as_text,
    call_given,
    call_read,
    call_written,
    image_url,
    json_text,
    text_of,
)
from streamguard.core.dialect.events import EventEncoder, failure_of, parsed
from streamguard.core.errors import Failure, NotSerialisable, SourceFailed, UnsupportedItem
from streamguard.core.items import Block, Ending, Event, Finish
from streamguard.core.jsontext import dumps, quote, whole_text

__all__ = ["Ui", "UiEncoder", "UiReader"]

_INVALID: Final = "the arguments are no JSON object"


class UiEncoder(EventEncoder):
    """One UI message stream."""

    name = "ui"

    def __init__(self, message_id: str) -> None:
        super().__init__()
        self._id = message_id
        self._finished: Mapping[str, Any] = {}  # the source's own `finish`
        self._in_step = False
        self._writers = {
            "tool_call": self._tool_call,
            "tool_result": self._tool_result,
            "reasoning": self._reasoning,
            "image": self._image,
        }

    def settings(self) -> Mapping[str, Any]:
        return {"message_id": self._id}

    def _event(self, kind: str, **fields: Any) -> Payload:
        return Payload(dumps({"type": kind, **fields}))

    def _start(self) -> list[Payload]:
        self._in_step = True
        return [self._event("start", messageId=self._id), self._event("start-step")]

    def _say(self, text: str) -> list[Payload]:
        payloads = [] if self._open else [self._opened("text")]
        return [*payloads, Payload(b'{"type":"text-delta","id":"part-%d","delta":%b}' % (self._parts, quote(text)))]

    @property
    def _part(self) -> str:
        return f"part-{self._parts}"

    def _opened(self, kind: str) -> Payload:
        self._parts += 1
        self._open = kind
        return self._event(f"{kind}-start", id=self._part)

    def _close(self) -> list[Payload]:
        return [self._event("text-end", id=self._part)]

    def _tool_call(self, block: Block) -> list[Payload]:
        call = call_written(block, self.name)
        id, name, arguments = call
        named = {"toolCallId": id, "toolName": name}
        input, last = call.input, self._event("tool-input-error", **named, input=arguments, errorText=_INVALID)
        if input is not None:
            with contextlib.suppress(NotSerialisable):  # a number such as 1e999, which no JSON that is written holds
                last = self._event("tool-input-available", **named, input=input)
        return [
            *self._before(),
            self._event("tool-input-start", **named),
            *([self._event("tool-input-delta", toolCallId=id, inputTextDelta=arguments)] if arguments else []),
            last,
        ]

    def _tool_result(self, block: Block) -> list[Payload]:
        id, content = as_text(block.fields.get("id")), block.fields.get("content")
        if block.fields.get("is_error"):
            told = self._event("tool-output-error", toolCallId=id, errorText=json_text(content))
        else:
            told = self._event("tool-output-available", toolCallId=id, output=content)
        return [*self._before(), told]

    def _reasoning(self, block: Block) -> list[Payload]:
        text = text_of(block, self.name)
        payloads = [*self._before(), self._opened("reasoning")]
        id = self._part
        self._open = None
        return [
            *payloads,
            self._event("reasoning-delta", id=id, delta=whole_text(text)),
            self._event("reasoning-end", id=id),
        ]

    def _image(self, block: Block) -> list[Payload]:
        url, media_type = image_url(block, self.name)
        told = self._event("file", url=url, mediaType=media_type)
        return [*self._before(), told]

    def _other(self, block: Block) -> list[Payload]:
        told = self._event(f"data-{block.type}", data=block.fields)
        return [*self._before(), told]

    def _own(self, item: Event | Mapping[str, Any], ending: Ending) -> list[Payload]:
        chunk = item if isinstance(item, Mapping) else parsed(item)
        kind = chunk.get("type")
        if isinstance(item, Event) and item.data.strip() == "[DONE]":
            return []  # the terminal is ours to write, when the source has returned
        if not isinstance(kind, str):
            raise UnsupportedItem("an event without a type", self.name, "yield text, a block, or chunks with a type")
        if kind in ("error", "abort"):
            failure = _failure(chunk)
            raise SourceFailed(failure.code, failure.message)
        if kind == "finish":
            self._finished = {key: value for key, value in chunk.items() if key != "type"}
            if reason := _reason(chunk):
                ending.merge(Finish(reason))
            return []
        if kind == "start":
            if self._begun:
                raise UnsupportedItem("a second start", self.name, "the message has one, and the first item begins it")
            self._begun = True  # with the source's own
        told = Payload(dumps(chunk))  # before anything is begun: it may be no JSON
        before = self._before()
        self._step(kind)
        return [*before, told]

    def _step(self, kind: str) -> None:
        """Keep the books of steps: what is open at the end is finished."""
        if kind in ("start-step", "finish-step"):
            self._in_step = kind == "start-step"

    def _finish(self, ending: Ending) -> list[Payload]:
        # Without a reason: the first SDK of this protocol refuses every field that it does not know.
        step = [self._event("finish-step")] if self._in_step else []
        return [*step, self._event("finish", **self._finished)]

    def closing(self, ending: Ending) -> list[Payload]:
        if ending.status == "cancelled":
            # An open part stays so, as in the SDK's own streams: the message shows that its text is not whole.
            return [*self._begin(), self._event("abort")]
        return super().closing(ending)

    def _last(self, ending: Ending) -> Payload:
        if ending.status in ("complete", "cancelled"):
            return Payload(b"[DONE]")
        return self._event("error", errorText=failure_of(ending).message)

    def _follow(self, payload: Mapping[str, Any]) -> None:
        kind = str(payload["type"])
        self._step(kind)
        if kind in ("text-start", "reasoning-start"):
            self._parts += 1
            self._open = kind.removesuffix("-start")
        elif kind == "tool-input-start":
            self._open = "tool_call"
        elif kind in ("text-end", "reasoning-end", "tool-input-available", "tool-input-error"):
            self._asked += self._open == "tool_call"
            self._open = None
        elif kind.startswith("tool-output-"):
            self._asked -= 1


def _reason(chunk: Mapping[str, Any]) -> str:
    """The reason that a `finish` tells, in the words of other dialects."""
    return as_text(chunk.get("finishReason")).replace("-", "_")


def _failure(chunk: Mapping[str, Any]) -> Failure:
    """What an `error` or `abort` tells."""
    if chunk.get("type") == "abort":
        return Failure("cancelled", as_text(chunk.get("reason")) or "the stream was aborted")
    return Failure("upstream_error", as_text(chunk.get("errorText")) or "the stream has an error")


class UiReader:
    """What the chunks of a UI message stream say."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.usage: Mapping[str, Any] | None = None
        self.error: Failure | None = None
        self._held: dict[Any, Pieces] = {}  # reasoning by its id, input by its call's
        self._names: dict[str, str] = {}  # of the tools whose calls have begun, by the call's id
        self._finished = self._done = self._overrun = False

    def read(self, name: str | None, data: str) -> Reading | None:
        if not data:
            return None
        self._overrun = self._overrun or self._done
        if data.strip() == "[DONE]":
            self._done = True
            return Reading(None)
        try:
            chunk = as_mapping(json.loads(data))
        except (ValueError, RecursionError):
            return Reading(None)
        kind = chunk.get("type")
        if kind == "text-delta":
            return Reading(chunk, as_text(chunk.get("delta")))
        return Reading(chunk or None, blocks=self._blocks(str(kind), chunk))

    def _blocks(self, kind: str, chunk: Mapping[str, Any]) -> tuple[Block, ...]:
        """The block that a chunk makes whole."""
        id = as_text(chunk.get("toolCallId"))
        if kind in ("error", "abort"):
            self.error = self.error or _failure(chunk)
        elif kind == "finish":
            self._finished = True
            if reason := _reason(chunk):
                self.reasons[0] = reason
        elif kind == "tool-input-start":
            self._names[id] = as_text(chunk.get("toolName"))
        elif kind == "tool-input-delta":
            self._held.setdefault(id, Pieces()).add(as_text(chunk.get("inputTextDelta")))
        elif kind in ("tool-input-available", "tool-input-error"):
            return (self._call(id, chunk),)
        elif kind == "tool-output-available":
            return (Block("tool_result", {"id": id, "content": chunk.get("output")}),)
        elif kind == "tool-output-error":
            return (Block("tool_result", {"id": id, "content": as_text(chunk.get("errorText")), "is_error": True}),)
        elif kind == "reasoning-delta":
            self._held.setdefault(("reasoning", as_key(chunk.get("id"))), Pieces()).add(as_text(chunk.get("delta")))
        elif kind == "reasoning-end":
            held = self._held.pop(("reasoning", as_key(chunk.get("id"))), "")
            return (Block("reasoning", {"text": str(held)}),)
        elif kind == "file":
            return (_file(chunk),)
        elif kind.startswith("data-"):
            data = chunk.get("data")
            return (Block(kind.removeprefix("data-"), _fields(data) if isinstance(data, Mapping) else {"data": data}),)
        return ()

    def _call(self, id: str, chunk: Mapping[str, Any]) -> Block:
        """A call whose input is there: as its pieces had it, if they say the same."""
        self._names.pop(id, None)
        told, pieces = chunk.get("input"), str(self._held.pop(id, ""))
        name, given = as_text(chunk.get("toolName")), pieces or as_text(told)
        block = call_read(id, name, given) if given else call_given(id, name, told)
        if chunk.get("type") == "tool-input-error":
            return Block("invalid_tool_call", block.fields)
        if block.type == "tool_call" and json.loads(block.fields["arguments"]) == told:
            return block
        return call_given(id, name, told)

    def rest(self, data: str) -> tuple[Block, ...]:
        """What nothing ended: reasoning, and calls as far as their input came."""
        thoughts = [held for key, held in self._held.items() if isinstance(key, tuple)]
        ids = dict.fromkeys([*self._names, *(key for key in self._held if isinstance(key, str))])
        calls = [call_read(id, self._names.get(id, ""), str(self._held.get(id, "")), cut=True) for id in ids]
        return (*(Block("reasoning", {"text": str(thought)}) for thought in thoughts), *calls)

    def proof(self, clean: bool) -> str | None:
        if not self._done:
            return None
        return "marker+reason" if self.reasons else "marker"

    def judge(self) -> Failure | None:
        if self.error is not None:
            return self.error
        if not self._finished or not self._done:
            return Failure("unproven_end", "the stream ended without `finish` and its end marker", retryable=True)
        if self._overrun:
            return Failure("unproven_end", "events followed the end marker")
        return None


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a block may hold of `data`: its own type has another place."""
    return {key: value for key, value in data.items() if key != "type"}


def _file(chunk: Mapping[str, Any]) -> Block:
    kind = as_text(chunk.get("mediaType"))
    fields = {"url": as_text(chunk.get("url")), "media_type": kind}
    return Block("image" if kind.startswith("image/") else "file", fields)


@attrs.frozen
class Ui:
    """The dialect `ui` (AI SDK, UI message stream v1). `message_id` names the message (random by default)."""

    message_id: str | None = None

    name = "ui"
    own_ids = False
    takes_text = True
    abort_part = True

    def encoder(self, *, negotiated: bool = False) -> UiEncoder:
        return UiEncoder(f"msg_{secrets.token_hex(12)}" if self.message_id is None else self.message_id)

    def reader(self) -> UiReader:
        return UiReader()
