"""An alarm clock for one task: it sleeps until a time has passed, or somebody wakes it, again and again.

An event waited for within a time limit does the same. On asyncio that is a cancellation of the task at each time that
passes, which costs as much as all the rest of a sign of life; there this is one timer and one future.
"""

from __future__ import annotations

import asyncio

import anyio

from streamguard.runtime.wakeup import running_trio

__all__ = ["Alarm"]


class Alarm:
    """`set` wakes the task that sleeps, and none falls asleep any more until `clear`."""

    __slots__ = ("_event", "_future", "_loop", "_set")

    def __init__(self) -> None:
        self._set = False
        self._loop: asyncio.AbstractEventLoop | None = None  # once the task slept, on asyncio
        self._future: asyncio.Future[None] | None = None
        self._event: anyio.Event | None = None

    def set(self) -> None:
        """Wake the sleeper. In its event loop."""
        self._set = True
        if self._future is not None:
            _ring(self._future)
        elif self._event is not None:
            self._event.set()

    def clear(self) -> None:
        """Let it sleep again."""
        self._set = False

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds (infinity: never), or once it is set: at once if it is. For one task."""
        if self._set:
            return
        if self._loop is None and running_trio() is not None:
            self._event = anyio.Event()
            with anyio.move_on_after(seconds):
                await self._event.wait()
            return
        loop = self._loop = self._loop or asyncio.get_running_loop()
        self._future = future = loop.create_future()
        timer = loop.call_at(loop.time() + seconds, _ring, future) if seconds < float("inf") else None
        try:
            await future
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()


def _ring(future: asyncio.Future[None]) -> None:
    if not future.done():  # set just before its time, or cancelled
        future.set_result(None)
