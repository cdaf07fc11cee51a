"""The same endpoint, guarded: the same tokens, the same chunks, the same lag, and no code of its own for any of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import attrs

from streamguard.adapters.starlette import GuardedResponse
from streamguard.core.flush import EveryTokens, FlushPolicy, Immediate, Within, any_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from streamguard.demo.model import Generation

__all__ = ["Lagging", "guarded_answer"]


def guarded_answer(generation: Generation, size: int, delay: float) -> ASGIApp:
    """A response in chunks of `size` tokens, or of what has come in `delay` seconds a token."""

    async def source() -> AsyncIterator[str]:
        async for token in generation.tokens():
            yield token
        await generation.store()

    flush: FlushPolicy = any_of(EveryTokens(size), Within(size * delay)) if delay else Immediate()
    return Lagging(GuardedResponse(source(), flush=flush), delay)


@attrs.frozen
class Lagging:
    """The lab's fault, for a response that has no sender of its own to lag: each chunk leaves `delay` seconds late.

    The opening, which is sent with the head and holds nothing of the answer, is not a chunk.
    """

    app: ASGIApp
    delay: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        opened = False

        async def late(message: Message) -> None:
            nonlocal opened
            if message.get("body"):
                if opened:
                    await asyncio.sleep(self.delay)
                opened = True
            await send(message)

        await self.app(scope, receive, late if self.delay else send)
