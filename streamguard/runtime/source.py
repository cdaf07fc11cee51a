"""Any producer becomes a source of items that is closed once, whatever happens.

A producer is an async generator, an async iterator or iterable, a sync one (which gets a thread of its own),
an awaitable of one (a model that is still loading), or a function that returns any of these. Nothing is
started when a TokenSource is made: `open` resolves the producer, so that headers and heartbeats can leave
while a model loads.

What is an async iterable and an awaitable (a database cursor) is iterated. An awaitable that is a *sync* iterable
too is awaited: asyncio's futures and tasks are that, and iterating one that is done gives nothing.

A generator gives its items once. One that is exhausted, or that another source reads, would be an empty answer
that looks whole, or every other item of it: it is refused, and never closed on behalf of the one that was refused.

Closing tries what the producer has: `aclose`, then `close`, sync or async, first on the iterator and
then on the iterable it came from (SDK streams keep their connection in the iterable). It happens in the
task that drove the source, because an async generator may hold a cancel scope or a context variable
that only that task may leave, or on the thread that did.

A function is called on the event loop, so it must not block: where making the source blocks, give a
generator function, whose first step then runs on the source's own thread.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final
from weakref import WeakSet

from streamguard.core.arguments import require
from streamguard.core.errors import StreamClosed
from streamguard.core.items import Item
from streamguard.runtime.ahead import AheadIterator
from streamguard.runtime.buffer import Buffer, HandOver
from streamguard.runtime.closing import close
from streamguard.runtime.push import PushSource
from streamguard.runtime.threads import ThreadIterator

__all__ = ["Producer", "TokenSource"]

# The type stops one level deep: a function may return an awaitable of an iterable, and so on.
Producer = AsyncIterable[Item] | Iterable[Item] | Awaitable[Any] | Callable[[], Any]

_ADVICE = "give a generator or an iterable, async or not, an awaitable of one, or a function that returns one"

# A function of an awaitable of a function … is resolved so far: one that returns itself would never end.
_MAX_STEPS: Final = 8

# What gives its items once and was given to a source that was opened, or closed. Other iterators may begin anew.
_taken: Final[WeakSet[Any]] = WeakSet()


class TokenSource:
    """A producer's items, as an async iterator that closes its producer for sure.

        async with TokenSource(generate(prompt)) as items:
            async for item in items: ...

    `buffer` lets the producer run ahead of the network by so much; a sync producer always has one. Raises
    TypeError for what is no producer, ValueError for a generator that is exhausted, and for a generator,
    PushSource or TokenSource that another source reads or has read.
    """

    def __init__(self, producer: Producer, *, buffer: Buffer | None = None) -> None:
        if not (_is_iterable(producer) or inspect.isawaitable(producer) or callable(producer)):
            raise TypeError(f"{type(producer).__name__} is no source: {_ADVICE}")
        if buffer is not None:
            require("buffer", buffer, Buffer, "Buffer(max_items=100)")
        _refuse_spent(producer)
        self._producer: Any = producer
        self._buffer = buffer
        self.context = contextvars.copy_context()  # for a thread: that of whoever made the source
        self.on_buffer: Callable[[HandOver], object] | None = None  # called with the buffer that its items go through
        self._iterator: AsyncIterator[Item] | None = None
        self._opened = False
        self._closed = False

    async def open(self) -> AsyncIterator[Item]:
        """Resolve the producer and return its iterator.

        Raises StreamClosed the second time: two readers of one iterator would each get every other item. Raises
        TypeError and ValueError, as the constructor does, for what an awaitable or a function gave.
        """
        if self._closed:
            raise StreamClosed("the source is closed")
        if self._opened:
            raise StreamClosed("a source is opened once")
        self._opened = True
        producer = await self._resolved()
        try:
            _refuse_spent(producer)
        except ValueError:
            self._producer = None  # another's: closing it would end that one's answer early, and cleanly
            raise
        _take(producer)
        self._iterator = self._iterate(producer)
        # Some iterators are no iterables; and some `__aiter__` begin anew, where the driver asks for it again whenever
        # it steps another way.
        own = isinstance(self._iterator, (ThreadIterator, AheadIterator, PushSource))
        if self.on_buffer is not None and isinstance(self._iterator, (ThreadIterator, AheadIterator, PushSource)):
            self._iterator.tell_buffer(self.on_buffer)
        return self._iterator if own or inspect.isasyncgen(self._iterator) else _Steps(self._iterator)

    def open_sync(self) -> tuple[Iterable[Item], contextvars.Context] | None:
        """A plain sync producer, which is the caller's from now on, to close too, and the context it is to run in;
        None for any other, which needs an event loop. Raises as `open` does."""
        producer = self._producer
        if not _is_iterable(producer) or isinstance(producer, (AsyncIterable, TokenSource)):
            return None
        if self._closed or self._opened:
            raise StreamClosed("the source is closed" if self._closed else "a source is opened once")
        _refuse_spent(producer)
        _take(producer)
        self._opened = self._closed = True
        return producer, self.context

    def _iterate(self, producer: Any) -> AsyncIterator[Item]:
        if not isinstance(producer, AsyncIterable):
            return ThreadIterator(producer, self._buffer or Buffer(), self.context)
        if self._buffer is not None:
            return AheadIterator(producer, self._buffer)
        return producer.__aiter__()

    async def _resolved(self) -> Any:
        for _ in range(_MAX_STEPS):
            producer = self._producer
            if _is_iterable(producer):
                return producer
            if inspect.isawaitable(producer):
                self._producer = await producer
            elif callable(producer):
                self._producer = producer()
            else:
                break
        raise TypeError(f"the source became {type(self._producer).__name__}: {_ADVICE}")

    def __aiter__(self) -> TokenSource:
        return self

    async def __anext__(self) -> Item:
        if self._iterator is None:
            await self.open()
        assert self._iterator is not None
        return await self._iterator.__anext__()

    async def aclose(self) -> None:
        """Close the producer. Only the first call does anything. Raises what the producer's close raises."""
        if self._closed:
            return
        self._closed = True
        producer, iterator = self._producer, self._iterator
        if iterator is None and _is_taken(producer):
            return  # another source has opened it meanwhile
        _take(producer)
        if iterator is None and _is_iterable(producer) and not isinstance(producer, AsyncIterable):
            iterator = self._iterate(producer)  # which closes it on a thread
        try:
            if iterator is not None:
                await close(iterator)
        finally:
            # A function was never called and holds nothing; its `close` may be a class's, without a self.
            held = isinstance(producer, AsyncIterable) or inspect.isawaitable(producer)
            # What has a thread or a task of its own is closed there.
            if held and producer is not iterator and not isinstance(iterator, (ThreadIterator, AheadIterator)):
                await close(producer)

    async def __aenter__(self) -> TokenSource:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _Steps:
    """An iterator's steps, and nothing else of it."""

    __slots__ = ("_next",)

    def __init__(self, iterator: Any) -> None:
        self._next = iterator.__anext__

    def __aiter__(self) -> _Steps:
        return self

    def __anext__(self) -> Any:
        return self._next()


