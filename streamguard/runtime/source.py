"""Any producer becomes a source of items that is closed once, whatever happens.

A producer is an async generator, an async iterator or iterable, an awaitable of one (a model that is
still loading), or a function that returns any of these. Nothing is started when a TokenSource is made:
`open` resolves the producer, so that headers and heartbeats can leave while a model loads.

Closing tries what the producer has: `aclose`, then `close`, sync or async, first on the iterator and
then on the iterable it came from (SDK streams keep their connection in the iterable). It happens in the
task that drove the source, because an async generator may hold a cancel scope or a context variable
that only that task may leave.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Final

from streamguard.core.errors import StreamClosed
from streamguard.core.items import Item

__all__ = ["Producer", "TokenSource"]

# The type stops one level deep: a function may return an awaitable of an iterable, and so on.
Producer = AsyncIterable[Item] | Awaitable[Any] | Callable[[], Any]

_ADVICE = "give an async generator, an async iterable, an awaitable of one, or a function that returns one"

# A function of an awaitable of a function … is resolved so far: one that returns itself would never end.
_MAX_STEPS: Final = 8


class TokenSource:
    """A producer's items, as an async iterator that closes its producer for sure.

        async with TokenSource(generate(prompt)) as items:
            async for item in items: ...

    Raises TypeError for what is no producer.
    """

    def __init__(self, producer: Producer) -> None:
        if not (isinstance(producer, AsyncIterable) or inspect.isawaitable(producer) or callable(producer)):
            raise TypeError(f"{type(producer).__name__} is no source: {_ADVICE}")
        self._producer: Any = producer
        self._iterator: AsyncIterator[Item] | None = None
        self._opened = False
        self._closed = False

    async def open(self) -> AsyncIterator[Item]:
        """Resolve the producer and return its iterator.

        Raises StreamClosed the second time: two readers of one iterator would each get every other item.
        """
        if self._closed:
            raise StreamClosed("the source is closed")
        if self._opened:
            raise StreamClosed("a source is opened once")
        self._opened = True
        self._iterator = (await self._resolved()).__aiter__()
        # Some iterators are no iterables: they can be stepped, and not looped over.
        return self._iterator if isinstance(self._iterator, AsyncIterable) else self

    async def _resolved(self) -> AsyncIterable[Item]:
        for _ in range(_MAX_STEPS):
            producer = self._producer
            if isinstance(producer, AsyncIterable):
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
        try:
            if self._iterator is not None:
                await _close(self._iterator)
        finally:
            # A function was never called and holds nothing; its `close` may be a class's, without a self.
            held = isinstance(self._producer, AsyncIterable) or inspect.isawaitable(self._producer)
            if held and self._producer is not self._iterator:
                await _close(self._producer)

    async def __aenter__(self) -> TokenSource:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def _close(producer: Any) -> None:
    """Call the producer's own `aclose` or `close`, if it has one; await what it returns, if it is awaitable."""
    close = getattr(producer, "aclose", None) or getattr(producer, "close", None)
    if callable(close):
        result = close()
        if inspect.isawaitable(result):
            try:
                await result
            except BaseException as exc:
                if isinstance(exc, GeneratorExit) or not _is_exit(exc):
                    raise
                # A generator with a task group around its `yield` leaves in a group, and is closed all the same.


def _is_exit(exc: BaseException) -> bool:
    """Whether it is GeneratorExit, or a group of nothing else."""
    inner: tuple[BaseException, ...] | None = getattr(exc, "exceptions", None)
    return isinstance(exc, GeneratorExit) if inner is None else all(map(_is_exit, inner))
