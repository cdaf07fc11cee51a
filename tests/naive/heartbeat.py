"""Heartbeats as they are usually added to a generator, in the two usual ways.

`with_heartbeats` gives each step of the source a time limit. The limit *cancels* the step, which ends an
asynchronous generator: the next step says that it is exhausted, and the answer ends early and in order.

`beside` sends them from a second task. Nothing keeps the two from writing at once, so a heartbeat falls
between the parts of an event, or after the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio

__all__ = ["beside", "with_heartbeats"]

BEAT = b": ping\n\n"


async def with_heartbeats(source: AsyncIterator[str], interval: float) -> AsyncIterator[bytes]:
    """The body of the answer, with a comment after each `interval` seconds without a token."""
    while True:
        token = None
        with anyio.move_on_after(interval):
            try:
                token = await source.__anext__()
            except StopAsyncIteration:
                break
        yield BEAT if token is None else f"data: {token}\n\n".encode()
    yield b"data: [DONE]\n\n"


async def beside(source: AsyncIterator[str], send: Callable[[bytes], Awaitable[None]], interval: float) -> None:
    """Send the answer, and a comment every `interval` seconds from a task of its own."""

    async def beat() -> None:
        while True:
            await anyio.sleep(interval)
            await send(BEAT)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        async for token in source:
            await send(b"event: token\n")
            await send(f"data: {token}\n\n".encode())
        await send(b"data: [DONE]\n\n")
        tasks.cancel_scope.cancel()
