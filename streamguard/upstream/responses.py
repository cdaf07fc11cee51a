"""Any server that speaks OpenAI's `/v1/responses`, as a source.

An end is proven by `response.completed` or `response.incomplete`, which tell in the response why it ended. There is no
`[DONE]`. `response.failed` and `error` are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from streamguard.core.dialect.blocks import as_mapping
from streamguard.upstream.answer import Answer
from streamguard.upstream.server import ModelServer

__all__ = ["Responses"]

_REASONS: Final = {"max_output_tokens": "length", "max_tokens": "length", "content_filter": "content_filter"}


@attrs.frozen(kw_only=True)
class Responses(ModelServer):
    """A server. `base` is the address that ends with `/v1`; the other arguments are those of every `ModelServer`.

    `stream` yields text, and tool calls, reasoning and other output items when they are done.
    """

    path = "/responses"

    def _require_one(self, body: Mapping[str, Any]) -> None:
        pass  # there is no way to ask for several

    def _reason(self, answer: Answer) -> str:
        response = as_mapping(answer.last.get("response"))
        if answer.reader.reasons.get(0) == "incomplete":  # which some servers say inside of `response.completed`
            why = as_mapping(response.get("incomplete_details")).get("reason")
            return _REASONS.get(str(why), "length")
        return "tool_calls" if answer.called else "stop"
