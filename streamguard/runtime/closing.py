"""Closing what a source came from, by whatever it offers: `aclose`, else `close`, sync or async."""

from __future__ import annotations

import inspect
from typing import Any, Final

__all__ = ["INSISTENCE", "close", "close_sync"]

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


def _is_exit(exc: BaseException) -> bool:
    """Whether it is GeneratorExit, or a group of nothing else."""
    inner: tuple[BaseException, ...] | None = getattr(exc, "exceptions", None)
    return isinstance(exc, GeneratorExit) if inner is None else all(map(_is_exit, inner))
