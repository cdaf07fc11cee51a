"""Text Generation Inference's own `/generate_stream`, as a source. Its `/v1/chat/completions` is `ChatCompletions`.

Its events are unnamed and have no marker: `{"token": {"text", "special", …}, "generated_text": null, "details": null}`,
and the one whose `generated_text` is text is the last. A token that is special is no text. An error is an event
`{"error", "error_type"}` under status 200. Made after its documentation; it was not run.

    model = TextGeneration("http://tgi:8080")
    source = model.stream({"inputs": prompt, "parameters": {"max_new_tokens": 200}})

`events` goes with dialect `raw`, to which `is_last` says what the end is: `Raw(end=is_last)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.arguments import shown
from streamguard.core.codes import code_in
from streamguard.core.dialect.base import Reading
from streamguard.core.dialect.blocks import as_mapping, as_text
from streamguard.core.errors import Failure
from streamguard.core.items import Event
from streamguard.upstream.answer import EventReader
from streamguard.upstream.server import ModelServer

__all__ = ["TextGeneration", "TextGenerationReader", "is_last"]

_REASONS: Final = {"eos_token": "stop", "stop_sequence": "stop", "length": "length"}
_COUNTS: Final = {"input_length": "prompt_tokens", "generated_tokens": "completion_tokens"}


def _read(data: str) -> Mapping[str, Any]:
    try:
        return as_mapping(json.loads(data))
    except (ValueError, RecursionError):
        return {}


def is_last(event: Event) -> bool:
    """Whether an event is the last of an answer."""
    return isinstance(_read(event.data).get("generated_text"), str)


class TextGenerationReader:
    """Reads one answer's events."""

    def __init__(self) -> None:
        self.begun: set[int] = set()  # what this would name, finish reasons, is an extra here
        self.reasons: dict[int, str] = {}
        self.usage: Mapping[str, Any] | None = None
        self.error: Failure | None = None
        self._last = False

    def read(self, name: str | None, data: str) -> Reading | None:
        payload = _read(data)
        if error := payload.get("error"):
            self.error = Failure(code_in(payload.get("error_type")), str(error))
            return None
        if not data:
            return None
        self._last = isinstance(payload.get("generated_text"), str)
        details = as_mapping(payload.get("details"))
        if reason := details.get("finish_reason"):
            self.reasons[0] = _REASONS.get(str(reason), str(reason))
        if counts := {name: details[key] for key, name in _COUNTS.items() if key in details}:
            self.usage = counts
        token = as_mapping(payload.get("token"))
        return Reading(dict(payload), "" if token.get("special") else as_text(token.get("text")))

    def proof(self, clean: bool) -> str | None:
        if not self._last:
            return None
        return "marker+reason" if self.reasons else "marker"

    def judge(self) -> Failure | None:
        return self.error


@attrs.frozen(kw_only=True)
class TextGeneration(ModelServer):
    """A server. `base` is its address; the other arguments are those of every `ModelServer`.

    The request asks for `details`, which have the reason and the counts, unless it says otherwise.
    """

    path = "/generate_stream"

    def _asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        asked = super()._asked(body)
        del asked["stream"]  # the address says it
        parameters = asked.get("parameters") or {}
        if not isinstance(parameters, Mapping):
            raise TypeError(f"parameters are a mapping, as {{'max_new_tokens': 200}}, not {shown(parameters)}")
        asked["parameters"] = {"details": True, **parameters}
        return asked

    def _require_one(self, body: Mapping[str, Any]) -> None:
        if body["parameters"].get("best_of") not in (None, 1):
            raise ValueError("a stream is one answer, and best_of asks for a choice between several")

    def _reader(self) -> EventReader:
        return TextGenerationReader()
