"""What users hold of an answer: iterations over it, and the context that it comes in.

An iteration may be left at any point: there is no generator to be closed.

An async generator that is left by `break` waits for the garbage collector, which ends it later and in
another task. These hold nothing but the answer, which its context closes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Generic, NoReturn, TypeVar

from typing_extensions import ParamSpec

from streamguard.core.items import Block
from streamguard.core.receipt import AnswerFrame

__all__ = [
    "AsyncOnly",
    "Iteration",
    "Iterations",
    "SyncIteration",
    "SyncIterations",
    "async_only",
    "block_in",
    "frame_itself",
    "text_in",
]

T = TypeVar("T")
P = ParamSpec("P")


class Iteration(Generic[T]):
    """What `pick` finds in each frame that `following` gives until that is None; None and "" are passed over."""

    def __init__(
        self, following: Callable[[], Awaitable[AnswerFrame | None]], pick: Callable[[AnswerFrame], T | None]
    ) -> None:
        self._following = following
        self._pick = pick

    def __aiter__(self) -> Iteration[T]:
        return self

    async def __anext__(self) -> T:
        while (frame := await self._following()) is not None:
            if picked := self._pick(frame):
                return picked
        raise StopAsyncIteration


class SyncIteration(Generic[T]):
    """The same without `await`."""

    def __init__(self, following: Callable[[], AnswerFrame | None], pick: Callable[[AnswerFrame], T | None]) -> None:
        self._following = following
        self._pick = pick

    def __iter__(self) -> SyncIteration[T]:
        return self

    def __next__(self) -> T:
        while (frame := self._following()) is not None:
            if picked := self._pick(frame):
                return picked
        raise StopIteration


def frame_itself(frame: AnswerFrame) -> AnswerFrame:
    """Every frame."""
    return frame


def text_in(frame: AnswerFrame) -> str:
    """The text of choice 0."""
    return frame.text


def block_in(frame: AnswerFrame) -> Block | None:
    """The frame's Block."""
    return frame.item if isinstance(frame.item, Block) else None


class Iterations(ABC):
    """The ways to iterate an answer, over `_next`, which answers its next frame."""

    @abstractmethod
    async def _next(self) -> AnswerFrame | None: ...

    def text(self) -> AsyncIterator[str]:
        """The text of choice 0, piece by piece."""
        return Iteration(self._next, text_in)

    def frames(self) -> AsyncIterator[AnswerFrame]:
        """Every frame but the terminal."""
        return Iteration(self._next, frame_itself)

    def blocks(self) -> AsyncIterator[Block]:
        """The blocks between the text, which goes to `received`. Only `native` has blocks: a provider's tool
        calls are in its chunks, the `item` of each of the `frames`."""
        return Iteration(self._next, block_in)


class SyncIterations(ABC):
    """The same without `await`."""

    @abstractmethod
    def _next(self) -> AnswerFrame | None: ...

    def text(self) -> Iterator[str]:
        """The text of choice 0, piece by piece."""
        return SyncIteration(self._next, text_in)

    def frames(self) -> Iterator[AnswerFrame]:
        """Every frame but the terminal."""
        return SyncIteration(self._next, frame_itself)

    def blocks(self) -> Iterator[Block]:
        """The blocks between the text, which goes to `received`. Only `native` has blocks: a provider's tool
        calls are in its chunks, the `item` of each of the `frames`."""
        return SyncIteration(self._next, block_in)


class AsyncOnly(Generic[T]):
    """An asynchronous context manager that says so to a plain `with`."""

    def __init__(self, inner: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._inner = inner

    async def __aenter__(self) -> T:
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, exc, tb)

    def __enter__(self) -> NoReturn:
        raise TypeError("`stream` is asynchronous: write `async with`, or use `stream_sync`")

    def __exit__(self, *exc: object) -> None:
        """Never reached: `with` looks for it before it enters."""


def async_only(
    function: Callable[P, AbstractAsyncContextManager[T, bool | None]],
) -> Callable[P, AsyncOnly[T]]:
    """The same function, whose answer is an AsyncOnly."""

    @wraps(function)
    def opening(*args: P.args, **kwargs: P.kwargs) -> AsyncOnly[T]:
        return AsyncOnly(function(*args, **kwargs))

    return opening
