"""One event loop for whoever has none: in a thread of its own, one for the process, shared by all streams.

What serves a request on a thread, as WSGI does, still meets what needs a loop: async sources, a wait for a slot, a log.
The loop is started at the first need, so that a server that forks its workers has one in each; a forked process that
finds its parent's makes its own. It ends with the process, whose end its thread does not delay.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

__all__ = ["LoopThread", "loop_thread"]

T = TypeVar("T")

_LOOK: Final = 0.25  # seconds between two looks at whether anybody still waits for what is run


class LoopThread:
    """An event loop in a daemon thread, which is started at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="streamguard-loop", daemon=True).start()
            return self._loop

    def start(self, run: Callable[..., Awaitable[T]], *args: Any) -> concurrent.futures.Future[T]:
        """Run `run(*args)` there, as a task with a copy of the caller's context. Cancelling the future cancels it."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        loop = self.loop

        async def call() -> T:
            return await run(*args)

        def begin() -> None:
            task = loop.create_task(call())
            future.add_done_callback(lambda future: loop.call_soon_threadsafe(_pass_on, future, task))
            task.add_done_callback(lambda task: _settle(task, future))

        loop.call_soon_threadsafe(begin, context=contextvars.copy_context())
        return future

    def wait(self, run: Callable[..., Awaitable[T]], *args: Any, look: Callable[[], object] | None = None) -> T:
        """The same, and wait for what it returns, or raises. `look` is called now and then meanwhile."""
        future = self.start(run, *args)
        try:
            while look is not None and not future.done():
                try:
                    return future.result(_LOOK)
                except concurrent.futures.TimeoutError:
                    if not future.done():
                        look()
            return future.result()
        except BaseException:
            future.cancel()  # where this thread was interrupted: nobody waits for it any more
            raise

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have `function(*args)` called there, soon."""
        self.loop.call_soon_threadsafe(function, *args)


def _pass_on(future: concurrent.futures.Future[Any], task: asyncio.Task[Any]) -> None:
    if future.cancelled():
        task.cancel()


def _settle(task: asyncio.Task[T], future: concurrent.futures.Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        if not task.cancelled():
            task.exception()  # else asyncio says, later, that nobody asked for it
        return
    if task.cancelled():
        future.set_exception(asyncio.CancelledError())
    elif (exc := task.exception()) is not None:
        future.set_exception(exc)
    else:
        future.set_result(task.result())


def loop_thread() -> LoopThread:
    """That of this process."""
    return _of_process(os.getpid())


@functools.lru_cache(maxsize=1)
def _of_process(pid: int) -> LoopThread:
    return LoopThread()
