"""Tasks that wait for a change in this process, on whichever event loop, and how they are woken.

Who sleeps leaves a waker in a list; who wakes takes out all that are there. Nothing else runs between the sleeper's
last look and its waker standing in the list, as long as both are in one loop: no change falls between the two. Many
changes before a sleeper runs wake it once.

A reader sleeps once a token, mostly for a second that never passes. On asyncio a timer for each sleep would cost more
than the token: so a list keeps its last sleeper, whose timer stays where it was set, and is moved when it goes off.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from threading import get_ident
from typing import Final

import anyio

__all__ = ["Wakers", "Waits", "asyncio_loop", "wake"]

_LONGEST: Final = 365 * 86400.0  # seconds of a timer; some event loops cannot count to infinity


class Wakers(list[Callable[[], object]]):
    """Who sleeps there; `spare` is one that slept before, and may be used again."""

    __slots__ = ("spare",)

    def __init__(self) -> None:
        self.spare: _Sleeper | None = None


def wake(wakers: Wakers) -> None:
    """Wake all who sleep there, and take them out."""
    asleep = wakers[:]
    wakers.clear()  # at once: what comes before they run has nobody to wake
    for waker in asleep:
        waker()


class Waits:
    """All who sleep for one store, on one event loop at a time."""

    def __init__(self) -> None:
        self._asleep = 0
        self._thread = 0

    def check(self) -> None:
        """Raise RuntimeError where sleepers could not be woken, because they sleep in another thread's loop."""
        if self._asleep and get_ident() != self._thread:
            raise RuntimeError("this log is for one event loop at a time, and tasks of another thread wait on it")

    async def sleep(self, wakers: Wakers, seconds: float) -> None:
        """Until the waker that stands in `wakers` meanwhile is called, or so many seconds have passed."""
        if seconds <= 0:
            return
        thread = get_ident()
        if self._asleep and thread != self._thread:
            self.check()
        self._thread = thread
        sleeper, wakers.spare = wakers.spare, None
        if sleeper is None or not sleeper.is_here():
            loop = asyncio_loop()
            if loop is None:
                await self._sleep_anywhere(wakers, seconds)
                return
            sleeper = _Sleeper(loop)
        wakers.append(sleeper)
        self._asleep += 1
        try:
            await sleeper.sleep(seconds)
        except BaseException:
            sleeper.stop()
            raise
        finally:
            self._asleep -= 1
            if sleeper in wakers:  # nobody woke it
                wakers.remove(sleeper)
        wakers.spare = sleeper

    async def _sleep_anywhere(self, wakers: Wakers, seconds: float) -> None:
        event = anyio.Event()
        wakers.append(event.set)
        self._asleep += 1
        try:
            with anyio.move_on_after(seconds):
                await event.wait()
        finally:
            self._asleep -= 1
            if event.set in wakers:
                wakers.remove(event.set)


class _Sleeper:
    """One who sleeps on an asyncio loop, again and again. Called, it wakes.

    Its timer is set for the end of some sleep, mostly an earlier one: when it goes off, it is set for that of the sleep
    that goes on then, if any does.
    """

    __slots__ = ("_due", "_future", "_loop", "_set_for", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = self._set_for = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._future: asyncio.Future[None] | None = None

    def is_here(self) -> bool:
        """Whether it can sleep in the task that runs now."""
        return asyncio_loop() is self._loop

    def sleep(self, seconds: float) -> asyncio.Future[None]:
        """What to await."""
        loop = self._loop
        self._due = due = loop.time() + seconds
        if self._timer is None or due < self._set_for:
            self.stop()
            if seconds < _LONGEST:
                self._set(due)
        self._future = future = loop.create_future()
        return future

    def stop(self) -> None:
        """No timer is left behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __call__(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def _set(self, due: float) -> None:
        self._set_for = due
        self._timer = self._loop.call_at(due, self._goes_off)

    def _goes_off(self) -> None:
        self._timer = None
        if self._future is None or self._future.done():
            return
        if self._due <= self._set_for:
            self._future.set_result(None)
        elif self._due - self._set_for < _LONGEST:
            self._set(self._due)


def asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The loop whose task runs now, or None under trio, which as a guest of asyncio's runs outside of any task.
    Where nobody has imported it that is not asked. httpcore does import it wherever it is installed.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return None if "trio" in sys.modules and asyncio.current_task(loop) is None else loop
