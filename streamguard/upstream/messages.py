"""Anthropic's `/v1/messages`, and servers that speak it too, as a source.

An end is proven by `message_stop`, behind a `message_delta` with the reason. `event: error` is an error, and
`event: ping` a sign of life, which `events` passes on and `stream` does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.errors import SourceFailed
from streamguard.upstream.answer import Answer
from streamguard.upstream.server import ModelServer

__all__ = ["Messages"]

_VERSION: Final = {"anthropic-version": "2023-06-01"}
_REASONS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


def _with_version(headers: Mapping[str, str]) -> Mapping[str, str]:
    named = {name.lower() for name in headers}
    return {**headers, **{name: value for name, value in _VERSION.items() if name not in named}}


@attrs.frozen(kw_only=True)
class Messages(ModelServer):
    """A server. `base` is the address that ends with `/v1`; the other arguments are those of every `ModelServer`.

    `headers` have the key, `{"x-api-key": …}`, and may name another `anthropic-version` than 2023-06-01. `stream`
    yields text, and other content blocks when they are whole.
    """

    headers: Mapping[str, str] = attrs.field(factory=dict, converter=_with_version, repr=False)

    path = "/messages"

    def _require_one(self, body: Mapping[str, Any]) -> None:
        pass  # there is no way to ask for several

    def _reason(self, answer: Answer) -> str:
        reason = answer.reader.reasons.get(0)
        if reason is None:
            raise SourceFailed("unproven_end", "the end marker came without any stop reason", retryable=True)
        return _REASONS.get(reason, reason)
