"""Whether the event loop has had a turn.

A source that yields without ever suspending would keep everybody else waiting, the disconnect watch
included. Yielding to the loop for every token would cost more than the token. So the driver asks, at
most once in a few milliseconds, whether the loop has turned since it last asked: a callback that the
loop was given then has run, or it has not.
"""

from __future__ import annotations

import asyncio
from typing import Final

import anyio.lowlevel

__all__ = ["LoopTurns", "SLICE"]

SLICE: Final = 0.005  # seconds without a turn after which the driver lets others run


class LoopTurns:
    """Counts no turns; knows whether there was one. Made inside a running loop."""

    __slots__ = ("_asked", "_loop", "_turned")

    def __init__(self) -> None:
        self._turned = True
        self._asked = False
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None  # trio: no cheap callback, so every slice yields once

    async def give(self) -> None:
        """Let the loop turn, unless it has done so by itself since the last call."""
        if not self._turned or self._loop is None:
            await anyio.lowlevel.checkpoint()
        if self._loop is not None:
            self._turned = False
            if not self._asked:
                self._asked = True
                self._loop.call_soon(self._mark)

    def _mark(self) -> None:
        self._turned = True
        self._asked = False
