"""A wait on behalf of a request, which is over when its reader leaves.

Who waits and is not watched keeps its connection's task, and its place among those that wait, until what it waits for
comes: for nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio

__all__ = ["left_before"]

logger = logging.getLogger("streamguard")


async def left_before(event: anyio.Event, gone: Callable[[], Awaitable[object]]) -> bool:
    """Wait until `event` is set; whether the reader left before that. `gone` returns when it has, and is cancelled."""
    left = False
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            nonlocal left
            try:
                await gone()
            except Exception as exc:  # a transport that cannot be asked has nobody at its other end
                logger.info("a request that waited for a stream is given up: %r", exc)
            left = True
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        await event.wait()
        tasks.cancel_scope.cancel()
    return left
