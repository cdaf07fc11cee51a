"""A source that is pushed to: from a callback, another thread, an engine that calls back with each token.

    source = PushSource(on_close=engine.abort)
    engine.generate(prompt, on_token=push, on_done=source.finish, on_error=source.fail)
    return GuardedResponse(source)

    def push(token):                # on the engine's thread
        if not source.put(token):
            source.wait()

`put` never waits. It says whether there is room for more, and raises StreamClosed once the stream is over, which
is how an engine learns that it may stop; `on_close` is called then too. False means to wait, with `wait` (in a
thread) or `room_made` (in a task). An engine that does not is stopped at twice the bound: the item that is too
much is lost, so the stream fails there and then, whatever the engine does with the BufferError. Callbacks' exceptions
are often swallowed, and an answer that lacks a piece must not end as a whole one.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any

from streamguard.core.arguments import require, require_callable, shown
from streamguard.core.errors import StreamClosed
from streamguard.core.items import Finish, Item
from streamguard.runtime.buffer import Buffer, HandOver
from streamguard.runtime.wakeup import in_loop

__all__ = ["PushSource"]


class PushSource:
    """An async iterable that others push to, from any thread and from several at once; made anywhere.

    At `buffer` items or bytes that wait `put` answers False. At twice as much it fails the stream rather than
    fill the memory. `on_close` is called once, without arguments and on the event loop, if the stream is over
    before `finish` or `fail` was called; it may be async. A producer that dies without a call of either leaves
    its reader waiting until the stream's stall limit.
    """

    def __init__(self, *, buffer: Buffer | None = None, on_close: Callable[[], object] | None = None) -> None:
        if buffer is not None:
            require("buffer", buffer, Buffer, "Buffer(max_items=100)")
        if on_close is not None:
            require_callable("on_close", on_close)
        self._bounds = buffer or Buffer()
        self._hand_over = HandOver(self._bounds)
        self._lock = threading.Lock()  # several threads may push; the buffer itself has one producer
        self._on_close = on_close
        self._ended = ""  # why nothing more can be put

    def put(self, item: Item) -> bool:
        """Hand over one item. Whether there is room for more.

        Raises StreamClosed once the source is finished or nobody reads any more. Raises BufferError if twice the
        bound waits already; the stream has then failed, since `item` is lost.
        """
        with self._lock:
            if self._ended:
                raise StreamClosed(self._ended)
            items, size = self._hand_over.waiting
            full = items >= 2 * self._bounds.max_items or size >= 2 * self._bounds.max_bytes
            if full and not self._hand_over.closed:
                why = f"{items} items wait to be sent: call `wait` or `room_made` when `put` answers False"
                self._ended = "the source has failed: more was put than it holds"
                self._hand_over.end(BufferError(why))
                raise BufferError(why)
            room = not self._hand_over.closed and self._hand_over.put(item)
        if self._hand_over.closed:
            raise StreamClosed("the stream that this source feeds is over")
        return room

    def finish(self, reason: str | None = None, usage: Mapping[str, Any] | None = None) -> None:
        """Say that the answer is whole. After `finish` or `fail` it does nothing.

        Raises TypeError for a reason that is no text, or usage that is no mapping; the stream has then failed.
        """
        try:
            finish = Finish(reason, usage) if reason is not None or usage is not None else None
        except TypeError as exc:
            self._end(exc, None)
            raise
        self._end(None, finish)

    def fail(self, failure: BaseException) -> None:
        """Say that it is not: the stream fails as if the source had raised `failure`.

        Raises TypeError for what is no exception; the stream has then failed all the same.
        """
        given: object = failure
        if not isinstance(given, BaseException):
            what = f"{given.__name__}('…')" if isinstance(given, type) else f"RuntimeError({shown(given)})"
            refused = TypeError(f"fail takes an exception: fail({what})")
            self._end(refused, None)  # first: callbacks' exceptions are often swallowed
            raise refused
        self._end(failure, None)

    def tell_buffer(self, told: Callable[[HandOver], object]) -> None:
        """Give `told` the buffer that all items go through."""
        told(self._hand_over)

    @property
    def ended(self) -> bool:
        """Whether `finish` or `fail` was called, or more was put than it holds."""
        return bool(self._ended)

    def wait(self) -> bool:
        """Wait, in a thread of the producer's, until half of the buffer is free. False: the stream is over.

        Raises RuntimeError on a thread that runs an event loop, which it would stop.
        """
        if in_loop():
            raise RuntimeError("`wait` would stop the event loop: `await source.room_made()` here")
        return self._hand_over.wait_for_room()

    async def room_made(self) -> bool:
        """The same in a task, of any event loop."""
        return await self._hand_over.room_made()

    def __aiter__(self) -> PushSource:
        return self

    async def __anext__(self) -> Item:
        return await self._hand_over.take()

    async def aclose(self) -> None:
        """The stream is over: further puts raise StreamClosed. Raises what `on_close` raises."""
        self._hand_over.close()
        with self._lock:
            on_close, self._on_close = self._on_close, None
        if on_close is not None:
            result = on_close()
            if inspect.isawaitable(result):
                await result

    def _end(self, failure: BaseException | None, finish: Finish | None) -> None:
        with self._lock:
            self._on_close = None  # whoever says so needs not be told
            if self._ended:
                return
            self._ended = "the source is finished"
            if not self._hand_over.closed:
                if finish is not None:
                    self._hand_over.put(finish)
                self._hand_over.end(failure)
