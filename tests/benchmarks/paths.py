"""The ways from a source to an ASGI `send` that are compared: ours, a hand-written one, and sse-starlette's.

Every way gets the same tokens from the same async generator and hands its messages to a `send` that only
counts them; a `receive` that never answers keeps the disconnect watch waiting. Heartbeat, stall limit and
disconnect watch are on where the way has them. Frames and sends are counted, so that nothing can win by
sending less.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
from sse_starlette.sse import EventSourceResponse
from starlette.responses import StreamingResponse

from streamguard.adapters.starlette import GuardedResponse
from streamguard.core.flush import EveryTokens
from streamguard.core.wire.sse import SseDecoder

__all__ = ["EVERY", "SCOPE", "WAYS", "WORDS", "Served", "Source", "Way", "serve", "suspending", "tokens"]

App = Callable[[Any, Any, Any], Awaitable[None]]
Source = Callable[[int], AsyncIterator[str]]

EVERY = 8  # tokens a frame, where frames hold several
WORDS = ("Hello", " world", ",", " this", " is", " a", " stream", " of", " tokens", ".")

# As uvicorn makes it: with this version of the specification Starlette watches for the disconnect itself.
SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "POST",
    "path": "/",
    "query_string": b"",
    "headers": [(b"host", b"localhost")],
    "state": {},
}


async def tokens(count: int) -> AsyncIterator[str]:
    """The source: it never waits, so that all that is measured is the way."""
    for index in range(count):
        yield WORDS[index % 10]


async def suspending(count: int) -> AsyncIterator[str]:
    """The same, but the event loop turns once a token, as it does with a model behind a socket."""
    for index in range(count):
        await asyncio.sleep(0)
        yield WORDS[index % 10]


async def _by_hand(source: AsyncIterator[str]) -> AsyncIterator[str]:
    async for token in source:
        yield f"data: {token}\n\n"


@attrs.frozen
class Way:
    """A way from a source to `send`, and how many frames it makes of so many tokens, its ending not counted."""

    name: str
    make: Callable[[AsyncIterator[str]], App]
    frames: Callable[[int], int] = lambda count: count


def _guarded(**options: Any) -> Callable[[AsyncIterator[str]], App]:
    return lambda source: GuardedResponse(source, **options)


WAYS = {
    way.name: way
    for way in (
        Way("hand-written", lambda source: StreamingResponse(_by_hand(source), media_type="text/event-stream")),
        Way("sse-starlette", EventSourceResponse),
        Way("guarded", _guarded()),
        Way("guarded, openai", _guarded(dialect="openai")),
        Way("guarded, EveryTokens(8)", _guarded(flush=EveryTokens(EVERY)), lambda count: 1 + -(-(count - 1) // EVERY)),
    )
}


@attrs.frozen
class Served:
    """One answer: CPU seconds from call to return, `send` calls with a part of the body, and the body if kept."""

    seconds: float
    sends: int
    body: bytes

    def frames(self) -> int:
        """The events in the body that hold text: all but `open`, `end`, `[DONE]` and the chunk before that."""
        last = ("[DONE]", '{"error"')
        events = SseDecoder().feed(self.body)
        return sum(event.event == "message" and not event.data.startswith(last) for event in events)


def serve(app: App, *, keep: bool = False) -> Served:
    """Serve one request in a loop of its own."""
    return asyncio.run(_serve(app, keep))


async def _serve(app: App, keep: bool) -> Served:
    sends = 0
    parts: list[bytes] = []
    never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        nonlocal sends
        sends += 1

    async def send_and_keep(message: Any) -> None:
        nonlocal sends
        sends += 1
        parts.append(message.get("body", b""))

    async def receive() -> Any:
        return await never

    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        await app(dict(SCOPE), receive, send_and_keep if keep else send)
        seconds = time.process_time() - start
    finally:
        gc.enable()
    return Served(seconds, sends - 2, b"".join(parts))  # without the start and the empty last part
