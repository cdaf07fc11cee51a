"""Any server that speaks OpenAI's `/v1/completions`: as a source, and to go on with after a crash.

    model = Completions("http://engine:8001/v1")

    @guard.stream(name=chat_of, resumer=model.resumer(asked))
    async def complete(request: Request):
        return model.stream(await request.json())

A completions server takes a prompt and makes what comes next. So a text whose process is gone is gone on with by
asking for what comes behind the prompt *and* the text so far. That is another request: its text is the one that an
uninterrupted run would have made only where the model always takes the same next token, and even then only where the
server computes the same whatever else it computes at once; it is never inconsistent with what readers have.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from streamguard.core.arguments import require_callable, shown
from streamguard.runtime.takeover import Continue, Orphan
from streamguard.upstream.server import ModelServer

__all__ = ["Asked", "Completions", "CompletionsResumer"]

Asked = Callable[[Orphan], "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"]


@attrs.frozen(kw_only=True)
class Completions(ModelServer):
    """A server. `base` is the address that ends with `/v1`; the other arguments are those of every `ModelServer`."""

    path = "/completions"

    def resumer(self, asked: Asked) -> CompletionsResumer:
        """What goes on with a stream of this server's. `asked(orphan)`, sync or async, answers the JSON of the request
        that started it: its prompt is lengthened by the text so far, all else is asked for as it stands there."""
        require_callable("asked", asked, "the Orphan")
        return CompletionsResumer(self, asked)

    def _require_one(self, body: Mapping[str, Any]) -> None:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            raise TypeError(f"the prompt is text, behind which a text can be gone on with, not {shown(prompt)}")
        if body.get("n") not in (None, 1):
            raise ValueError(f"one request is one text, and n={shown(body['n'])} asks for several: see `events`")
        if body.get("echo"):
            raise ValueError("echo would repeat the prompt, and the text so far with it, in the text: see `events`")


@attrs.frozen(eq=False)
class CompletionsResumer:
    """A resumer; `Completions.resumer` makes it. `model` is the server, `asked` answers a stream's request."""

    model: Completions
    asked: Asked

    async def __call__(self, orphan: Orphan) -> Continue:
        """Raises what `asked` raises, and ValueError for a stream that holds more than text."""
        if not all(isinstance(part, str) for part in orphan.parts):
            raise ValueError("the stream holds more than text, and a prompt has no place for that")
        answer = self.asked(orphan)
        body = self.model._asked(await answer if inspect.isawaitable(answer) else answer)
        self.model._require_one(body)
        body["prompt"] += orphan.text
        # Without its usage, which counts the text so far as a part of the prompt.
        return Continue(self.model._read(body, events=False, usage=False))
