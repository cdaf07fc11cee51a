"""Closing what a source came from, by whatever it offers: `aclose`, else `close`, sync or async. And letting go of what
an exception keeps open, which nobody will look at."""

from __future__ import annotations

import inspect
import traceback
from typing import Any, Final

__all__ = ["INSISTENCE", "close", "close_sync", "let_go"]

INSISTENCE: Final = 0.1  # seconds for which a source that is told to stop is told so at every `await`


async def close(producer: Any) -> None:
    """Call the producer's own `aclose` or `close`, if it has one; await what it returns, if it is awaitable."""
    closing = getattr(producer, "aclose", None) or getattr(producer, "close", None)
    if not callable(closing):
        return
    result = closing()
    if inspect.isawaitable(result):
        try:
            await result
        except BaseException as exc:
            if isinstance(exc, GeneratorExit) or not _is_exit(exc):
                raise
            # A generator with a task group around its `yield` leaves in a group, and is closed all the same.


def close_sync(producer: Any) -> None:
    """Call the producer's `close`, if it has one."""
    closing = getattr(producer, "close", None)
    if callable(closing):
        closing()


def let_go(exc: BaseException) -> None:
    """Empty the frames that an exception went through, and those of all that it came from: one that is a part of a
    cycle would keep what they have, a generator say, until the garbage collector comes by."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [exc]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            waiting += (each.__cause__, each.__context__, *getattr(each, "exceptions", ()))


def _is_exit(exc: BaseException) -> bool:
    """Whether it is GeneratorExit, or a group of nothing else."""
    inner: tuple[BaseException, ...] | None = getattr(exc, "exceptions", None)
    return isinstance(exc, GeneratorExit) if inner is None else all(map(_is_exit, inner))
