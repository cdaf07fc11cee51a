"""Any producer, for a consumer that is a thread: it waits for the next item, and no longer than it says.

A sync producer has the thread that it has everywhere (`threads`), and its items one hand-over to pass. Any other is
driven by a task of the process's loop thread, which puts into the same kind of buffer. A sync producer that is stepped
`inline` (`inline`) has neither: the consumer's own thread runs it, and waits for it without a limit.

A wait with a time limit costs a timer of the system's, at every token. So a consumer may wait without one, and is woken
by a clock that all share, once nothing came from one of its ticks to the next.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import functools
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

import anyio.lowlevel

from streamguard.core.items import Item
from streamguard.runtime.buffer import Buffer, HandOver
from streamguard.runtime.closing import close_sync
from streamguard.runtime.inline import InlineSteps
from streamguard.runtime.loopthread import loop_thread
from streamguard.runtime.seen import Unseen
from streamguard.runtime.source import TokenSource
from streamguard.runtime.threads import SourceThread
from streamguard.runtime.timed import TokenTimer

__all__ = ["LOOK", "BlockingSource", "Quiet"]

logger = logging.getLogger("streamguard")

LOOK: Final = 0.25  # seconds between two looks at what nobody tells


class Quiet(Exception):
    """Nothing came in the time that was given, or whoever waits was interrupted."""


class _BlockingHandOver(HandOver):
    """A hand-over whose consumer is a thread."""

    def __init__(self, bounds: Buffer) -> None:
        super().__init__(bounds)
        self._woken = threading.Lock()
        self._woken.acquire()
        self._sleep_until_woken = self._woken.acquire
        self._interrupted = False
        self._timed = False  # whether the consumer waits by a timer of its own
        self._seen = -1

    def next(self, timeout: float | None) -> Item:
        """What `take` gives, and raises; Quiet after so many seconds, or, with None, from LOOK to twice that."""
        while not self._queue:
            self._behind = None
            self._timed = timeout is not None
            self.idle = True
            if self._queue:
                self.idle = False
                break
            sleep = self._sleep_until_woken
            if not (sleep() if timeout is None else sleep(True, max(timeout, 0.0))) or self._interrupted:
                self.idle = self._interrupted = False
                raise Quiet
        return self._pop()

    def interrupt(self) -> None:
        """Have `next` raise Quiet, now or at its next call. From any thread."""
        self._interrupted = True
        self._wake()

    def tick(self) -> None:
        """Interrupt a consumer that nothing came for since the last tick."""
        if self._put != self._seen:
            self._seen = self._put
        elif self.idle and not self._timed:
            self.interrupt()

    def _wake(self) -> None:
        self.idle = False
        try:
            self._woken.release()
        except RuntimeError:
            pass  # another wake came first, and is as good


class _Ticked(Protocol):
    def tick(self) -> object: ...


class _Clock:
    """Ticks, on a thread of its own, as long as there is anybody to tick for."""

    def __init__(self) -> None:
        self._some = threading.Event()
        self._waiting: set[_Ticked] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, waiting: _Ticked) -> None:
        with self._lock:
            self._waiting.add(waiting)
            self._some.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="streamguard-clock", daemon=True)
                self._thread.start()

    def discard(self, waiting: _Ticked) -> None:
        with self._lock:
            self._waiting.discard(waiting)
            if not self._waiting:
                self._some.clear()

    def _run(self) -> None:
        while True:
            self._some.wait()
            time.sleep(LOOK)
            with self._lock:
                waiting = list(self._waiting)
            for one in waiting:
                one.tick()


@functools.lru_cache(maxsize=1)
def _clock_of(pid: int) -> _Clock:
    return _Clock()


class BlockingSource:
    """`source`, opened by the thread that calls `start`, which is the one to call `next` and `close` too.

    `inline`: whether a plain iterable is stepped by that thread. Then `watch` is called every LOOK seconds on another
    one, as long as the source is open; it must not block, nor raise.
    """

    def __init__(self, source: TokenSource, bounds: Buffer | None, *, inline: bool = False) -> None:
        self.watch: Callable[[], object] | None = None
        self._timer: TokenTimer | None = None  # of a stream whose tokens are sampled
        self._source = source
        self._inline = inline
        self._hand_over = _BlockingHandOver(bounds or Buffer())
        self._ticked: _Ticked = self._hand_over
        self._over = threading.Event()
        self._steps: InlineSteps | None = None
        self._thread: SourceThread | None = None
        self._task: concurrent.futures.Future[None] | None = None
        self._refused = False
        self.next = self._hand_over.next  # once it is started
        self.interrupt = self._hand_over.interrupt

    def begins(self, seen: Unseen) -> None:
        """Its stream has begun, of which `seen` tells."""
        self._timer = seen.timer
        seen.entered(self._source, task=False)

    def start(self) -> None:
        """Begin to take items. Raises as `TokenSource.open` does."""
        self._start(self._pump)
        if self._steps is not None:
            self.next, self._ticked = self._steps.next, self
        if self._timer is not None:
            self.next = self._timer.asked(self.next)  # type: ignore[assignment]
        _clock_of(os.getpid()).add(self._ticked)

    def tick(self) -> None:
        if self.watch is not None:
            self.watch()

    def close(self, limit: float) -> bool:
        """Stop the source, and wait until it is closed, for `limit` seconds; whether it is. Logs what closing raises,
        and raises nothing. One that is stepped inline closes here, however long it takes."""
        _clock_of(os.getpid()).discard(self._ticked)
        self._hand_over.close()
        if self._refused:
            return True  # it is another stream's
        if self._steps is None and self._thread is None and self._task is None:  # what closes a connection may block
            try:
                self._start(self._close)
            except ValueError:
                return True
        elif self._task is not None and not self._over.wait(min(limit, 0.1)):
            self._task.cancel()  # it waits for its next item, and did not see that the hand-over is closed
        if self._steps is not None:
            self._steps.close()
            return True
        closed = self._over.wait(limit)
        if self._thread is not None:
            self._thread.awaited = closed
            if closed and self._thread.failure is not None:
                logger.warning("closing a source raised %r", self._thread.failure)
        return closed

    def _start(self, other: Callable[[], Awaitable[None]]) -> None:
        """Inline, on a thread of its own, or by `other` on the loop. Raises ValueError."""
        try:
            opened = self._source.open_sync()
        except ValueError:
            self._refused = True
            raise
        if opened is not None and self._inline:
            self._steps = InlineSteps(*opened)
            return
        if self._timer is not None:
            self._timer.buffered(self._hand_over)
        if opened is not None:
            self._begin(*opened)
        else:
            self._task = self._source.context.run(loop_thread().start, other)

    def _begin(self, iterable: Iterable[Item], context: contextvars.Context) -> None:
        thread = SourceThread(iterable, self._hand_over, self._over.set)
        self._thread = thread  # before it begins: a signal's handler may raise while it does
        try:
            thread.start(context)
        except RuntimeError:  # the system gives no thread
            self._over.set()
            close_sync(iterable)
            raise

    async def _pump(self) -> None:
        """In a task of the loop thread: step, put, wait for room; close whatever happens."""
        hand_over, failure = self._hand_over, None
        try:
            async for item in await self._source.open():
                if not hand_over.put(item) and not await hand_over.room_made():
                    break
                await anyio.lowlevel.checkpoint()
        except BaseException as exc:
            failure = exc
            if not isinstance(exc, Exception):
                raise
        finally:
            hand_over.end(failure)
            del failure
            await self._close()

    async def _close(self) -> None:
        try:
            await self._source.aclose()
        except Exception as exc:
            logger.warning("closing a source raised %r", exc)
        finally:
            self._over.set()
