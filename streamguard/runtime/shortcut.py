"""The short way for a source that is pushed to in its driver's own event loop: no queue, and no task switch an item.

An item that is put into a `NearSource` wakes the driver, which is another task: two turns of the loop's machinery for
every token. So while the driver sleeps in the source, and nothing else wants the connection, an item takes the steps of
the driver's loop (`direct`) right where it is pushed, in the task of whoever pushes it:

* Only while the driver sleeps there, and nobody asked for its `attention`: so there is one write at a time, and no
  lock. Any other item is put into the queue, and the driver takes it.
* A write that does not wait is over before anybody else runs. One that waits is a claim on the connection, like the
  watcher's: the clock looks at it, a reader who leaves ends it, and the driver says no word before it is settled.
* What the driver's loop would raise ends the source, and is raised in the driver when it wakes.

On asyncio only, where a task can be cancelled by itself; on trio every item goes through the queue.
"""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, Generic, TypeVar

import anyio.lowlevel

from streamguard.core.errors import SourceFailed, StreamClosed
from streamguard.core.items import Item
from streamguard.runtime.buffer import Buffer, HandOver
from streamguard.runtime.connection import Connection, Lost
from streamguard.runtime.patience import Patience
from streamguard.runtime.push import PushSource
from streamguard.runtime.sink import Sink, Stage
from streamguard.runtime.turns import SLICE, LoopTurns
from streamguard.runtime.watch import ClockWatch

__all__ = ["NearSource", "Shortcut"]

T = TypeVar("T", bytes, list[Any])
_Coroutine: Final = types.CoroutineType
_COUNTS: Final = hasattr(asyncio.Task, "uncancel")  # Python 3.11: a task knows how often it was cancelled


class NearSource(PushSource):
    """A PushSource whose `put` is called in its driver's event loop, by one at a time. `shortcut` is the driver's, for
    as long as it steps the source; None where every item goes through the queue."""

    def __init__(self, *, buffer: Buffer | None = None, on_close: Callable[[], object] | None = None) -> None:
        super().__init__(buffer=buffer, on_close=on_close)
        self.shortcut: Shortcut[Any] | None = None
        self.hand_over = self._hand_over

    def tell_buffer(self, told: Callable[[HandOver], object]) -> None:
        """Most items go past it."""

    def break_off(self, failure: Exception) -> None:
        """Raise `failure` at the driver. Whoever pushes is told as at any end: by StreamClosed, and by `on_close`."""
        with self._lock:
            if not self._ended:
                self._ended = "the stream that this source feeds is over"
                self._hand_over.end(failure)


class Shortcut(Generic[T]):
    """One driver's. `take` is for the owner of its NearSource, in place of `put`."""

    def __init__(
        self,
        source: NearSource,
        stage: Stage[T],
        sink: Sink[T],
        turns: LoopTurns[Item],
        shared: tuple[Connection[T], ClockWatch[T], Patience, Callable[[], float]],
    ) -> None:
        self._source = source
        self._hand_over = source.hand_over
        self._push: Callable[[Item, float], T] = stage.push
        self._send: Callable[[T], Awaitable[None]] = sink.send
        self._line: Connection[T] = shared[0]
        self._watch: ClockWatch[T] = shared[1]
        self._patience, self._clock = shared[2:]
        self._ran, self._mark = turns.ran, turns.mark
        self._slice_end = self._clock() + SLICE

    def take(self, item: Item) -> Awaitable[None] | bool:
        """Whether the item was taken; if not, put it. An awaitable is what is left to do of one that was: await it at
        once. Both raise StreamClosed where the stream is over because of it."""
        watch = self._watch
        if watch.attention or not self._hand_over.idle:
            return False
        now = self._clock()
        push, send = self._push, self._send  # a call of the attribute itself would be taken for a method's, and slower
        try:
            out = push(item, now)
        except Exception as exc:
            raise self._over(exc) from None
        if out:
            self._line.wrote = now
            try:
                step: Any = send(out)  # and stepped by hand: most writes are over at once, and need no scope round them
                if type(step) is not _Coroutine:
                    step = _awaited(step)
                waits = step.send(None)
            except StopIteration:
                pass  # it is written
            except Exception as exc:
                raise self._lost(exc) from None
            except BaseException:
                self._tear()
                raise
            else:
                return self._rest(step, waits)
        watch.parked = now
        if now > self._slice_end:
            self._slice_end = now + SLICE
            if self._ran[0] is self._mark:  # no other stream had an item: the loop may not have turned since (`turns`)
                return anyio.lowlevel.checkpoint()
        self._ran[0] = self._mark
        return True

    async def _rest(self, step: Any, waits: Any) -> None:
        """The rest of a write that waits: beside the driver, and as one of its own."""
        watch, interruption = self._watch, _Interruption()
        watch.parked, watch.attention = None, True
        try:
            with self._line.claim_for(interruption):
                await _rest_of(step, waits)
        except BaseException as exc:
            if interruption.over() and isinstance(exc, asyncio.CancelledError):
                raise self._lost(None) from None
            if isinstance(exc, Exception):
                raise self._lost(exc) from None
            self._tear()
            raise
        interruption.over()
        if self._source.shortcut is self and self._hand_over.idle:  # else the driver goes on, or has stopped, by itself
            watch.parked = now = self._clock()
            self._slice_end = now + SLICE
            watch.attention = watch.before_parking()
            if watch.attention:
                self._patience.scope.cancel()  # as where it is told to stop while the driver waits for the source

    def _lost(self, cause: BaseException | None) -> StreamClosed:
        self._line.torn = self._line.lost = True
        lost = Lost()
        lost.__cause__ = cause
        return self._over(lost)

    def _tear(self) -> None:
        """Whoever pushed was cancelled in a write: nobody knows what the transport took, and nothing may follow."""
        self._line.torn = True
        self._over(SourceFailed("unended", "the source was cancelled while an item of it was sent", retryable=True))

    def _over(self, failure: Exception) -> StreamClosed:
        self._source.break_off(failure)
        return StreamClosed("the stream that this source feeds is over")


class _Interruption:
    """Stands where a connection has the scope of a write: one cannot be entered when the write has begun, since scopes
    that are open in there must be left first. It cancels the task, as `asyncio.timeout` does."""

    deadline = float("inf")  # the clock looks at the write

    def __init__(self) -> None:
        task: Any = asyncio.current_task()
        self._task = task
        self._cancelled = False
        self._before = task.cancelling() if _COUNTS else 0

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def over(self) -> bool:
        """Whether it was this that cancelled the task, and nothing else did."""
        if not self._cancelled:
            return False
        return not _COUNTS or self._task.uncancel() <= self._before


async def _awaited(step: Awaitable[None]) -> None:
    await step


@types.coroutine
def _rest_of(step: Any, waits: Any) -> Generator[Any, Any, None]:
    """What is left of an awaitable that was begun, and waits for `waits`."""
    while True:
        try:
            answer = yield waits
        except BaseException as exc:
            go_on: Callable[[], Any] = functools.partial(step.throw, exc)
        else:
            go_on = functools.partial(step.send, answer)
        try:
            waits = go_on()
        except StopIteration:
            return
