"""A server that runs a model, asked over HTTP: what the sources for each API have in common.

Each API is a class beside this one, with the same two verbs:

    stream(body)    text, whole blocks (tool calls, reasoning), then a Finish with reason and usage: for any dialect
    events(body)    the server's own events, unchanged: for dialect `raw`, and for the API's own dialect

`body` is the request's JSON as the server takes it. Both are sources that end only where the server is proven to have
ended, and raise SourceFailed where it is not:

    upstream_unreachable   no connection, or none that answered
    upstream_status        another status than 200
    upstream_format        no stream of events, or none that can be read
    upstream_truncated     the stream stopped before its end
    upstream_error         the server sent an error
    unproven_end           an end marker that proves nothing
    generation_aborted     the engine aborted the generation

What the server said goes to the log; readers are told the code. A source that is closed hangs up at once, by which the
server learns that nobody reads. Nothing is retried.
"""

from __future__ import annotations

import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import Any, ClassVar, Final, cast

from streamguard.extras import needs

with needs("httpx", __name__):
    import httpx

import attrs

from streamguard.client.body import Body, coding_of
from streamguard.client.traceparent import trace_headers
from streamguard.core.arguments import one_line, shown
from streamguard.core.dialect.provider import PROFILES, ProviderReader
from streamguard.core.errors import SourceFailed
from streamguard.core.items import Finish, Item
from streamguard.upstream.answer import Answer, EventReader

__all__ = ["ModelServer"]

logger = logging.getLogger("streamguard")

# A model may think for long before its first token: how long is `Timing(stall=…)`, for every source alike.
_TIMEOUT: Final = httpx.Timeout(None, connect=10.0)
_MAX_SAID: Final = 2000  # bytes of an answer that is no stream, for the log
# What the dialects know these by.
_TOKENS: Final = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}


def _profile(instance: object, attribute: object, value: str) -> None:
    if value not in PROFILES:
        raise ValueError(f"unknown profile {shown(value)}; known: {', '.join(PROFILES)}")


@attrs.frozen(kw_only=True)
class ModelServer(ABC):
    """A server. `base` is the address before the API's own path, `headers` go with each request (a key).

    `profile` names the server, where it departs from its API: what proves an end follows from it. `client` makes the
    requests, and is left open; without one each stream has a client of its own, which costs some milliseconds of
    certificates. (A client's limit of connections, 100 by default, is one of streams: the next would wait.)
    """

    base: str = attrs.field(kw_only=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    profile: str = attrs.field(default="openai", validator=_profile)
    client: httpx.AsyncClient | None = None

    path: ClassVar[str]

    def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[Item, None]:
        """The server's answer to a request's JSON, as a source of text, blocks and a Finish.

        Raises TypeError and ValueError for a request whose answer is not one text; the source raises SourceFailed for
        every end but a proven one.
        """
        asked = self._asked(body)
        self._require_one(asked)
        return self._read(asked, events=False)

    def events(self, body: Mapping[str, Any]) -> AsyncGenerator[Item, None]:
        """The same as a source of the server's own events, the end marker included; of several answers too."""
        return self._read(self._asked(body), events=True)

    # ---- what an API fills in -------------------------------------------------------------------

    @abstractmethod
    def _require_one(self, body: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError where `stream` has no place for what the request asks for."""

    def _asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of the request's JSON that asks for a stream."""
        if not isinstance(body, Mapping):
            raise TypeError(f"a request is a mapping, as {{'model': …}}, not {shown(body)}")
        return {**body, "stream": True}

    def _reader(self) -> EventReader:
        return ProviderReader(self.profile, asked=True)

    def _reason(self, answer: Answer) -> str | None:
        """Why the answer ended, in the words that the dialects know."""
        return answer.reader.reasons.get(0)

    # ---- reading --------------------------------------------------------------------------------

    async def _read(
        self, body: Mapping[str, Any], *, events: bool, usage: bool = True
    ) -> AsyncGenerator[Item, None]:
        answer = Answer(self._reader(), events=events, lenient=PROFILES[self.profile].lenient)
        client = self.client or httpx.AsyncClient(timeout=_TIMEOUT)
        clean = False
        try:
            url = f"{self.base.rstrip('/')}{self.path}"
            request = client.build_request("POST", url, json=dict(body), headers=self.headers, timeout=_TIMEOUT)
            if "traceparent" not in request.headers:
                request.headers.update(trace_headers())
            request.headers["accept-encoding"] = "identity"  # tokens are small, and a coding may hold them back
            response = await client.send(request, stream=True)
            coded, pieces = _body_of(response)
            try:
                await _require_stream(response, coded, pieces)
                async for piece in pieces:
                    coded.put(piece)
                    while not answer.settled and (part := coded.take()) is not None:
                        for item in answer.feed(part):
                            yield item
                    if answer.settled:
                        break
                clean = coded.whole
            finally:
                await _hung_up(response, pieces)
        except (httpx.HTTPError, zlib.error) as exc:
            logger.warning("the model's server cannot be read: %r", exc)
            if not answer.begun:
                unheard = isinstance(exc, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout))
                why = "the model's server cannot be reached" if unheard else "the model's server broke off"
                raise SourceFailed("upstream_unreachable", why, retryable=True) from exc
        finally:
            if client is not self.client:
                await client.aclose()
        for item in answer.end(clean):
            yield item
        if not events:
            yield Finish(self._reason(answer), _named(answer.reader.usage) if usage else None)


def _named(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A count of tokens under the names that dialects know, which each writes in its own."""
    return None if usage is None else {_TOKENS.get(key, key): value for key, value in usage.items()}


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


def _body_of(response: httpx.Response) -> tuple[Body, AsyncGenerator[bytes, None]]:
    """What takes the body apart within bounds, and the pieces for it: httpx would make of one read what it holds,
    thousands of times over."""
    if response.is_stream_consumed:  # it is in memory, decompressed; only httpx can give it again
        return Body(), cast("AsyncGenerator[bytes, None]", response.aiter_bytes())
    coding = coding_of(response.headers.get("content-encoding", ""))
    return Body(coding), cast("AsyncGenerator[bytes, None]", response.aiter_raw())


async def _require_stream(response: httpx.Response, body: Body, pieces: AsyncGenerator[bytes, None]) -> None:
    """Raise SourceFailed for an answer that is no stream of events."""
    status, kind = response.status_code, response.headers.get("content-type", "")
    if status == 200 and kind.partition(";")[0].strip().lower() == "text/event-stream":
        if body.own:
            return
        coding = one_line(response.headers.get("content-encoding", ""))
        logger.warning("the model's server answered in a content coding that it was not asked for: %s", coding)
        raise SourceFailed("upstream_format", "the model's server answered in a content coding that is not read")
    text = one_line((await _said(body, pieces)).decode(errors="replace"))
    logger.warning("the model's server answered %d: %s", status, text)
    if status == 200:
        raise SourceFailed("upstream_format", "the model's server did not answer with a stream")
    retryable = status in (408, 409, 425, 429) or status >= 500
    raise SourceFailed("upstream_status", f"the model's server answered {status}", retryable=retryable)


async def _said(body: Body, pieces: AsyncGenerator[bytes, None]) -> bytes:
    """The beginning of an answer that is no stream."""
    said = b""
    async for piece in pieces:
        body.put(piece)
        while len(said) < _MAX_SAID and (part := body.take()) is not None:
            said += part
        if len(said) >= _MAX_SAID:
            break
    return said[:_MAX_SAID]
