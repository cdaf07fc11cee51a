"""The endpoint without streamguard, as people write it. Each part is sensible; together they lose tails.

    the model -> a chunk buffer -> a queue -> a sender that lags -> the reader
        |
        `-- generation is over: the response ends, whatever is still on its way

The chunk buffer saves writes: it is cut when `size` tokens are in it, or when its first token has waited
long enough for `size` tokens to come, `delay` a token. The sender lags `delay` behind: each chunk leaves so
long after it was cut (a moderation call, a slow disk, a busy event loop). When generation is over the
sender is stopped and the body ended, which to HTTP is the clean end of a whole answer.

With `delay` 0 every token has left before the next comes, and nothing is ever lost: that is how this code
looks on its author's machine.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from streamguard.demo.model import Generation

__all__ = ["ChunkBuffer", "UnguardedAnswer"]


@attrs.define
class ChunkBuffer:
    """Tokens in; chunks of at most `size` tokens in `queue`, each with the time at which it was cut."""

    size: int
    patience: float
    """Seconds that the first token of a chunk waits for the others."""
    queue: asyncio.Queue[tuple[float, str]] = attrs.field(factory=asyncio.Queue)
    _held: list[str] = attrs.field(factory=list)
    _timer: asyncio.TimerHandle | None = None

    def add(self, token: str) -> None:
        self._held.append(token)
        if len(self._held) >= self.size:
            self.cut()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.patience, self.cut)

    def cut(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self.queue.put_nowait((asyncio.get_running_loop().time(), "".join(self._held)))
            self._held.clear()


@attrs.frozen
class UnguardedAnswer:
    """A response, as an ASGI application, that streams one generation in chunks.

    `flush` cuts the chunk buffer when the last token has come.
    """

    generation: Generation
    size: int
    delay: float
    flush: bool = False
    sse: bool = False
    """As server-sent events, one a chunk, instead of plain text."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = b"text/event-stream" if self.sse else b"text/plain; charset=utf-8"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        chunks = ChunkBuffer(self.size, self.size * self.delay)
        sender = asyncio.create_task(self.send_chunks(chunks, send))
        async for token in self.generation.tokens():
            chunks.add(token)
        if self.flush:
            chunks.cut()
        await self.generation.store()
        sender.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_chunks(self, chunks: ChunkBuffer, send: Send) -> None:
        loop = asyncio.get_running_loop()
        while True:
            cut_at, text = await chunks.queue.get()
            late = cut_at + self.delay - loop.time()
            if late > 0:
                await asyncio.sleep(late)
            body = f"data: {json.dumps(text)}\n\n".encode() if self.sse else text.encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
