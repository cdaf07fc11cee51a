"""Tasks that outlive the request that started them.

On asyncio a task of the loop's, kept alive here; on trio a system task. Neither raises into anybody: what a run
raises is logged, and a cancellation ends it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable

import anyio

from streamguard.runtime.cancellation import FATAL, leaf
from streamguard.runtime.wakeup import running_trio

__all__ = ["Background"]

logger = logging.getLogger("streamguard")


class Background:
    """The tasks of one application in one event loop."""

    def __init__(self) -> None:
        self._tasks: set[object] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, run: Callable[[], Awaitable[None]], name: str) -> None:
        """Start `run` beside the caller, with a copy of the caller's context variables."""
        trio = running_trio()
        if trio is None:
            task = asyncio.get_running_loop().create_task(self._guarded(run, name), name=name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._tasks.add(run)
            # A system task has the context of trio's own start, unless told otherwise.
            trio.spawn_system_task(self._on_trio, run, name, name=name, context=contextvars.copy_context())

    async def _on_trio(self, run: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            await self._guarded(run, name)
        finally:
            self._tasks.discard(run)

    async def _guarded(self, run: Callable[[], Awaitable[None]], name: str) -> None:
        try:
            await run()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as exc:
            if leaf(exc, *FATAL) is not None:
                raise
            logger.exception("%s failed", name)
