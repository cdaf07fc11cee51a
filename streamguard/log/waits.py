"""Tasks that wait for a change in this process, on whichever event loop, and how they are woken.

Who sleeps leaves a waker in a list, and takes it out again whatever happens. Nothing else runs between the sleeper's
last look and its waker standing in the list, as long as both are in one loop: no change falls between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import get_ident
from typing import Final

import anyio

__all__ = ["Wakers", "Waits", "wake"]

_LONGEST: Final = 365 * 86400.0  # seconds of a timer; some event loops cannot count to infinity

Wakers = list[Callable[[], object]]


def wake(wakers: Wakers) -> None:
    """Wake all who sleep there. Each takes its own waker out, once it runs."""
    for waker in wakers:
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
        self.check()
        self._thread = get_ident()
        self._asleep += 1
        try:
            loop = _asyncio_loop()
            if loop is None:
                await _sleep_anywhere(wakers, seconds)
            else:
                await _sleep_asyncio(loop, wakers, seconds)
        finally:
            self._asleep -= 1


def _asyncio_loop() -> asyncio.AbstractEventLoop | None:
    """The loop whose task this is, or None under trio: as a guest of asyncio's loop, it runs outside of any task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return None
    return None if task is None else task.get_loop()


async def _sleep_asyncio(loop: asyncio.AbstractEventLoop, wakers: Wakers, seconds: float) -> None:
    """A future and a timer of the loop: a reader sleeps once a token, and a cancel scope costs five times as much."""
    future = loop.create_future()

    def waker() -> None:
        if not future.done():
            future.set_result(None)

    timer = loop.call_later(seconds, waker) if seconds < _LONGEST else None
    wakers.append(waker)
    try:
        await future
    finally:
        wakers.remove(waker)
        if timer is not None:
            timer.cancel()


async def _sleep_anywhere(wakers: Wakers, seconds: float) -> None:
    event = anyio.Event()
    wakers.append(event.set)
    try:
        with anyio.move_on_after(seconds):
            await event.wait()
    finally:
        wakers.remove(event.set)
