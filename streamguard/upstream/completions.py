"""Any server that speaks OpenAI's `/v1/completions`: as a source, and to go on with after a crash.

    model = Completions("http://engine:8001/v1")

    @guard.stream(name=chat_of, resumer=model.resumer(asked))
    async def complete(request: Request):
        return model.stream(await request.json())

A completions server takes a prompt and makes what comes next. So a text whose process is gone is gone on with by
asking for what comes behind the prompt *and* the text so far. That is another request: its text is the one that an
uninterrupted run would have made only where the model always takes the same next token, and even then only where the
server computes the same whatever else it computes at once; it is never inconsistent with what readers have.

A stream of the server's ends where it gives a `finish_reason`; `[DONE]` alone, or the end of the bytes, proves nothing.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, cast

import attrs
import httpx

from streamguard.core.arguments import one_line, require_callable, shown
from streamguard.core.dialect.provider import ProviderStream
from streamguard.core.errors import SourceFailed
from streamguard.core.items import Finish
from streamguard.core.wire.sse import SseDecoder
from streamguard.runtime.takeover import Continue, Orphan

__all__ = ["Asked", "Completions", "CompletionsResumer"]

logger = logging.getLogger("streamguard")

Asked = Callable[[Orphan], "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"]

# A model may think for long before its first token: how long is `Timing(stall=…)`, for every source alike.
_TIMEOUT: Final = httpx.Timeout(None, connect=10.0)
_MAX_SAID: Final = 2000  # bytes of an answer that is no stream, for the log


@attrs.frozen(kw_only=True)
class Completions:
    """A server. `base` is the address that ends with `/v1`, `headers` go with each request (a key).

    `client` makes the requests, and is left open; without one each stream has a client of its own, which costs some
    milliseconds of certificates. Nothing is retried.
    """

    base: str = attrs.field(kw_only=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    client: httpx.AsyncClient | None = None

    def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[str | Finish, None]:
        """The server's answer to a request's JSON, as a source: its text, then its reason and usage.

        Raises TypeError and ValueError for a request that does not ask for one text behind a prompt that is text;
        the source raises SourceFailed for every end but a proven one.
        """
        return self._read(_checked(body), usage=True)

    def resumer(self, asked: Asked) -> CompletionsResumer:
        """What goes on with a stream of this server's. `asked(orphan)`, sync or async, answers the JSON of the request
        that started it: its prompt is lengthened by the text so far, all else is asked for as it stands there."""
        require_callable("asked", asked, "the Orphan")
        return CompletionsResumer(self, asked)

    async def _read(self, body: Mapping[str, Any], *, usage: bool) -> AsyncGenerator[str | Finish, None]:
        client = self.client or httpx.AsyncClient(timeout=_TIMEOUT)
        seen = ProviderStream()
        try:
            url = f"{self.base.rstrip('/')}/completions"
            request = client.build_request("POST", url, json=body, headers=dict(self.headers), timeout=_TIMEOUT)
            response = await client.send(request, stream=True)
            pieces = cast("AsyncGenerator[bytes, None]", response.aiter_bytes())
            try:
                await _require_stream(response, pieces)
                async with aclosing(_texts(pieces, seen)) as texts:
                    async for text in texts:
                        yield text
            finally:
                await _hung_up(response, pieces)
        except httpx.HTTPError as exc:
            if not seen.reasons:  # else the server had said that this was all
                logger.warning("the completions server cannot be read: %r", exc)
                code = "upstream_truncated" if seen.api else "upstream_unreachable"
                raise SourceFailed(code, "the model's server broke off", retryable=True) from exc
        finally:
            if client is not self.client:
                await client.aclose()
        yield Finish(_reason(seen), seen.usage if usage else None)


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
        body = _checked(await answer if inspect.isawaitable(answer) else answer)
        body["prompt"] += orphan.text
        # Without its usage, which counts the text so far as a part of the prompt.
        return Continue(self.model._read(body, usage=False))


def _checked(body: Mapping[str, Any]) -> dict[str, Any]:
    """A copy that asks for a stream. Raises TypeError and ValueError."""
    if not isinstance(body, Mapping):
        raise TypeError(f"a request is a mapping, as {{'model': …, 'prompt': …}}, not {shown(body)}")
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise TypeError(f"the prompt is text, behind which a text can be gone on with, not {shown(prompt)}")
    if body.get("n") not in (None, 1):
        raise ValueError(f"one request is one text, and n={shown(body['n'])} asks for several")
    if body.get("echo"):
        raise ValueError("echo would repeat the prompt, and the text so far with it, in the text")
    return {**body, "stream": True}


async def _hung_up(response: httpx.Response, pieces: AsyncGenerator[bytes, None]) -> None:
    """Close the response, and finish httpx's generators, which wait one inside the other where they were left.

    Left to the garbage collector they end in another task, and trio warns of each. Resumed on their closed connection
    they end by its error, here; HTTP/2 keeps its connection, where they would wait.
    """
    await response.aclose()
    if not response.http_version.startswith("HTTP/1"):
        await pieces.aclose()
        return
    try:
        async for _ in pieces:
            pass  # what had come and was not read
    except Exception:
        pass  # the closed connection's error: it has done its work


async def _require_stream(response: httpx.Response, pieces: AsyncGenerator[bytes, None]) -> None:
    """Raise SourceFailed for an answer that is no stream of events."""
    status, kind = response.status_code, response.headers.get("content-type", "")
    if status == 200 and kind.startswith("text/event-stream"):
        return
    said = b""
    async for piece in pieces:
        said += piece
        if len(said) >= _MAX_SAID:
            break
    text = one_line(said[:_MAX_SAID].decode(errors="replace"))
    logger.warning("the completions server answered %d: %s", status, text)
    if status == 200:
        raise SourceFailed("upstream_format", "the model's server did not answer with a stream")
    retryable = status in (408, 409, 425, 429) or status >= 500
    raise SourceFailed("upstream_status", f"the model's server answered {status}", retryable=retryable)


async def _texts(pieces: AsyncGenerator[bytes, None], seen: ProviderStream) -> AsyncGenerator[str, None]:
    """The text of an answer's events, which `seen` watches, up to its marker. Raises SourceFailed for an error."""
    decoder = SseDecoder()
    async for piece in pieces:
        for event in decoder.feed(piece):
            what, reading = seen.observe(None if event.event == "message" else event.event, event.data)
            if what == "error" and seen.error is not None:
                logger.warning("the completions server sent an error: %s", one_line(str(seen.error)))
                raise SourceFailed("upstream_error", "the model's server sent an error", retryable=True)
            if what == "marker":
                return
            if reading.text:
                yield reading.text


def _reason(seen: ProviderStream) -> str:
    """Why the text ended. Raises SourceFailed where nothing proves that it did."""
    reason = seen.reasons.get(0)
    if reason == "abort":
        raise SourceFailed("generation_aborted", "the engine aborted the generation", retryable=True)
    if reason is not None:
        return reason
    if seen.ended:
        raise SourceFailed("unproven_end", "the end marker came without any finish reason", retryable=True)
    raise SourceFailed("upstream_truncated", "the model's server stopped in the middle", retryable=True)
