"""Whether the event loop has a turn between two items of a source.

A source that yields without ever suspending would keep everybody else waiting, the disconnect watch included. Giving
the loop a turn for every token would cost more than the token; so would asking the loop whether it had one, since a
callback to tell is one more turn of it.

So the driver looks at most once in a few milliseconds, at the end of a slice of time. Where another stream of the
thread had an item meanwhile the loop turned, and all is well. Else:

    many items    the slice ended in the middle of them: the loop is given a turn, once a slice
    few items     one step took long, and what it did meanwhile is not known. The next step is *watched*, which tells
                  whether it suspended: then such steps are trusted for a while; else the loop is given a turn

`Watched` costs half a microsecond a step more, and so does the change to it and back, so it is not used for every one.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any, Final, Generic, TypeVar

import anyio.lowlevel
from typing_extensions import Self

__all__ = ["SLICE", "LoopTurns", "Watched"]

T = TypeVar("T")

SLICE: Final = 0.005  # seconds without a turn after which the driver lets others run
_LONG: Final = 0.001  # seconds past the end of a slice: then one step took long
_TRUSTED: Final = 4  # slices of long steps that are not looked into, after one that suspended


class Watched(Generic[T]):
    """An async iterator; `suspended` says whether a step of it let the event loop run.

    It is its own awaitable: one object a stream, and none a step.
    """

    __slots__ = ("_inner", "_items", "suspended")

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self._inner: Any = None
        self.suspended = False

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Any:  # itself, whose `__await__` is no generator, as type checkers would have it
        step: Any = self._items.__anext__()
        # A coroutine that was made of a generator is awaited as it is, and has no such method.
        self._inner = step.__await__() if hasattr(step, "__await__") else step
        return self

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        waits_for = next(self._inner)  # raises StopIteration with the item
        self.suspended = True
        return waits_for

    def send(self, value: Any) -> Any:
        """What an event loop answers to what the source waits for."""
        if value is None:
            return next(self)
        waits_for = self._inner.send(value)
        self.suspended = True
        return waits_for

    def throw(self, exc: Any, *rest: Any) -> Any:
        """A cancellation, or whatever else is raised where the source waits."""
        throw = getattr(self._inner, "throw", None)
        if throw is None:  # an awaitable that is a bare iterator
            raise rest[0] if rest and rest[0] is not None else exc
        waits_for = throw(exc, *rest)
        self.suspended = True
        return waits_for

    def close(self) -> None:
        close = getattr(self._inner, "close", None)
        if close is not None:
            close()


class _Thread(threading.local):
    """`ran[0]` is the mark of the stream that had an item last, in this thread."""

    def __init__(self) -> None:
        self.ran: list[object] = [None]


_thread: Final = _Thread()


class LoopTurns(Generic[T]):
    """`source` is how to step the items from now on; `mark` what its driver leaves in `ran[0]` at each of them."""

    __slots__ = ("_items", "_trust", "_watched", "mark", "ran", "source")

    def __init__(self, items: AsyncIterator[T]) -> None:
        self.mark = object()  # not the stream itself, which would live until another has an item
        self.ran = _thread.ran
        self._items = items
        self._watched = Watched(items)
        self._trust = 0
        self.source: AsyncIterator[T] = items

    def due(self, late: float) -> bool:
        """At the end of a slice, `late` seconds after it: whether to `give`."""
        if late < _LONG or self.source is self._watched:
            return True
        self._trust -= 1
        return self._trust < 0

    async def give(self, late: float) -> bool:
        """Let the loop turn, unless it is known to have. Whether `source` is another one now."""
        watched = self._watched
        if self.source is not watched:
            if late < _LONG:
                await anyio.lowlevel.checkpoint()
                return False
            self.source = watched
        elif watched.suspended:
            watched.suspended = False
            self._trust = _TRUSTED
            self.source = self._items
        else:
            await anyio.lowlevel.checkpoint()
            if late >= _LONG:
                return False
            self.source = self._items  # its steps are short again
        return True
