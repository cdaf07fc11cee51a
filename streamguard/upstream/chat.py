"""Any server that speaks OpenAI's `/v1/chat/completions`, as a source.

    model = ChatCompletions("http://engine:8001/v1", profile="vllm")

    @guarded(dialect="openai")
    async def chat(request: Request):
        return model.events(await request.json())

An end is proven by `[DONE]` *and* a finish reason of every choice that began; in profile `transformers`, whose server
sends no marker, by the reasons and the end of a whole body. Usage comes where the request asks for it
(`stream_options`), behind the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from streamguard.core.arguments import shown
from streamguard.upstream.server import ModelServer

__all__ = ["ChatCompletions"]


@attrs.frozen(kw_only=True)
class ChatCompletions(ModelServer):
    """A server. `base` is the address that ends with `/v1`; the other arguments are those of every `ModelServer`.

    `stream` yields text, tool calls when they are whole, and reasoning when something else follows it.
    """

    path = "/chat/completions"

    def _require_one(self, body: Mapping[str, Any]) -> None:
        if body.get("n") not in (None, 1):
            raise ValueError(f"a stream is one answer, and n={shown(body['n'])} asks for several: see `events`")
