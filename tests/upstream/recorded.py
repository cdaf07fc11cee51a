"""Recorded streams as what a model's server answers: whole, cut, and in a body that breaks off. The tests' and the
proof's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any, Literal

import attrs
import httpx

from streamguard.core.errors import SourceFailed
from streamguard.core.items import Item
from streamguard.upstream.chat import ChatCompletions
from streamguard.upstream.completions import Completions
from streamguard.upstream.messages import Messages
from streamguard.upstream.responses import Responses
from streamguard.upstream.server import ModelServer
from tests.cuts import profile_of

__all__ = ["Body", "Found", "View", "answering", "asked", "cuts_that_pass", "read_from", "verdict_of"]

View = Literal["stream", "events"]

_KINDS: dict[str, type[ModelServer]] = {
    "openai-chat": ChatCompletions,
    "openai-completions": Completions,
    "openai-responses": Responses,
    "anthropic-messages": Messages,
}

_VERDICTS = {
    "upstream_truncated": "truncated",
    "upstream_unreachable": "truncated",
    "upstream_status": "http_error",
}


class Body(httpx.AsyncByteStream):
    """A body of these pieces, whole by its framing or not. `taken`: how many its reader took; `closed`: it hung up."""

    def __init__(self, pieces: Iterable[bytes], *, clean: bool = True) -> None:
        self._pieces = pieces
        self._clean = clean
        self.closed = False
        self.taken = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            if self.closed:
                raise httpx.ReadError("closed")
            self.taken += 1
            yield piece
        if not self._clean:
            raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")

    async def aclose(self) -> None:
        self.closed = True


@attrs.frozen
class Found:
    """The items of a source, and why it failed."""

    items: list[Any]
    failure: SourceFailed | None

    @property
    def text(self) -> str:
        return "".join([item for item in self.items if isinstance(item, str)])


def answering(row: dict[str, Any], body: Body) -> httpx.AsyncClient:
    """A client whose server answers a row's request with this body."""
    headers = {"content-type": row["content_type"] or "text/event-stream"}
    return httpx.AsyncClient(
        transport=httpx.MockTransport(lambda request: httpx.Response(row["http_status"], headers=headers, stream=body))
    )


def asked(row: dict[str, Any], client: httpx.AsyncClient, view: View) -> AsyncGenerator[Item, None]:
    """The source for a row's API."""
    server = _KINDS[row["api"]]("http://model/v1", client=client, profile=profile_of(row))
    body = {"model": "m", "prompt": "p"}
    return server.stream(body) if view == "stream" else server.events(body)


async def read_from(row: dict[str, Any], pieces: Iterable[bytes], view: View, *, clean: bool = True) -> Found:
    """What a source hands out of a body, and how it ends."""
    items: list[Any] = []
    async with answering(row, Body(pieces, clean=clean)) as client:
        try:
            async for item in asked(row, client, view):
                items.append(item)  # what came before a failure stays
        except SourceFailed as exc:
            return Found(items, exc)
    return Found(items, None)


def verdict_of(found: Found) -> str:
    """A source's end in the words of the index."""
    if found.failure is None:
        return "complete"
    return _VERDICTS.get(found.failure.failure.code, "failed")


async def cuts_that_pass(row: dict[str, Any], data: bytes, cuts: Iterable[int]) -> list[tuple[str, int, str]]:
    """The cuts that a source takes for the whole, in either view, and in a body that ends cleanly or breaks off."""
    wrong = []
    tries: list[tuple[View, bool]] = [("stream", True), ("events", True), ("events", False)]
    for at in cuts:
        for view, clean in tries:
            found = await read_from(row, [data[:at]], view, clean=clean)
            if verdict_of(found) not in ("truncated", "failed"):
                wrong.append((row["file"], at, f"{view}, {'clean' if clean else 'broken off'}: {verdict_of(found)}"))
    return wrong
