"""Tasks that outlive the request that started them.

On asyncio a task of the loop's, kept alive here; on trio a system task. Neither raises into anybody: what a run
raises is logged, and a cancellation ends it. Each has a cancel scope of its own, so that all of them can be told to
go before the loop ends, which would leave them no time for their last words.
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
        self._scopes: set[anyio.CancelScope] = set()
        self._idle: anyio.Event | None = None  # set once there is no task any more

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, run: Callable[[], Awaitable[None]], name: str) -> None:
        """Start `run` beside the caller, with a copy of the caller's context variables."""
        trio = running_trio()
        scope = anyio.CancelScope()
        self._scopes.add(scope)
        if trio is None:
            task = asyncio.get_running_loop().create_task(self._guarded(run, name, scope), name=name)
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._done(task, scope))
        else:
            self._tasks.add(scope)
            # A system task has the context of trio's own start, unless told otherwise.
            trio.spawn_system_task(self._on_trio, run, name, scope, name=name, context=contextvars.copy_context())

    async def aclose(self, limit: float) -> bool:
        """Cancel all of them, and wait until they are over, for `limit` seconds at most; whether they are."""
        for scope in list(self._scopes):
            scope.cancel()
        with anyio.move_on_after(limit):
            while self._tasks:
                self._idle = anyio.Event()
                await self._idle.wait()
        return not self._tasks

    def _done(self, task: object, scope: anyio.CancelScope) -> None:
        self._tasks.discard(task)
        self._scopes.discard(scope)
        if self._idle is not None and not self._tasks:
            self._idle.set()

    async def _on_trio(self, run: Callable[[], Awaitable[None]], name: str, scope: anyio.CancelScope) -> None:
        try:
            await self._guarded(run, name, scope)
        finally:
            self._done(scope, scope)

    async def _guarded(self, run: Callable[[], Awaitable[None]], name: str, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await run()
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as exc:
            if leaf(exc, *FATAL) is not None:
                raise
            logger.exception("%s failed", name)
