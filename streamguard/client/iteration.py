"""What users hold of an answer: iterations over it, and the context that it comes in.

An iteration may be left at any point: there is no generator to be closed.

An async generator that is left by `break` waits for the garbage collector, which ends it later and in
another task. These hold nothing but the answer, which its context closes.

What is used the wrong way says how it is used. These refusals are hidden from type checkers, which else would
take the wrong way for one that there is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, NoReturn, TypeVar

from typing_extensions import ParamSpec

from streamguard.core.items import Block
from streamguard.core.receipt import AnswerFrame

__all__ = [
    "AsyncOnly",
    "Iteration",
    "Iterations",
    "Spread",
    "SyncIteration",
    "SyncIterations",
    "SyncOnly",
    "SyncSpread",
    "async_only",
    "blocks_in",
    "frame_itself",
    "sync_only",
    "text_in",
]

_READ: Final = "an answer is read with `async for`, as in `async for text in answer.text()`, or as a whole: "
_ITERATE: Final = "iterate answer.text(), answer.frames() or answer.blocks(), by "

T = TypeVar("T")
P = ParamSpec("P")


class Iteration(Generic[T]):
    """What `pick` finds in each frame that `following` gives until that is None; None and "" are passed over.

    `following` is told how many frames this iteration has had.
    """

    def __init__(
        self, following: Callable[[int], Awaitable[AnswerFrame | None]], pick: Callable[[AnswerFrame], T | None]
    ) -> None:
        self._following = following
        self._pick = pick
        self._had = 0

    def __aiter__(self) -> Iteration[T]:
        return self

    async def __anext__(self) -> T:
        while (frame := await self._following(self._had)) is not None:
            self._had += 1
            if picked := self._pick(frame):
                return picked
        raise StopAsyncIteration

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            raise TypeError(f"{_READ}`await answer.read()`")

        __await__ = __iter__


class SyncIteration(Generic[T]):
    """The same without `await`."""

    def __init__(self, following: Callable[[int], AnswerFrame | None], pick: Callable[[AnswerFrame], T | None]) -> None:
        self._following = following
        self._pick = pick
        self._had = 0

    def __iter__(self) -> SyncIteration[T]:
        return self

    def __next__(self) -> T:
        while (frame := self._following(self._had)) is not None:
            self._had += 1
            if picked := self._pick(frame):
                return picked
        raise StopIteration


def frame_itself(frame: AnswerFrame) -> AnswerFrame:
    """Every frame."""
    return frame


def text_in(frame: AnswerFrame) -> str:
    """The text of choice 0."""
    return frame.text


def blocks_in(frame: AnswerFrame) -> tuple[Block, ...]:
    """The blocks that the frame makes whole."""
    return frame.blocks


class Spread(Iteration[T]):
    """All that `pick` finds in each frame, which may be several."""

    def __init__(
        self, following: Callable[[int], Awaitable[AnswerFrame | None]], pick: Callable[[AnswerFrame], tuple[T, ...]]
    ) -> None:
        self._each: Iteration[tuple[T, ...]] = Iteration(following, pick)
        self._found: deque[T] = deque()

    async def __anext__(self) -> T:
        if not self._found:
            self._found.extend(await self._each.__anext__())
        return self._found.popleft()


class SyncSpread(SyncIteration[T]):
    """The same without `await`."""

    def __init__(
        self, following: Callable[[int], AnswerFrame | None], pick: Callable[[AnswerFrame], tuple[T, ...]]
    ) -> None:
        self._each: SyncIteration[tuple[T, ...]] = SyncIteration(following, pick)
        self._found: deque[T] = deque()

    def __next__(self) -> T:
        if not self._found:
            self._found.extend(next(self._each))
        return self._found.popleft()


class Iterations(ABC):
    """The ways to iterate an answer, over `_next`, which answers its next frame.

    `_next` is told how many frames the caller has had, and raises StreamClosed if others were handed out:
    what follows them is not the whole, and must not end as if it were.
    """

    @abstractmethod
    async def _next(self, had: int) -> AnswerFrame | None: ...

    if not TYPE_CHECKING:

        def __aiter__(self) -> NoReturn:
            raise TypeError(f"{_ITERATE}`async for`")

        __iter__ = __aiter__

    def text(self) -> AsyncIterator[str]:
        """The text of choice 0, piece by piece."""
        return Iteration(self._next, text_in)

    def frames(self) -> AsyncIterator[AnswerFrame]:
        """Every frame but the terminal, which is one where it makes blocks whole that nothing else did."""
        return Iteration(self._next, frame_itself)

    def blocks(self) -> AsyncIterator[Block]:
        """The blocks between the text, which goes to `received`, each when it is whole: a provider's tool calls,
        reasoning and refusals too, however many pieces they came in. A call whose arguments are no JSON object is a
        block of type `invalid_tool_call`."""
        return Spread(self._next, blocks_in)


class SyncIterations(ABC):
    """The same without `await`."""

    @abstractmethod
    def _next(self, had: int) -> AnswerFrame | None: ...

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            raise TypeError(f"{_ITERATE}`for`")

    def text(self) -> Iterator[str]:
        """The text of choice 0, piece by piece."""
        return SyncIteration(self._next, text_in)

    def frames(self) -> Iterator[AnswerFrame]:
        """Every frame but the terminal."""
        return SyncIteration(self._next, frame_itself)

    def blocks(self) -> Iterator[Block]:
        """The blocks between the text, which goes to `received`, each when it is whole: a provider's tool calls,
        reasoning and refusals too, however many pieces they came in. A call whose arguments are no JSON object is a
        block of type `invalid_tool_call`."""
        return SyncSpread(self._next, blocks_in)


class _Unentered:
    """What a context manager says that is used as the answer which it gives."""

    _advice = ""

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            raise TypeError(self._advice)

        __aiter__ = __await__ = __iter__

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # what Python itself asks for
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise AttributeError(f"{self._advice}: {name!r} is the answer's")


class AsyncOnly(_Unentered, Generic[T]):
    """An asynchronous context manager that says so to a plain `with`."""

    _advice = "write `async with stream(…) as answer`"

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


class SyncOnly(_Unentered, Generic[T]):
    """A context manager that says so to an `async with`."""

    _advice = "write `with stream_sync(…) as answer`"

    def __init__(self, inner: AbstractContextManager[T, bool | None]) -> None:
        self._inner = inner

    def __enter__(self) -> T:
        return self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        return self._inner.__exit__(kind, exc, tb)

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            raise TypeError("`stream_sync` is not asynchronous: write `with`, or use `stream`")

        async def __aexit__(self, *exc: object) -> None:
            """Never reached: `async with` looks for it before it enters."""


def async_only(
    function: Callable[P, AbstractAsyncContextManager[T, bool | None]],
) -> Callable[P, AsyncOnly[T]]:
    """The same function, whose answer is an AsyncOnly."""

    @wraps(function)
    def opening(*args: P.args, **kwargs: P.kwargs) -> AsyncOnly[T]:
        return AsyncOnly(function(*args, **kwargs))

    return opening


def sync_only(function: Callable[P, AbstractContextManager[T, bool | None]]) -> Callable[P, SyncOnly[T]]:
    """The same function, whose answer is a SyncOnly."""

    @wraps(function)
    def opening(*args: P.args, **kwargs: P.kwargs) -> SyncOnly[T]:
        return SyncOnly(function(*args, **kwargs))

    return opening
