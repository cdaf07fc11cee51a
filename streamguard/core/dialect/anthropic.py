"""`anthropic`: the events of Anthropic's Messages API, as its SDKs read them.

Text is a content block of deltas, a tool call a `tool_use` block, reasoning a `thinking` block, each opened and
closed. A complete stream ends in `message_delta` with the reason and the usage, then the terminal `message_stop`;
a failed one in `event: error`, which makes every SDK raise by itself, and never in `message_stop`.

A source that yields Anthropic's own events yields the whole stream: they pass as they are.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.dialect.base import Payload
from streamguard.core.dialect.blocks import as_mapping, as_text, call_written, text_of
from streamguard.core.dialect.events import RelayingEncoder, failure_of
from streamguard.core.dialect.provider import ProviderReader
from streamguard.core.errors import UnsupportedItem
from streamguard.core.items import Block, Ending
from streamguard.core.jsontext import dumps, quote, whole_text

__all__ = ["Anthropic", "AnthropicEncoder"]

# What other APIs call a reason, and a kind of token.
_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_TOKENS: Final = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}


class AnthropicEncoder(RelayingEncoder):
    """One stream of Messages events."""

    name = "anthropic"

    def __init__(self, model: str, id: str) -> None:
        super().__init__()
        self._model = model
        self._id = id
        self._writers = {"tool_call": self._tool_call, "reasoning": self._reasoning}

    def settings(self) -> Mapping[str, Any]:
        return {"model": self._model, "id": self._id}

    def _start(self) -> list[Payload]:
        message: dict[str, Any] = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},  # known at the end, and told there
        }
        return [self._event("message_start", message=message)]

    def _say(self, text: str) -> list[Payload]:
        payloads = [] if self._open else [self._opened("text", {"type": "text", "text": ""})]
        self._open = "text"
        return [*payloads, Payload(b"%b%b}}" % (self._delta_head, quote(text)), "content_block_delta")]

    @property
    def _delta_head(self) -> bytes:
        head = b'{"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":'
        return head % (self._parts - 1)

    def _opened(self, kind: str, block: Mapping[str, Any]) -> Payload:
        self._parts += 1
        return self._event("content_block_start", index=self._parts - 1, content_block=block)

    def _delta(self, kind: str, field: str, text: str) -> Payload:
        return self._event("content_block_delta", index=self._parts - 1, delta={"type": kind, field: text})

    def _close(self) -> list[Payload]:
        return [self._event("content_block_stop", index=self._parts - 1)]

    def _tool_call(self, block: Block) -> list[Payload]:
        call = call_written(block, self.name)
        id, name, arguments = call
        if call.input is None:
            # The SDK raises on what is no JSON, in the middle of the stream.
            raise UnsupportedItem("a tool call whose arguments are no JSON object", self.name, "yield JSON text")
        start = {"type": "tool_use", "id": id, "name": name, "input": {}}
        return [
            *self._before(),
            self._opened("tool_use", start),
            *([self._delta("input_json_delta", "partial_json", arguments)] if arguments else []),
            *self._close(),
        ]

    def _reasoning(self, block: Block) -> list[Payload]:
        text, signature = text_of(block, self.name), as_text(block.fields.get("signature"))
        return [
            *self._before(),
            self._opened("thinking", {"type": "thinking", "thinking": "", "signature": ""}),
            self._delta("thinking_delta", "thinking", whole_text(text)),
            *([self._delta("signature_delta", "signature", signature)] if signature else []),
            *self._close(),
        ]

    def _finish(self, ending: Ending) -> list[Payload]:
        reason = ending.reasons[0]
        delta = {"stop_reason": _REASONS.get(reason, reason), "stop_sequence": None}
        usage = {_TOKENS.get(key, key): value for key, value in (ending.usage or {}).items()}
        return [self._event("message_delta", delta=delta, usage={"output_tokens": 0, **usage})]

    def _last(self, ending: Ending) -> Payload:
        if ending.status == "complete":
            return self._event("message_stop")
        failure = failure_of(ending)
        error = {"type": "api_error", "message": failure.message, "code": failure.code}
        return Payload(dumps({"type": "error", "error": error}), "error")

    def _is_ours(self, payload: Mapping[str, Any]) -> bool:
        return as_mapping(payload.get("message")).get("id") == self._id

    def _follow(self, payload: Mapping[str, Any]) -> None:
        kind = payload["type"]
        if kind == "content_block_start":
            self._parts += 1
            self._open = str(payload["content_block"]["type"])
        elif kind == "content_block_stop":
            self._asked += self._open == "tool_use"
            self._open = None


@attrs.frozen
class Anthropic:
    """The dialect `anthropic` (Messages). `model` and `id` fill the message's fields (a random id by default)."""

    model: str = ""
    id: str | None = None

    name = "anthropic"
    own_ids = False
    takes_text = True

    def encoder(self, *, negotiated: bool = False) -> AnthropicEncoder:
        return AnthropicEncoder(self.model, f"msg_{secrets.token_hex(12)}" if self.id is None else self.id)

    def reader(self) -> ProviderReader:
        return ProviderReader()
