"""Sync generators and iterators as sources: one thread each, which takes every step and closes.

A thread of its own, and not one of the 40 that anyio and Starlette share for plain `def` endpoints: a hundred
sources that wait for a model would leave none for anybody else. The same thread and the same context (a copy of
the one in which the source was made) for each step and for the close, because database sessions, tracing spans
and thread-locals belong to one.

When the stream is over, the thread takes no further step. One that is inside a blocking call cannot be
interrupted: it is waited for within the driver's limit and then left to itself; it closes the source when the
call returns, and as a daemon it keeps no process from ending.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Iterator

import anyio
import attrs

from streamguard.core.items import Item
from streamguard.runtime.buffer import Buffer, HandOver
from streamguard.runtime.closing import close_sync
from streamguard.runtime.wakeup import LoopCaller

__all__ = ["SourceThread", "ThreadIterator"]

logger = logging.getLogger("streamguard")


class ThreadIterator:
    """A sync iterable as an async iterator. `bounds` are those of the buffer between thread and loop; `context`
    is entered by the thread."""

    def __init__(self, iterable: Iterable[Item], bounds: Buffer, context: contextvars.Context) -> None:
        self._iterable = iterable
        self._context = context
        self._hand_over = HandOver(bounds)
        self._worker: SourceThread | None = None
        self._over: anyio.Event | None = None  # set once the thread has closed the source

    def __aiter__(self) -> ThreadIterator:
        return self

    async def __anext__(self) -> Item:
        if self._worker is None and not self._hand_over.closed:
            self._start()
        return await self._hand_over.take()

    def tell_buffer(self, told: Callable[[HandOver], object]) -> None:
        """Give `told` the buffer that all items go through."""
        told(self._hand_over)

    async def aclose(self) -> None:
        """Have the thread close the source, and wait until it has. Raises what closing raises."""
        self._hand_over.close()
        if self._worker is None:
            if inspect.isgenerator(self._iterable):
                self._iterable.close()  # never started: there is nothing in it to run
                return
            self._start()  # what closes a connection may block
        assert self._worker is not None
        assert self._over is not None
        worker = self._worker
        try:
            await self._over.wait()
        finally:
            worker.awaited = False
        failure, worker.failure = worker.failure, None
        if failure is not None:
            raise failure

    def _start(self) -> None:
        over, call = anyio.Event(), LoopCaller()
        worker = SourceThread(self._iterable, self._hand_over, lambda: call(over.set))
        worker.start(self._context)
        self._worker, self._over = worker, over  # not before: a thread that could not be started is none to wait for


@attrs.define(eq=False)
class SourceThread:
    """The thread of one source. `over` is called there at its end, once the source is closed."""

    iterable: Iterable[Item]
    hand_over: HandOver
    over: Callable[[], object]
    awaited: bool = True  # whether anybody waits for the close, or will
    failure: Exception | None = None  # what closing raised

    def start(self, context: contextvars.Context) -> None:
        """Start it, in `context`. Raises RuntimeError where the system gives no thread."""
        threading.Thread(target=context.run, args=(self.run,), name="streamguard-source", daemon=True).start()

    def run(self) -> None:
        """Step, put, wait for room; close whatever happens."""
        iterator: Iterator[Item] | None = None
        failure: BaseException | None = None
        hand_over = self.hand_over
        put, wait_for_room = hand_over.put, hand_over.wait_for_room
        try:
            if not hand_over.closed:
                iterator = iter(self.iterable)
                for item in iterator:
                    if not put(item) and not wait_for_room():
                        break
        except BaseException as exc:
            failure = exc
        hand_over.end(failure)  # before the clean-up, which may take its time
        del failure  # its traceback holds the source's frames
        self._close(iterator)
        self.over()

    def _close(self, iterator: Iterator[Item] | None) -> None:
        parts = (self.iterable,) if iterator is None or iterator is self.iterable else (iterator, self.iterable)
        for part in parts:
            try:
                close_sync(part)
            except BaseException as exc:
                self.failure = self.failure or _plain(exc)
        if self.failure is not None and not self.awaited:
            logger.warning("closing an abandoned source raised %r", self.failure)


def _plain(exc: BaseException) -> Exception:
    """An exception that may be raised in the driver's task: a thread's SystemExit must not stop the server."""
    if isinstance(exc, Exception):
        return exc
    plain = RuntimeError(f"closing the source raised {type(exc).__name__}")
    plain.__cause__ = exc
    return plain
