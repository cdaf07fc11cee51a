"""Who reads, and what each takes for a whole answer: the client libraries as people use them.

A reader answers what it got and whether its library raised. Nothing here compares texts: what a reader
noticed is what its library told it.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib.util import find_spec
from typing import Final

import attrs
import httpx

from streamguard import client
from streamguard.core.errors import StreamGuardError

__all__ = [
    "READERS",
    "Reader",
    "Reading",
    "available",
    "new_http",
    "read_httpx",
    "read_httpx_sse",
    "read_streamguard",
]


@attrs.frozen
class Reading:
    """One answer, as its reader has it."""

    text: str
    error: str | None
    """The class of what the library raised, None if it took the answer for whole."""
    first: float | None
    """Seconds from the request to the first text."""


Reader = Callable[[httpx.AsyncClient, str, Mapping[str, str]], Awaitable[Reading]]


def new_http(connections: int, *, keep: bool = True) -> httpx.AsyncClient:
    """httpx's client with room for `connections` at once, kept for the next request or not.

    Its time limit is for a lab that hangs and nothing else; certificates take it longer to load than an
    answer takes, and nothing here is HTTPS.
    """
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections if keep else 0)
    return httpx.AsyncClient(limits=limits, timeout=30, trust_env=False, verify=False)


async def _read(pieces: AsyncIterator[str]) -> Reading:
    began = time.perf_counter()
    first: float | None = None
    parts: list[str] = []
    error: str | None = None
    try:
        async for piece in pieces:
            if first is None and piece:
                first = time.perf_counter() - began
            parts.append(piece)
    except (httpx.HTTPError, StreamGuardError) as exc:
        error = type(exc).__name__
    return Reading("".join(parts), error, first)


async def read_httpx(http: httpx.AsyncClient, url: str, params: Mapping[str, str]) -> Reading:
    """httpx: the end of the body is the end of the answer."""

    async def pieces() -> AsyncIterator[str]:
        async with http.stream("GET", url, params=params) as response:
            response.raise_for_status()
            async for piece in response.aiter_text():
                yield piece

    return await _read(pieces())


async def read_httpx_sse(http: httpx.AsyncClient, url: str, params: Mapping[str, str]) -> Reading:
    """httpx-sse: the same, in server-sent events."""
    from httpx_sse import aconnect_sse

    async def pieces() -> AsyncIterator[str]:
        async with aconnect_sse(http, "GET", url, params={**params, "sse": "1"}) as source:
            async for event in source.aiter_sse():
                yield json.loads(event.data)

    return await _read(pieces())


async def read_streamguard(http: httpx.AsyncClient, url: str, params: Mapping[str, str]) -> Reading:
    """streamguard.client: the end of the answer is its terminal frame."""

    async def pieces() -> AsyncIterator[str]:
        async with client.stream("GET", url, params=params, client=http) as answer:
            async for piece in answer.text():
                yield piece

    return await _read(pieces())


READERS: Final[dict[str, Reader]] = {
    "httpx": read_httpx,
    "httpx-sse": read_httpx_sse,
    "streamguard": read_streamguard,
}


def available(name: str) -> bool:
    """Whether the library of one of `READERS` is installed; httpx-sse is no part of the lab's own extra."""
    return name != "httpx-sse" or find_spec("httpx_sse") is not None
