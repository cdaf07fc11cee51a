"""`openai-responses`: the events of OpenAI's Responses API, as its SDKs read them.

Every event bears a `sequence_number`. Text is a message item, a tool call a `function_call` item, reasoning and an
image are items of their own; each is added, streamed, and told whole when it is done, and the last event tells all
of them once more. So the encoder keeps what it sent: the answer's text, once.

The terminal is `response.completed`, or `response.incomplete` where a limit or a filter ended the answer. A failed
stream has `response.failed` and ends in `event: error`: SDKs raise at an event that has an `error`, and at no other.

A source that yields the provider's own events yields the whole stream: they pass as they are.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.arguments import is_number
from streamguard.core.dialect.base import Payload
from streamguard.core.dialect.blocks import Pieces, as_mapping, as_text, call_written, text_of
from streamguard.core.dialect.events import RelayingEncoder, failure_of
from streamguard.core.dialect.provider import ProviderReader
from streamguard.core.errors import UnsupportedItem
from streamguard.core.items import Block, Ending
from streamguard.core.jsontext import whole_text

__all__ = ["OpenAIResponses", "OpenAIResponsesEncoder"]

_TOKENS: Final = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
_DETAILS: Final = {"input_tokens": "cached_tokens", "output_tokens": "reasoning_tokens"}
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PREFIXES: Final = {"message": "msg", "function_call": "fc", "reasoning": "rs", "image_generation_call": "ig"}
# What the SDKs' models require, and this library knows nothing of.
_UNKNOWN: Final[Mapping[str, Any]] = {
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": None,
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
}


class OpenAIResponsesEncoder(RelayingEncoder):
    """One stream of Responses events."""

    name = "openai-responses"

    def __init__(self, model: str, id: str, created: int) -> None:
        super().__init__()
        self._settings = {"model": model, "id": id, "created": created}
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        self._text = Pieces()  # of the open item
        self._item: dict[str, Any] = {}  # the open item
        self._writers = {
            "tool_call": self._tool_call,
            "reasoning": self._reasoning,
            "refusal": self._refusal,
            "image": self._image,
        }

    def settings(self) -> Mapping[str, Any]:
        return self._settings

    # ---- events ---------------------------------------------------------------------------------

    def _numbered(self, kind: str, **fields: Any) -> Payload:
        self._sequence += 1
        return self._event(kind, sequence_number=self._sequence - 1, **fields)

    def _placed(self, kind: str, **fields: Any) -> Payload:
        """An event of the open item."""
        return self._numbered(kind, item_id=self._item["id"], output_index=len(self._output), **fields)

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        return {
            "id": self._settings["id"],
            "object": "response",
            "created_at": self._settings["created"],
            "status": status,
            "model": self._settings["model"],
            "output": self._output,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **_UNKNOWN,
            **fields,
        }

    def _start(self) -> list[Payload]:
        response = self._response("in_progress")
        kinds = ("response.created", "response.in_progress")
        return [self._numbered(kind, response=response) for kind in kinds]

    # ---- items ----------------------------------------------------------------------------------

    def _added(self, type: str, status: str = "in_progress", **fields: Any) -> Payload:
        suffix = str(self._settings["id"]).partition("_")[2] or self._settings["id"]
        id = f"{_PREFIXES[type]}_{suffix}_{len(self._output)}"
        self._item = {"id": id, "type": type, "status": status, **fields}
        return self._numbered("response.output_item.added", output_index=len(self._output), item=self._item)

    def _done(self, **fields: Any) -> Payload:
        self._item = {**self._item, "status": "completed", **fields}
        payload = self._numbered("response.output_item.done", output_index=len(self._output), item=self._item)
        self._output.append(self._item)
        return payload

    def _part(self, type: str, field: str, text: str) -> dict[str, Any]:
        return {"type": type, field: text, **({"annotations": []} if type == "output_text" else {})}

    def _say(self, text: str) -> list[Payload]:
        payloads = [] if self._open else self._message("output_text", "text")
        self._open = "text"
        self._text.add(text)
        return [*payloads, self._placed("response.output_text.delta", content_index=0, delta=text, logprobs=[])]

    def _message(self, type: str, field: str) -> list[Payload]:
        self._text = Pieces()
        return [
            self._added("message", role="assistant", content=[]),
            self._placed("response.content_part.added", content_index=0, part=self._part(type, field, "")),
        ]

    def _close(self) -> list[Payload]:
        text = str(self._text)
        told = self._placed("response.output_text.done", content_index=0, text=text, logprobs=[])
        return [told, *self._closed(self._part("output_text", "text", text))]

    def _closed(self, part: dict[str, Any]) -> list[Payload]:
        return [self._placed("response.content_part.done", content_index=0, part=part), self._done(content=[part])]

    def _tool_call(self, block: Block) -> list[Payload]:
        id, name, arguments = call_written(block, self.name)
        arguments = whole_text(arguments)
        kind = "response.function_call_arguments"
        return [
            *self._before(),
            self._added("function_call", call_id=id, name=name, arguments=""),
            *([self._placed(f"{kind}.delta", delta=arguments)] if arguments else []),
            self._placed(f"{kind}.done", name=name, arguments=arguments),
            self._done(arguments=arguments),
        ]

    def _reasoning(self, block: Block) -> list[Payload]:
        text = whole_text(text_of(block, self.name))
        kind = "response.reasoning_text"
        return [
            *self._before(),
            self._added("reasoning", summary=[], content=[]),
            self._placed("response.content_part.added", content_index=0, part=self._part("reasoning_text", "text", "")),
            self._placed(f"{kind}.delta", content_index=0, delta=text),
            self._placed(f"{kind}.done", content_index=0, text=text),
            *self._closed(self._part("reasoning_text", "text", text)),
        ]

    def _refusal(self, block: Block) -> list[Payload]:
        text = whole_text(text_of(block, self.name))
        return [
            *self._before(),
            *self._message("refusal", "refusal"),
            self._placed("response.refusal.delta", content_index=0, delta=text),
            self._placed("response.refusal.done", content_index=0, refusal=text),
            *self._closed(self._part("refusal", "refusal", text)),
        ]

    def _image(self, block: Block) -> list[Payload]:
        data = as_text(block.fields.get("data"))
        if not data:
            raise UnsupportedItem("an image without data", self.name, "yield Block('image', {'data': '<base64>'})")
        return [
            *self._before(),
            self._added("image_generation_call", result=None),
            self._placed("response.image_generation_call.completed"),
            self._done(result=data),
        ]

    # ---- the end --------------------------------------------------------------------------------

    def closing(self, ending: Ending) -> list[Payload]:
        payloads = super().closing(ending)
        if ending.status == "complete" or self._relay is not None:
            return payloads
        failure = failure_of(ending)
        error = {"code": failure.code, "message": failure.message}
        return [*self._begin(), self._numbered("response.failed", response=self._response("failed", error=error))]

    def _finish(self, ending: Ending) -> list[Payload]:
        return []

    def _last(self, ending: Ending) -> Payload:
        if ending.status == "complete":
            why = _INCOMPLETE.get(ending.reasons[0])
            status = "completed" if why is None else "incomplete"
            details = None if why is None else {"reason": why}
            response = self._response(status, incomplete_details=details, usage=_usage(ending))
            return self._numbered(f"response.{status}", response=response)
        failure = failure_of(ending)
        error = {"code": failure.code, "message": failure.message, "param": None}
        return attrs.evolve(self._numbered("error", **error, error={**error, "type": ending.status}), name="error")

    # ---- another encoder's events ---------------------------------------------------------------

    def _is_ours(self, payload: Mapping[str, Any]) -> bool:
        return as_mapping(payload.get("response")).get("id") == self._settings["id"]

    def _follow(self, payload: Mapping[str, Any]) -> None:
        kind = payload["type"]
        self._sequence = payload["sequence_number"] + 1
        if kind == "response.output_item.added":
            self._item = payload["item"]
            self._text = Pieces()
            self._open = self._item["type"]
        elif kind == "response.content_part.added" and payload["part"]["type"] == "output_text":
            self._open = "text"
        elif kind == "response.output_text.delta":
            self._text.add(payload["delta"])
        elif kind == "response.output_item.done":
            self._asked += payload["item"]["type"] == "function_call"
            self._output.append(payload["item"])
            self._open = None


def _usage(ending: Ending) -> dict[str, Any] | None:
    """The usage in this API's words; None where the source told none."""
    if ending.usage is None:
        return None
    # None is what some servers tell of a count that they do not know.
    usage = {_TOKENS.get(key, key): value for key, value in ending.usage.items() if value is not None}
    for tokens, detail in _DETAILS.items():
        usage.setdefault(tokens, 0)
        usage.setdefault(f"{tokens}_details", {detail: 0})
    usage.setdefault("total_tokens", sum(usage[tokens] for tokens in _DETAILS if is_number(usage[tokens])))
    return usage


@attrs.frozen
class OpenAIResponses:
    """The dialect `openai-responses`. `model` and `id` fill the response's fields (a random id by default), `created`
    is Unix seconds (now by default)."""

    model: str = ""
    id: str | None = None
    created: int | None = None

    name = "openai-responses"
    own_ids = False
    takes_text = True

    def encoder(self, *, negotiated: bool = False) -> OpenAIResponsesEncoder:
        id = f"resp_{secrets.token_hex(12)}" if self.id is None else self.id
        created = int(time.time()) if self.created is None else self.created
        return OpenAIResponsesEncoder(self.model, id, created)

    def reader(self) -> ProviderReader:
        return ProviderReader()
