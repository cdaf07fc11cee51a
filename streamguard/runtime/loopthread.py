"""One event loop for whoever has none: in a thread of its own, one for the process, shared by all streams.

What serves a request on a thread, as WSGI does, still meets what needs a loop: async sources, a wait for a slot, a log.
The loop is started at the first need, so that a server that forks its workers has one in each; a forked process that
finds its parent's makes its own. It ends with the process, whose end its thread does not delay.

A thread that waits for what is done there can be asked to call a function meanwhile (`on_caller`): what an application
wrote for its own thread, with its context and its database connection, is called on that one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio.to_thread
import attrs

__all__ = ["Call", "LoopThread", "Waiting", "loop_thread", "on_caller"]

T = TypeVar("T")


@attrs.define(eq=False)
class Call:
    """A function for a thread that waits, and where what it answers is awaited."""

    function: Callable[[], object]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]

    def __call__(self) -> None:
        """Call it, on the thread that waits. Raises nothing: what it raises is raised where it is awaited."""
        settle: Callable[[Any], None] = self.answer.set_result
        try:
            result: object = self.function()
        except BaseException as exc:
            settle, result = self.answer.set_exception, exc
        self.loop.call_soon_threadsafe(lambda: None if self.answer.done() else settle(result))


Waiting = queue.SimpleQueue[Any]
"""What a thread waits at: Calls come there, among other things."""

_waiting: contextvars.ContextVar[Waiting | None] = contextvars.ContextVar("streamguard_waiting", default=None)


async def on_caller(function: Callable[..., Any], *args: Any) -> Any:
    """Call it on the thread that waits for what this task does; where there is none, in the pool of threads."""
    waiting = _waiting.get()
    call = functools.partial(function, *args)
    if waiting is None:
        return await anyio.to_thread.run_sync(call)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    waiting.put(Call(call, loop, answer))
    return await answer


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

    def start(
        self, run: Callable[..., Awaitable[T]], *args: Any, waiting: Waiting | None = None
    ) -> concurrent.futures.Future[T]:
        """Run `run(*args)` there, as a task with a copy of the caller's context. Cancelling the future cancels it.
        `waiting` is what the caller waits at, until the task is done with what it calls there."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        loop = self.loop

        async def call() -> T:
            return await run(*args)

        def begin() -> None:
            _waiting.set(waiting)
            task = loop.create_task(call())
            future.add_done_callback(lambda future: loop.call_soon_threadsafe(_pass_on, future, task))
            task.add_done_callback(lambda task: _settle(task, future))

        loop.call_soon_threadsafe(begin, context=contextvars.copy_context())
        return future

    def wait(self, run: Callable[..., Awaitable[T]], *args: Any) -> T:
        """The same, and wait for what it returns, or raises."""
        waiting: Waiting = queue.SimpleQueue()
        future = self.start(run, *args, waiting=waiting)
        future.add_done_callback(lambda future: waiting.put(None))
        try:
            while (call := waiting.get()) is not None:
                call()
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
