"""Whether somebody outside asked the task that drives a stream to stop.

A source can hide that: one that returns on `CancelledError` looks like one that is finished, and its
reader would be told `complete` for half an answer. And a source can invent it: awaiting a task that was
cancelled raises the same exception though nobody wants this one to end. So a driver does not go by the
exception; it asks.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NoReturn

import anyio
import anyio.lowlevel

__all__ = ["FATAL", "OutsideCancellation", "leaf"]

FATAL: Final = (KeyboardInterrupt, SystemExit)  # what ends the program, whoever raises it


def leaf(exc: BaseException, *kinds: type[BaseException]) -> BaseException | None:
    """The first exception of these kinds in `exc`, which may be a group of groups; None if there is none."""
    if isinstance(exc, kinds):
        return exc
    inner: tuple[BaseException, ...] = getattr(exc, "exceptions", ())  # other exceptions may have such an attribute
    if isinstance(exc, Exception) or not isinstance(inner, tuple):
        return None  # a plain group holds no exception that is not plain
    return next((found for one in inner if (found := leaf(one, *kinds)) is not None), None)


class OutsideCancellation:
    """Made in a running task; knows what was asked of it since. Ask outside scopes that are cancelled on purpose."""

    def __init__(self) -> None:
        try:
            # None under trio, whose cancellations all come by scope; before Python 3.11 tasks do not count them
            self._task: Any = asyncio.current_task()
        except RuntimeError:
            self._task = None
        self._before = self._count()

    @property
    def by_scope(self) -> bool:
        """Whether a scope that the caller is in is cancelled."""
        return anyio.current_effective_deadline() == -float("inf")

    def requested(self, *, unknown: bool) -> bool:
        """Whether this task was cancelled since, by a scope or by itself.

        `unknown` is the answer for a task that keeps no count (Python 3.10).
        """
        if self.by_scope:
            return True
        if self._task is None:
            return False
        count = self._count()
        return unknown if count is None else count > (self._before or 0)

    def pass_on(self, other: OutsideCancellation) -> None:
        """After this task was interrupted, and not by a scope: cancel `other`'s as often as this one was."""
        mine, theirs = self._since(), other._since()
        if mine is None or theirs is None or mine > theirs:  # else all tasks of the loop were cancelled
            other._task.cancel()

    def _since(self) -> int | None:
        count = self._count()
        return None if count is None else count - (self._before or 0)

    async def repeat(self) -> NoReturn:
        """Raise once more what was requested."""
        await anyio.lowlevel.checkpoint_if_cancelled()  # raises for a scope
        raise asyncio.CancelledError("requested before, and hidden by a source")

    def _count(self) -> int | None:
        return self._task.cancelling() if hasattr(self._task, "cancelling") else None