def _is_iterable(producer: Any) -> bool:
    """Whether it yields items: text and mappings can be iterated too, and are items themselves."""
    if isinstance(producer, AsyncIterable):
        return True
    if inspect.isawaitable(producer):
        return False
    return isinstance(producer, Iterable) and not isinstance(producer, (str, bytes, bytearray, Mapping, type))


def _gives_once(producer: Any) -> bool:
    own = isinstance(producer, (PushSource, TokenSource))
    return own or inspect.isasyncgen(producer) or inspect.isgenerator(producer)


def _take(producer: Any) -> None:
    """Note that a source has `producer` for itself."""
    if _gives_once(producer):
        _taken.add(producer)


def _is_taken(producer: Any) -> bool:
    return _gives_once(producer) and producer in _taken


def _refuse_spent(producer: Any) -> None:
    """Raise ValueError for what has no items left, or none for a second reader, where that can be known."""
    if inspect.isasyncgen(producer):
        kind, over, runs = "async generator", producer.ag_frame is None, producer.ag_running
    elif inspect.isgenerator(producer):
        kind, over, runs = "generator", producer.gi_frame is None, producer.gi_running
    else:
        kind, over, runs = type(producer).__name__, False, False
    if over or runs or _is_taken(producer):
        state = "exhausted" if over else "running" if runs else "read by another stream, or was"
        raise ValueError(f"this {kind} is already {state}: make a new one for each request")
