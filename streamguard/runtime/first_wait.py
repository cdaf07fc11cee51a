"""An awaitable that tells when it first waits: for a time limit that need not be set before.

A limit is a timer, and one that is taken back stays in the event loop until its time comes, for thousands of writes
that never waited: most of what a sign of life cost was to keep them, and to look through them for garbage.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["FirstWait"]


class FirstWait:
    """Awaits what `call` answers; `waits` is called where that lets the event loop run, the first time."""

    __slots__ = ("_steps", "_waits")

    def __init__(self, call: Callable[[], Awaitable[object]], waits: Callable[[], object]) -> None:
        self._steps: Any = _awaited(call)
        self._waits: Callable[[], object] | None = waits

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """What an event loop answers to what is waited for."""
        waits_for = self._steps.send(value)  # raises StopIteration at the end
        if self._waits is not None:
            self._waits()
            self._waits = None
        return waits_for

    def throw(self, *exc: Any) -> Any:
        """A cancellation, or whatever else is raised where it waits."""
        return self._steps.throw(*exc)

    def close(self) -> None:
        self._steps.close()


async def _awaited(call: Callable[[], Awaitable[object]]) -> None:
    """A coroutine has all the methods that are used above, and not every awaitable has."""
    await call()
