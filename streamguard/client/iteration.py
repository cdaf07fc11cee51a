"""Iterations over an answer that may be left at any point: there is no generator to be closed.

An async generator that is left by `break` waits for the garbage collector, which ends it later and in
another task. These hold nothing but the answer, which its context closes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from streamguard.core.items import Block
from streamguard.core.receipt import AnswerFrame

__all__ = ["Iteration", "SyncIteration", "block_in", "frame_itself", "text_in"]

T = TypeVar("T")


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

    def __init__(
        self, following: Callable[[], AnswerFrame | None], pick: Callable[[AnswerFrame], T | None]
    ) -> None:
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
