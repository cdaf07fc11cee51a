"""`openai`: chat.completion.chunk events, as the OpenAI SDKs and everything built on them read them.

Text becomes a chunk of choice 0 made from two constant halves, so that a token costs one JSON
string. A mapping or an Event is the provider's own chunk and passes as it is; its finish reasons
and usage are noted, so that the ending neither repeats nor invents them. No event is ever named and
none is added before the end: an extra event is visible or fatal in most SDK versions.

The terminal is `[DONE]`, only for a complete stream. A failed one ends in `{"error": …}`, which
makes every SDK raise by itself.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from streamguard.core.dialect.base import Payload, Sent, refuse_wire, summary
from streamguard.core.dialect.blocks import call_written, text_of
from streamguard.core.dialect.provider import ProviderReader, ProviderStream
from streamguard.core.errors import Failure, SourceFailed, TextAfterFinish, UnsupportedItem
from streamguard.core.items import Ending, Event, Finish
from streamguard.core.jsontext import dumps, no_constant, quote, whole_text

__all__ = ["OpenAI", "OpenAIEncoder"]


_KEYS: Final = frozenset(("choices", "usage", "error"))  # a chunk has one of these
_TEXTS: Final = {"reasoning": b'"reasoning":', "refusal": b'"refusal":'}  # blocks that are text of another kind
_CHUNK: Final = """yield text, or {"choices": [{"index": 0, "delta": {"content": "…"}, "finish_reason": None}]}"""


class OpenAIEncoder:
    """One stream of chat.completion.chunk events."""

    def __init__(self, model: str, id: str, created: int, include_usage: bool) -> None:
        self._settings = {"model": model, "id": id, "created": created, "include_usage": include_usage}
        head = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._head = dumps(head)[:-1]
        self._before = self._head + b',"choices":[{"index":0,"delta":{"content":'
        self._after = b'},"finish_reason":null}]}'
        self._include_usage = include_usage
        self._role_sent = False
        self._tools = 0
        self._seen = ProviderStream()
        self._usage_sent = False

    def text(self, text: str) -> bytes:
        if self._role_sent:
            return b"%b%b%b" % (self._before, quote(text), self._after)
        return self._delta(b'"content":' + quote(text))

    def item(self, item: Sent, ending: Ending) -> list[Payload]:
        if isinstance(item, Event):
            return self._event(item, ending)
        if isinstance(item, str):
            return [Payload(self.text(item))]
        if isinstance(item, Mapping):
            if not _KEYS.intersection(item):  # else none of it would be text, and the end would look whole
                raise UnsupportedItem("a mapping that is no chunk", "openai", _CHUNK)
            return self._chunk(item, dumps(item), ending)
        if item.type in _TEXTS:
            return [Payload(self._delta(_TEXTS[item.type] + quote(whole_text(text_of(item, "openai")))))]
        if item.type != "tool_call":
            what = f"a block of type {item.type!r}"
            raise UnsupportedItem(what, "openai", "chat chunks have room for tool calls, reasoning and refusals")
        id, name, arguments = call_written(item, "openai")
        function = {"name": name, "arguments": arguments}
        call = {"index": self._tools, "id": id, "type": "function", "function": function}
        self._tools += 1
        return [Payload(self._delta(b'"tool_calls":' + dumps([call])))]

    def wire(self, piece: bytes, ending: Ending) -> list[Payload]:
        raise refuse_wire("openai")

    def judge(self, ending: Ending) -> Failure | None:
        if self._role_sent or not self._seen.begun:
            # A source of text ends by returning; one that called tools waits for them.
            ending.reasons.setdefault(0, "tool_calls" if self._tools else "stop")
        missing = self._seen.begun - ending.reasons.keys()
        if missing:
            choice = min(missing)
            advice = f"yield Finish('stop', choice={choice}), or a chunk with its finish_reason"
            return Failure("unproven_end", f"choice {choice} has no finish reason: {advice}", retryable=True)
        return ending.aborted()

    def closing(self, ending: Ending) -> list[Payload]:
        if ending.status != "complete":
            return []
        chunks = [
            self._finish(choice, reason)
            for choice, reason in sorted(ending.reasons.items())
            if choice not in self._seen.reasons
        ]
        if self._include_usage and ending.usage is not None and not self._usage_sent:
            chunks.append(self._head + b',"choices":[],"usage":' + dumps(ending.usage) + b"}")
        return [Payload(chunk) for chunk in chunks]

    def terminal(self, ending: Ending, frames: int, size: int) -> Payload:
        extra = summary(ending, frames, size)
        if ending.status == "complete":
            return Payload(b"[DONE]", extra=extra)
        failure = ending.failure or Failure(ending.status, f"the stream ended as {ending.status}")
        error = {"message": failure.message, "type": ending.status, "param": None, "code": failure.code}
        return Payload(dumps({"error": error}), extra=extra)

    def settings(self) -> Mapping[str, Any]:
        return self._settings

    def follow(self, name: str | None, data: bytes, ending: Ending) -> None:
        if not data.startswith(self._head):  # a provider's own chunk
            self._observe(json.loads(data), ending)
            return
        self._role_sent = True
        self._tools += not data.startswith(self._before) and b'"tool_calls":[' in data

    def _delta(self, fields: bytes) -> bytes:
        role = b"" if self._role_sent else b'"role":"assistant",'
        self._role_sent = True
        return b'%b,"choices":[{"index":0,"delta":{%b%b},"finish_reason":null}]}' % (self._head, role, fields)

    def _finish(self, choice: int, reason: str) -> bytes:
        role = b"" if self._role_sent or choice else b'"role":"assistant"'
        return b'%b,"choices":[{"index":%d,"delta":{%b},"finish_reason":%b}]}' % (
            self._head,
            choice,
            role,
            dumps(reason),
        )

    def _event(self, event: Event, ending: Ending) -> list[Payload]:
        if event.data.strip() == "[DONE]":
            return []  # the terminal is ours to write, when the source has returned
        try:
            chunk = json.loads(event.data, parse_constant=no_constant)
        except (ValueError, RecursionError):
            chunk = None
        if event.event == "error":
            raise SourceFailed("upstream_error", str(chunk.get("message")) if isinstance(chunk, dict) else event.data)
        if not isinstance(chunk, dict):
            raise UnsupportedItem("an event without a JSON object", "openai")
        # White space between JSON's parts may hold line ends; then the chunk is written anew.
        data = event.data.encode() if event.data.isprintable() else dumps(chunk)
        return self._chunk(chunk, data, ending)

    def _chunk(self, chunk: Mapping[str, Any], data: bytes, ending: Ending) -> list[Payload]:
        if error := chunk.get("error"):
            message = error.get("message") if isinstance(error, Mapping) else error
            raise SourceFailed("upstream_error", str(message))
        before = dict(ending.reasons)
        for choice in self._observe(chunk, ending):
            if choice in before:
                raise TextAfterFinish(choice, before[choice])
        return [Payload(data)]

    def _observe(self, chunk: Mapping[str, Any], ending: Ending) -> Iterable[int]:
        """Note what a provider's chunk says of the ending; the choices that it has text for."""
        _, reading = self._seen.observe_payload(chunk)
        if (error := self._seen.error) is not None:  # more choices than are kept
            raise SourceFailed(error.code, error.message)
        for choice, reason in self._seen.reasons.items():
            ending.merge(Finish(reason, choice=choice))
        if isinstance(chunk.get("usage"), Mapping):
            ending.merge(Finish(usage=chunk["usage"]))
            self._usage_sent = True
        return reading.texts or ()


@attrs.frozen
class OpenAI:
    """The dialect `openai` (chat.completions).

    `model` and `id` fill the chunks' fields (a random id by default), `created` is Unix seconds
    (now by default), `include_usage` adds the usage chunk that a client asks for with
    `stream_options`.
    """

    model: str = ""
    id: str | None = None
    created: int | None = None
    include_usage: bool = False

    name = "openai"
    own_ids = False
    takes_text = True

    def encoder(self, *, negotiated: bool = False) -> OpenAIEncoder:
        id = f"chatcmpl-{secrets.token_hex(12)}" if self.id is None else self.id
        created = int(time.time()) if self.created is None else self.created
        return OpenAIEncoder(self.model, id, created, self.include_usage)

    def reader(self) -> ProviderReader:
        return ProviderReader()
